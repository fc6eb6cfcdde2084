//! A cube's rows of the recurrent weights, held in registers, times the state of a few sequences, on tensor cores.
//!
//! A cube owns 16 or 32 hidden units: for each of its `gates`, that many rows of a matrix of `depth` columns. Its planes divide
//! the depth between them, `blocks` × 64 bytes each, so every plane reads its own part of the state once, straight into the
//! registers that the product takes it from, and no part is read twice. Each plane leaves a partial sum in shared
//! memory. See [`super::weights`].
//!
//! The product is PTX's `m16n8k16`: the weights are `A`, 16 rows × 16 deep; the state is `B`, 16 deep × 8 sequences.
//! In both, a thread holds pairs of neighbours in depth. Since the order in depth is free as long as both operands
//! agree, thread `4 g + q` takes eight neighbours, 16 bytes, from `32 p + 8 q`: the first four serve one product, the
//! others the next.
//!
//! In `f32` it is `m16n8k8` of TF32, three times, see [`accumulate`]. The layout in registers is the same, with one number where
//! there were two.

use cubecl::prelude::*;

use crate::gpu::exchange::{absent, expired, read_shared, wait};
use crate::gpu::fault::PATIENCE;
use crate::gpu::lock::raise_fault;
use crate::gpu::mma::accumulate;
use crate::gpu::storage::Storage;

/// A product of a step: the values that change the generated code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Product {
    /// Groups of rows; group `g` starts at row `(first_gate + g) · hidden`.
    pub gates: usize,
    /// The first group.
    pub first_gate: usize,
    /// Hidden units that a cube multiplies for, a multiple of 16.
    pub units: usize,
    /// Cubes that share the depth of these units' product, and the units: each runs the cell on its part of them.
    pub cluster: usize,
    /// A thread looks at one read of its plane's part of the state until it is there, before it reads the rest.
    pub scouts: bool,
    /// Rows of a group, `H`.
    pub hidden: usize,
    /// Hidden units of a head, `H/N`; a multiple of [`Self::units`] where there are several heads.
    pub own: usize,
    /// The row stride, in numbers.
    pub row: usize,
    /// The first column.
    pub column: usize,
    /// Columns; a multiple of [`Self::quad`], as are `row` and `column`.
    pub depth: usize,
    /// Planes of a cube.
    pub planes: usize,
    /// Groups of 8 sequences that a cube takes.
    pub cols: usize,
    /// Blocks in depth whose weights a plane holds in registers; the others are in shared memory.
    pub kept: usize,
    /// Two bf16 or two f16 to a word, or plain `f32`.
    pub storage: Storage,
}

impl Product {
    /// Bytes of a number.
    pub(super) fn size(&self) -> usize {
        self.storage.size()
    }

    /// Numbers in 16 bytes, one read of a thread.
    pub(super) fn quad(&self) -> usize {
        16 / self.size()
    }

    /// Numbers of a block: one read of four threads.
    pub(super) fn block(&self) -> usize {
        4 * self.quad()
    }

    /// Planes that share the depth.
    fn all_planes(&self) -> usize {
        self.planes * self.cluster
    }

    /// Blocks in depth that a plane takes.
    pub(super) fn blocks(&self) -> usize {
        self.depth
            .div_ceil(self.block())
            .div_ceil(self.all_planes())
    }

    /// Hidden units on which a cube runs the cell.
    pub(super) fn own_units(&self) -> usize {
        self.units / self.cluster
    }

    /// Pairs of a hidden unit and its neighbour on which a cube runs the cell, over all its sequences.
    pub(super) fn pairs(&self) -> usize {
        self.own_units() / 2 * 8 * self.cols
    }

    /// Pairs per thread.
    pub(super) fn items(&self) -> usize {
        self.pairs().div_ceil(32 * self.planes)
    }

    /// Blocks of 16 rows.
    pub(super) fn tiles(&self) -> usize {
        self.gates * self.units / 16
    }

    /// Whether some plane's last block reaches past the end.
    fn ragged(&self) -> bool {
        self.blocks() * self.all_planes() * self.block() != self.depth
    }

    /// Words from a hidden unit's partial sums to the next one's, chosen so that a plane's accesses fall on different
    /// banks.
    fn stride(&self) -> usize {
        16 * self.cols.div_ceil(2) + 2
    }

    /// Shared words that the partial sums take.
    pub(super) fn sums(&self) -> usize {
        self.planes * self.tiles() * 16 * self.stride()
    }

    /// Bytes of states that a cube reads in a step.
    pub(super) fn read_bytes(&self) -> usize {
        8 * self.cols * self.depth / self.cluster * self.size()
    }

    /// Shared words of 64 bits in which the sums of the others of a cluster arrive: two rounds.
    pub(super) fn exchanged(&self) -> usize {
        2 * (self.cluster - 1) * self.gates * 2 * self.pairs()
    }

    /// Shared vectors of four words that weights take.
    pub(super) fn spilled(&self) -> usize {
        self.tiles() * (self.blocks() - self.kept) * 2 * 32 * self.planes
    }
}

/// A cube's place: the first hidden unit that it multiplies for, its first sequence, the number of sequences, and its place
/// in its cluster.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Part {
    pub unit: usize,
    pub row: usize,
    pub batch: usize,
    pub rank: usize,
}

/// The plane's place among those that share the depth.
#[cube]
pub(super) fn plane_of(part: &Part, #[comptime] product: Product) -> usize {
    if comptime!(product.cluster > 1) {
        part.rank * comptime!(product.planes) + UNIT_POS_Y as usize
    } else {
        UNIT_POS_Y as usize
    }
}

/// Index of a thread's weights of a block in shared memory.
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

/// Index of the `k`-th number that the rows of the cube's head are multiplied with. The other operand is stored in groups of
/// `hidden`, of which each head has `own`.
#[cube]
fn of_head(k: usize, part: &Part, #[comptime] product: Product) -> usize {
    if comptime!(product.own == product.hidden) {
        k
    } else {
        let own = comptime!(product.own);
        k / own * comptime!(product.hidden) + part.unit / own * own + k % own
    }
}

/// The numbers of a read from `k` on, of the sequence whose numbers are at `base`; zeros past the depth.
#[cube]
fn look(base: u64, k: usize, part: &Part, #[comptime] product: Product) -> Vector<u32, Const<4>> {
    let mut words = Vector::<u32, Const<4>>::new(0u32);
    if comptime!(product.ragged()) {
        if k < comptime!(product.depth) {
            let k = of_head(k, part, product);
            words = read_shared(base + u64::cast_from(k * comptime!(product.size())));
        }
    } else {
        let k = of_head(k, part, product);
        words = read_shared(base + u64::cast_from(k * comptime!(product.size())));
    }
    words
}

/// Waits for one read of the plane's part of the state, another one for each thread: of all its depth, and of 8 sequences.
/// It ends early rather than fail: what follows waits for everything, with a bound of its own.
#[cube]
fn scout(source: u64, stride: u64, part: &Part, awaited: bool, #[comptime] product: Product) {
    let blocks = comptime!(product.blocks());
    let column = UNIT_POS_X as usize / 4;
    let row = (part.row + column).min(part.batch - 1);
    let base = source + u64::cast_from(row) * stride;
    let block = plane_of(part, product) * blocks + column * blocks / 8;
    let k =
        block * comptime!(product.block()) + UNIT_POS_X as usize % 4 * comptime!(product.quad());
    let mut clock = wait();
    let mut waiting = awaited;
    while waiting {
        waiting = absent(look(base, k, part, product));
        if waiting {
            waiting = !expired(&mut clock, PATIENCE / 4);
        }
    }
    // The plane reads the rest together.
    sync_plane();
}

/// Multiplies by the state of the cube's sequences, which are `stride` bytes apart from `source` on, and leaves the planes'
/// partial sums in `partial`. With `awaited`, the state is polled until it is there. Returns whether a wait has timed out, here
/// or (`gave_up`) before.
#[cube]
pub(super) fn multiply(
    weights: &Array<Vector<u32, Const<4>>>,
    spilled: &[Vector<u32, Const<4>>],
    source: u64,
    stride: u64,
    part: &Part,
    partial: &mut [f32],
    control: u64,
    awaited: bool,
    gave_up: bool,
    #[comptime] product: Product,
) -> bool {
    let blocks = comptime!(product.blocks());
    let cols = comptime!(product.cols);
    let tiles = comptime!(product.tiles());
    let column = UNIT_POS_X as usize / 4;
    let quarter = UNIT_POS_X as usize % 4;
    let mut failed = gave_up;
    let mut sums = Array::<Vector<f32, Const<4>>>::new(comptime!(tiles * cols));
    #[unroll]
    for i in 0..comptime!(tiles * cols) {
        sums[i] = Vector::<f32, Const<4>>::new(0.0f32);
    }
    if comptime!(product.scouts) {
        scout(source, stride, part, awaited && !gave_up, product);
    }
    // As many blocks at a time as keep the words within 64 registers.
    let block = comptime!((16 / cols).max(1).min(blocks));
    #[unroll]
    for first in 0..comptime!(blocks.div_ceil(block)) {
        let start = comptime!(first * block);
        let count = comptime!(block.min(blocks - start));
        let mut words = Array::<Vector<u32, Const<4>>>::new(comptime!(count * cols));
        let mut clock = wait();
        let mut waiting = true;
        let mut first_look = true;
        while waiting {
            waiting = false;
            #[unroll]
            for n in 0..cols {
                let row = (part.row + n * 8 + column).min(part.batch - 1);
                let base = source + u64::cast_from(row) * stride;
                #[unroll]
                for p in 0..count {
                    let at = comptime!(n * count + p);
                    let k = (plane_of(part, product) * blocks + comptime!(start + p))
                        * comptime!(product.block())
                        + quarter * comptime!(product.quad());
                    if comptime!(product.scouts) {
                        // What has come is not read again.
                        if first_look || absent(words[at]) {
                            words[at] = look(base, k, part, product);
                        }
                    } else {
                        words[at] = look(base, k, part, product);
                    }
                }
            }
            first_look = false;
            #[unroll]
            for i in 0..comptime!(count * cols) {
                waiting = waiting || absent(words[i]);
            }
            waiting = waiting && awaited && !failed;
            if waiting {
                if expired(&mut clock, PATIENCE) {
                    raise_fault(control);
                    failed = true;
                    waiting = false;
                }
            }
        }
        // `mma` takes the whole plane at once.
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
    failed
}

/// The sum over planes for two neighbouring hidden units of a gate, `pair` and `pair + 1`, and one of the cube's sequences.
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
