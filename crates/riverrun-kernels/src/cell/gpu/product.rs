//! A cube's rows of the recurrent weights, kept in registers, times the state of a few sequences, by tensor cores.
//!
//! A cube owns 16 units: for each of its `tiles`, 16 rows of a matrix `[.., depth]`. Its planes share the depth
//! between them, `pairs` × 32 numbers each, so that every plane reads its own part of the state once, straight into the
//! registers that the product wants it in, and no part is read twice. What the planes make are partial sums, left in
//! shared memory.
//!
//! The product is PTX's `m16n8k16`: the weights are `A`, 16 rows × 16 deep; the state is `B`, 16 deep × 8 sequences.
//! In both, a unit of the plane holds pairs of neighbours in depth. Since the order in depth does not matter so long as
//! both agree, unit `4 g + q` takes eight neighbours, 16 bytes, from `32 p + 8 q`: the first four serve one product, the
//! others the next.

use cubecl::prelude::*;

use super::exchange::{absent, raise_fault, read_shared};
use crate::recurrence::gpu::storage::Storage;

/// Units of the network that a cube owns.
pub(super) const UNITS: usize = 16;

/// What changes the generated code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Product {
    /// Groups of 16 rows; group `i` starts at row `i · hidden + 16 · cube`.
    pub tiles: usize,
    /// Rows of a group in all, `H`.
    pub hidden: usize,
    /// Numbers of a row; a multiple of 8.
    pub depth: usize,
    /// Planes of a cube.
    pub planes: usize,
    /// Groups of 8 sequences that a cube takes.
    pub cols: usize,
    /// Two bf16 or two f16 to a word.
    pub storage: Storage,
}

impl Product {
    /// Blocks of 32 in depth that a plane takes.
    pub(super) fn pairs(&self) -> usize {
        self.depth.div_ceil(32).div_ceil(self.planes)
    }

    /// Whether some plane's last block reaches past the end.
    fn ragged(&self) -> bool {
        self.pairs() * self.planes * 32 != self.depth
    }

    /// Words from a unit's partial sums to the next unit's, chosen so that a plane's accesses fall on different banks.
    fn stride(&self) -> usize {
        16 * self.cols.div_ceil(2) + 2
    }

    /// Shared words that the partial sums take.
    pub(super) fn words(&self) -> usize {
        self.planes * self.tiles * UNITS * self.stride()
    }
}

/// Where a cube stands: its first unit, its first sequence, and how many sequences there are.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Part {
    pub unit: usize,
    pub row: usize,
    pub batch: usize,
}

/// The weights of this unit of the plane, as the product wants them.
#[cube]
pub(super) fn load_weights(
    matrix: &[Vector<u32, Const<4>>],
    part: &Part,
    #[comptime] product: Product,
) -> Array<Vector<u32, Const<4>>> {
    let pairs = comptime!(product.pairs());
    let row = UNIT_POS_X as usize / 4;
    let quarter = UNIT_POS_X as usize % 4;
    let zero = Vector::<u32, Const<4>>::new(0u32);
    let mut weights = Array::<Vector<u32, Const<4>>>::new(comptime!(product.tiles * pairs * 2));
    #[unroll]
    for tile in 0..comptime!(product.tiles) {
        #[unroll]
        for p in 0..pairs {
            let k = (UNIT_POS_Y as usize * pairs + p) * 32 + quarter * 8;
            let mut low = zero;
            let mut high = zero;
            let first = part.unit + row;
            if k < comptime!(product.depth) {
                let base = tile * comptime!(product.hidden) + first;
                if first < comptime!(product.hidden) {
                    low = matrix[(base * comptime!(product.depth) + k) / 8];
                }
                if first + 8 < comptime!(product.hidden) {
                    high = matrix[((base + 8) * comptime!(product.depth) + k) / 8];
                }
            }
            let at = comptime!((tile * pairs + p) * 2);
            weights[at] = beside(low, high, 0usize);
            weights[at + 1] = beside(low, high, 2usize);
        }
    }
    weights
}

/// Words `i` and `i + 1` of both, in the order of a product's `A`.
#[cube]
fn beside(
    low: Vector<u32, Const<4>>,
    high: Vector<u32, Const<4>>,
    #[comptime] i: usize,
) -> Vector<u32, Const<4>> {
    let mut a = Vector::<u32, Const<4>>::new(0u32);
    a.insert(0usize, low.extract(i));
    a.insert(1usize, high.extract(i));
    a.insert(2usize, low.extract(comptime!(i + 1)));
    a.insert(3usize, high.extract(comptime!(i + 1)));
    a
}

#[cube]
fn multiply_add(
    a: Vector<u32, Const<4>>,
    b_0: u32,
    b_1: u32,
    c: Vector<f32, Const<4>>,
    #[comptime] storage: Storage,
) -> Vector<f32, Const<4>> {
    let d: Vector<f32, Const<4>>;
    let name = comptime!(if storage == Storage::F16Words {
        "f16"
    } else {
        "bf16"
    });
    gpu_asm!(
        "mma.sync.aligned.m16n8k16.row.col.f32.{name}.{name}.f32 {}, {}, {{{}, {}}}, {};",
        out(_) d, in(_) a, in(_) b_0, in(_) b_1, in(_) c, options(pure, nomem),
    );
    d
}

/// Multiplies by the state of the cube's sequences, `stride` bytes apart from `source` on, and leaves the planes'
/// partial sums in `partial`. With `wait`, the state is awaited, for at most `patience` polls; what is left of the
/// patience is returned.
#[cube]
pub(super) fn multiply(
    weights: &Array<Vector<u32, Const<4>>>,
    source: u64,
    stride: u64,
    part: &Part,
    partial: &mut [f32],
    control: &mut [Atomic<u32>],
    wait: bool,
    patience: u32,
    #[comptime] product: Product,
) -> u32 {
    let pairs = comptime!(product.pairs());
    let cols = comptime!(product.cols);
    let tiles = comptime!(product.tiles);
    let column = UNIT_POS_X as usize / 4;
    let quarter = UNIT_POS_X as usize % 4;
    let mut left = patience;
    let mut sums = Array::<Vector<f32, Const<4>>>::new(comptime!(tiles * cols));
    #[unroll]
    for i in 0..comptime!(tiles * cols) {
        sums[i] = Vector::<f32, Const<4>>::new(0.0f32);
    }
    // So many blocks at a time as keep the words within 64 registers.
    let block = comptime!((16 / cols).max(1).min(pairs));
    #[unroll]
    for first in 0..comptime!(pairs.div_ceil(block)) {
        let start = comptime!(first * block);
        let count = comptime!(block.min(pairs - start));
        let mut words = Array::<Vector<u32, Const<4>>>::new(comptime!(count * cols));
        let mut polls = 0u32;
        let mut waiting = true;
        while waiting {
            waiting = false;
            #[unroll]
            for n in 0..cols {
                let row = (part.row + n * 8 + column).min(part.batch - 1);
                let base = source + u64::cast_from(row) * stride;
                #[unroll]
                for p in 0..count {
                    let k = (UNIT_POS_Y as usize * pairs + comptime!(start + p)) * 32 + quarter * 8;
                    if comptime!(product.ragged()) {
                        words[comptime!(n * count + p)] = Vector::<u32, Const<4>>::new(0u32);
                        if k < comptime!(product.depth) {
                            words[comptime!(n * count + p)] =
                                read_shared(base + u64::cast_from(k * 2));
                        }
                    } else {
                        words[comptime!(n * count + p)] = read_shared(base + u64::cast_from(k * 2));
                    }
                }
            }
            #[unroll]
            for i in 0..comptime!(count * cols) {
                waiting = waiting || absent(words[i]);
            }
            waiting = waiting && wait;
            polls += 1;
            if waiting && polls >= left {
                raise_fault(control);
                left = 0;
                waiting = false;
            }
        }
        // The tensor cores want the whole plane at once.
        sync_plane();
        #[unroll]
        for p in 0..count {
            #[unroll]
            for half in 0..2 {
                #[unroll]
                for n in 0..cols {
                    let word = words[comptime!(n * count + p)];
                    let b_0 = word.extract(comptime!(half * 2));
                    let b_1 = word.extract(comptime!(half * 2 + 1));
                    #[unroll]
                    for tile in 0..tiles {
                        let at = comptime!(tile * cols + n);
                        sums[at] = multiply_add(
                            weights[comptime!((tile * pairs + start + p) * 2 + half)],
                            b_0,
                            b_1,
                            sums[at],
                            product.storage,
                        );
                    }
                }
            }
        }
    }
    #[unroll]
    for tile in 0..tiles {
        #[unroll]
        for n in 0..cols {
            let sum = sums[comptime!(tile * cols + n)];
            let unit = (UNIT_POS_Y as usize * tiles + tile) * comptime!(UNITS) + column;
            let at = unit * comptime!(product.stride()) + n * 8 + quarter * 2;
            let below = at + comptime!(8 * product.stride());
            partial[at] = sum.extract(0usize);
            partial[at + 1] = sum.extract(1usize);
            partial[below] = sum.extract(2usize);
            partial[below + 1] = sum.extract(3usize);
        }
    }
    left
}

/// The sum over planes for two neighbouring units of a tile, `pair` and `pair + 1`, and one of the cube's sequences.
#[cube]
pub(super) fn total(
    partial: &[f32],
    tile: usize,
    pair: usize,
    sequence: usize,
    #[comptime] product: Product,
) -> Vector<f32, Const<2>> {
    let mut sum = Vector::<f32, Const<2>>::new(0.0f32);
    #[unroll]
    for plane in 0..comptime!(product.planes) {
        let unit = (comptime!(plane * product.tiles) + tile) * comptime!(UNITS) + pair;
        let at = unit * comptime!(product.stride()) + sequence;
        let mut term = Vector::<f32, Const<2>>::new(0.0f32);
        term.insert(0usize, partial[at]);
        term.insert(1usize, partial[at + comptime!(product.stride())]);
        sum += term;
    }
    sum
}
