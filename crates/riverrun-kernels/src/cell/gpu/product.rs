//! A cube's rows of the recurrent weights, kept in registers, times the state of a few sequences, by tensor cores.
//!
//! A cube owns 16 or 32 units: for each of its `gates`, so many rows of a matrix `[.., depth]`. Its planes share the
//! depth between them, `blocks` × 64 bytes each, so that every plane reads its own part of the state once, straight
//! into the registers that the product wants it in, and no part is read twice. What the planes make are partial sums,
//! left in shared memory. See [`super::weights`].
//!
//! The product is PTX's `m16n8k16`: the weights are `A`, 16 rows × 16 deep; the state is `B`, 16 deep × 8 sequences.
//! In both, a unit of the plane holds pairs of neighbours in depth. Since the order in depth does not matter so long as
//! both agree, unit `4 g + q` takes eight neighbours, 16 bytes, from `32 p + 8 q`: the first four serve one product, the
//! others the next.
//!
//! In `f32` it is `m16n8k8` of TF32, whose numbers have 10 bits after the point, three times: each number is
//! a TF32 and a rest, and of the four products of those the last, some `2⁻²²` of the whole, is
//! left out. The layout in registers is the same, with one number where there were two.

use cubecl::prelude::*;

use super::exchange::{absent, raise_fault, read_shared};
use crate::gpu::storage::Storage;

/// What changes the generated code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Product {
    /// Groups of rows; group `g` starts at row `g · hidden`.
    pub gates: usize,
    /// Units that a cube owns, a multiple of 16.
    pub units: usize,
    /// Rows of a group in all, `H`.
    pub hidden: usize,
    /// Units of a head, `H/N`; a multiple of [`Self::units`] where there are several heads.
    pub own: usize,
    /// Numbers of a row; a multiple of [`Self::quad`].
    pub depth: usize,
    /// Planes of a cube.
    pub planes: usize,
    /// Groups of 8 sequences that a cube takes.
    pub cols: usize,
    /// Blocks in depth whose weights a plane keeps in registers; the rest it keeps in shared memory.
    pub kept: usize,
    /// Wait on one sequence first, and read the others when it is there: fewer bytes while waiting, one more trip.
    pub peek: bool,
    /// Two bf16 or two f16 to a word, or plain `f32`.
    pub storage: Storage,
}

impl Product {
    /// Bytes of a number.
    pub(super) fn size(&self) -> usize {
        match self.storage {
            Storage::Plain => 4,
            Storage::Bf16Words | Storage::F16Words => 2,
        }
    }

    /// Numbers in 16 bytes, what a unit reads at once.
    pub(super) fn quad(&self) -> usize {
        16 / self.size()
    }

    /// Numbers of a block: what four units read at once.
    pub(super) fn block(&self) -> usize {
        4 * self.quad()
    }

    /// Blocks in depth that a plane takes.
    pub(super) fn blocks(&self) -> usize {
        self.depth.div_ceil(self.block()).div_ceil(self.planes)
    }

    /// Blocks of 16 rows.
    pub(super) fn tiles(&self) -> usize {
        self.gates * self.units / 16
    }

    /// Whether some plane's last block reaches past the end.
    fn ragged(&self) -> bool {
        self.blocks() * self.planes * self.block() != self.depth
    }

    /// Words from a unit's partial sums to the next unit's, chosen so that a plane's accesses fall on different banks.
    fn stride(&self) -> usize {
        16 * self.cols.div_ceil(2) + 2
    }

    /// Shared words that the partial sums take.
    pub(super) fn sums(&self) -> usize {
        self.planes * self.tiles() * 16 * self.stride()
    }

    /// Shared vectors of four words that weights take.
    pub(super) fn spilled(&self) -> usize {
        self.tiles() * (self.blocks() - self.kept) * 2 * 32 * self.planes
    }
}

/// Where a cube stands: its first unit, its first sequence, and how many sequences there are.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Part {
    pub unit: usize,
    pub row: usize,
    pub batch: usize,
}

/// Where a unit's weights of a block lie in shared memory.
#[cube]
pub(super) fn spilled_at(
    #[comptime] tile: usize,
    #[comptime] p: usize,
    #[comptime] product: Product,
) -> usize {
    let blocks = comptime!(product.tiles() * (product.blocks() - product.kept));
    let block = comptime!(tile * (product.blocks() - product.kept) + p - product.kept);
    (UNIT_POS_Y as usize * blocks + block) * 64 + UNIT_POS_X as usize
}

/// Where the cube's head has the `k`-th number that its rows are multiplied with. What it is multiplied with lies in groups of
/// `hidden`, in each of which the head has `own`.
#[cube]
fn of_head(k: usize, part: &Part, #[comptime] product: Product) -> usize {
    if comptime!(product.own == product.hidden) {
        k
    } else {
        let own = comptime!(product.own);
        k / own * comptime!(product.hidden) + part.unit / own * own + k % own
    }
}

/// `a b + c`.
#[cube]
fn multiply_add(
    a: Vector<u32, Const<4>>,
    b_0: u32,
    b_1: u32,
    c: Vector<f32, Const<4>>,
    #[comptime] storage: Storage,
) -> Vector<f32, Const<4>> {
    let d: Vector<f32, Const<4>>;
    let (name, depth) = comptime!(match storage {
        Storage::Plain => ("tf32", 8),
        Storage::F16Words => ("f16", 16),
        Storage::Bf16Words => ("bf16", 16),
    });
    gpu_asm!(
        "mma.sync.aligned.m16n8k{depth}.row.col.f32.{name}.{name}.f32 {}, {}, {{{}, {}}}, {};",
        out(_) d, in(_) a, in(_) b_0, in(_) b_1, in(_) c, options(pure, nomem),
    );
    d
}

/// The TF32 next to each number towards zero.
#[cube]
fn cut<N: Size>(words: Vector<u32, N>) -> Vector<u32, N> {
    words & Vector::<u32, N>::new(0xffff_e000u32)
}

/// What is left of each then, exactly.
#[cube]
fn rest<N: Size>(words: Vector<u32, N>) -> Vector<u32, N> {
    let whole = Vector::<f32, N>::reinterpret(words);
    Vector::<u32, N>::reinterpret(whole - Vector::<f32, N>::reinterpret(cut::<N>(words)))
}

/// Adds `a b` to a sum, to the precision of the storage type.
#[cube]
fn accumulate(
    sums: &mut Array<Vector<f32, Const<4>>>,
    #[comptime] at: usize,
    a: Vector<u32, Const<4>>,
    b_0: u32,
    b_1: u32,
    #[comptime] storage: Storage,
) {
    if comptime!(storage == Storage::Plain) {
        let (high, low) = (cut::<Const<4>>(a), rest::<Const<4>>(a));
        let b_0 = Vector::<u32, Const<1>>::new(b_0);
        let b_1 = Vector::<u32, Const<1>>::new(b_1);
        let high_0 = cut::<Const<1>>(b_0).extract(0usize);
        let high_1 = cut::<Const<1>>(b_1).extract(0usize);
        let low_0 = rest::<Const<1>>(b_0).extract(0usize);
        let low_1 = rest::<Const<1>>(b_1).extract(0usize);
        sums[at] = multiply_add(high, low_0, low_1, sums[at], storage);
        sums[at] = multiply_add(low, high_0, high_1, sums[at], storage);
        sums[at] = multiply_add(high, high_0, high_1, sums[at], storage);
    } else {
        sums[at] = multiply_add(a, b_0, b_1, sums[at], storage);
    }
}

/// Multiplies by the state of the cube's sequences, `stride` bytes apart from `source` on, and leaves the planes'
/// partial sums in `partial`. With `wait`, the state is awaited, for at most `patience` polls; what is left of the
/// patience is returned.
#[cube]
pub(super) fn multiply(
    weights: &Array<Vector<u32, Const<4>>>,
    spilled: &[Vector<u32, Const<4>>],
    source: u64,
    stride: u64,
    part: &Part,
    partial: &mut [f32],
    control: &mut [Atomic<u32>],
    wait: bool,
    patience: u32,
    #[comptime] product: Product,
) -> u32 {
    let blocks = comptime!(product.blocks());
    let cols = comptime!(product.cols);
    let tiles = comptime!(product.tiles());
    let column = UNIT_POS_X as usize / 4;
    let quarter = UNIT_POS_X as usize % 4;
    let mut left = patience;
    let mut sums = Array::<Vector<f32, Const<4>>>::new(comptime!(tiles * cols));
    #[unroll]
    for i in 0..comptime!(tiles * cols) {
        sums[i] = Vector::<f32, Const<4>>::new(0.0f32);
    }
    if comptime!(product.peek) {
        left = peek(source, stride, part, control, wait, left, product);
    }
    // So many blocks at a time as keep the words within 64 registers.
    let block = comptime!((16 / cols).max(1).min(blocks));
    #[unroll]
    for first in 0..comptime!(blocks.div_ceil(block)) {
        let start = comptime!(first * block);
        let count = comptime!(block.min(blocks - start));
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
                    let k = (UNIT_POS_Y as usize * blocks + comptime!(start + p))
                        * comptime!(product.block())
                        + quarter * comptime!(product.quad());
                    if comptime!(product.ragged()) {
                        words[comptime!(n * count + p)] = Vector::<u32, Const<4>>::new(0u32);
                        if k < comptime!(product.depth) {
                            let k = of_head(k, part, product);
                            words[comptime!(n * count + p)] =
                                read_shared(base + u64::cast_from(k * comptime!(product.size())));
                        }
                    } else {
                        let k = of_head(k, part, product);
                        words[comptime!(n * count + p)] =
                            read_shared(base + u64::cast_from(k * comptime!(product.size())));
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
                        let weight = if comptime!(start + p < product.kept) {
                            weights[comptime!((tile * product.kept + start + p) * 2 + half)]
                        } else {
                            spilled[spilled_at(tile, comptime!(start + p), product)
                                + comptime!(half * 32)]
                        };
                        accumulate(&mut sums, at, weight, b_0, b_1, product.storage);
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
            let unit = (UNIT_POS_Y as usize * tiles + tile) * 16 + column;
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

/// Waits for what this plane needs of the cube's first sequence.
#[cube]
fn peek(
    source: u64,
    stride: u64,
    part: &Part,
    control: &mut [Atomic<u32>],
    wait: bool,
    patience: u32,
    #[comptime] product: Product,
) -> u32 {
    let blocks = comptime!(product.blocks());
    let mut left = patience;
    let quarter = UNIT_POS_X as usize % 4;
    // The units of the plane share the blocks out between them.
    let column = UNIT_POS_X as usize / 4;
    let base = source + u64::cast_from(part.row) * stride;
    let mut polls = 0u32;
    let mut waiting = wait;
    while waiting {
        waiting = false;
        #[unroll]
        for turn in 0..comptime!(blocks.div_ceil(8)) {
            let p = (turn * 8 + column) % blocks;
            let k = (UNIT_POS_Y as usize * blocks + p) * comptime!(product.block())
                + quarter * comptime!(product.quad());
            let k = k.min(comptime!(product.depth - product.quad()));
            let k = of_head(k, part, product);
            waiting = waiting
                || absent(read_shared(
                    base + u64::cast_from(k * comptime!(product.size())),
                ));
        }
        polls += 1;
        if waiting && polls >= left {
            raise_fault(control);
            left = 0;
            waiting = false;
        }
    }
    sync_plane();
    left
}

/// The sum over planes for two neighbouring units of a gate, `pair` and `pair + 1`, and one of the cube's sequences.
#[cube]
pub(super) fn total(
    partial: &[f32],
    gate: usize,
    pair: usize,
    sequence: usize,
    #[comptime] product: Product,
) -> Vector<f32, Const<2>> {
    let mut sum = Vector::<f32, Const<2>>::new(0.0f32);
    #[unroll]
    for plane in 0..comptime!(product.planes) {
        let unit = (comptime!(plane * product.gates) + gate) * comptime!(product.units) + pair;
        let at = unit * comptime!(product.stride()) + sequence;
        let mut term = Vector::<f32, Const<2>>::new(0.0f32);
        term.insert(0usize, partial[at]);
        term.insert(1usize, partial[at + comptime!(product.stride())]);
        sum += term;
    }
    sum
}
