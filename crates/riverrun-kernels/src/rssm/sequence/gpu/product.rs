//! Rows of a matrix times the numbers of a cube's sequences, on tensor cores.
//!
//! As in the cells (`cell::gpu::product`): PTX's `m16n8k16`, the weights are `A`, 16 rows of one tile, the sequences' numbers are `B`,
//! 8 sequences. The planes of a cube divide the depth between them; thread `4 g + q` of a plane takes 16 bytes of sequence `g` at a
//! time, from `block · p + q` quads on, and uses its weights in the same order. The planes' partial sums meet in shared memory.
//! Unlike there, an input may be normalized and activated on its way from the read to the product.

use cubecl::prelude::*;

use crate::gpu::exchange::{absent, expired, read_shared, wait};
use crate::gpu::fault::PATIENCE;
use crate::gpu::lock::raise_fault;
use crate::gpu::mma::accumulate;
use crate::gpu::storage::{Storage, narrow, widen};
use crate::gpu::words::Pair;

/// Four words: as many numbers as a thread reads at once.
pub(super) type Quad = Vector<u32, Const<4>>;
/// A thread's part of the sums of a tile.
pub(super) type Sums = Array<Vector<f32, Const<4>>>;

/// A matrix: the values that change the generated code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Product {
    /// Blocks of 16 rows that a group has.
    pub tiles: usize,
    /// Groups.
    pub groups: usize,
    /// Columns; a multiple of [`Self::quad`].
    pub depth: usize,
    /// Planes of a cube.
    pub planes: usize,
    /// Two bf16 or two f16 to a word, or plain `f32`.
    pub storage: Storage,
    /// Where its weights begin among the packed ones, in quads of words.
    pub first: usize,
    /// Where a cube holds those of its groups in shared memory, in quads; otherwise it reads them at every step.
    pub held: Option<usize>,
}

impl Product {
    /// Numbers in 16 bytes.
    pub(super) fn quad(&self) -> usize {
        16 / self.storage.size()
    }

    /// Numbers that four threads read at once.
    pub(super) fn block(&self) -> usize {
        4 * self.quad()
    }

    /// Blocks in depth that a plane takes.
    pub(super) fn blocks(&self) -> usize {
        self.depth.div_ceil(self.block()).div_ceil(self.planes)
    }

    /// Quads of a tile's weights.
    pub(super) fn tile(&self) -> usize {
        self.planes * self.blocks() * 64
    }

    /// Quads of a group's weights.
    pub(super) fn group(&self) -> usize {
        self.tiles * self.tile()
    }

    /// Quads of all weights.
    pub(super) fn vectors(&self) -> usize {
        self.groups * self.group()
    }

    /// Whether a block of a plane reaches past the end.
    fn ragged(&self) -> bool {
        self.blocks() * self.planes * self.block() != self.depth
    }
}

/// A cube's sequences: the first one, and the number of all.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Part {
    pub row: usize,
    pub batch: usize,
    /// The device's words of the lock.
    pub control: u64,
}

/// The first number in depth that the thread reads of block `p` of its plane.
#[cube]
pub(super) fn depth_of(#[comptime] p: usize, #[comptime] product: Product) -> usize {
    (UNIT_POS_Y as usize * comptime!(product.blocks()) + p) * comptime!(product.block())
        + UNIT_POS_X as usize % 4 * comptime!(product.quad())
}

/// Sums of zero.
#[cube]
pub(super) fn zeros(#[comptime] len: usize) -> Sums {
    let mut sums = Sums::new(len);
    #[unroll]
    for i in 0..len {
        sums[i] = Vector::<f32, Const<4>>::new(0.0f32);
    }
    sums
}

/// Reads blocks `start..start + count` of the cube's sequences, which lie `stride` bytes apart from `source` on, column after
/// column. With `awaited`, polls until all is there. Returns whether a wait has timed out, here or (`gave_up`) before.
#[cube]
pub(super) fn read(
    quads: &mut Array<Quad>,
    source: u64,
    stride: u64,
    part: &Part,
    awaited: bool,
    gave_up: bool,
    #[comptime] start: usize,
    #[comptime] count: usize,
    #[comptime] cols: usize,
    #[comptime] product: Product,
) -> bool {
    let size = comptime!(product.storage.size() as u64);
    let mut failed = gave_up;
    let mut clock = wait();
    let mut waiting = true;
    while waiting {
        waiting = false;
        #[unroll]
        for n in 0..cols {
            let row = (part.row + n * 8 + UNIT_POS_X as usize / 4).min(part.batch - 1);
            let base = source + u64::cast_from(row) * stride;
            #[unroll]
            for p in 0..count {
                let k = depth_of(comptime!(start + p), product);
                if comptime!(product.ragged()) {
                    quads[comptime!(n * count + p)] = Quad::new(0u32);
                    if k < comptime!(product.depth) {
                        quads[comptime!(n * count + p)] =
                            read_shared(base + u64::cast_from(k) * size);
                    }
                } else {
                    quads[comptime!(n * count + p)] = read_shared(base + u64::cast_from(k) * size);
                }
            }
        }
        #[unroll]
        for i in 0..comptime!(count * cols) {
            waiting = waiting || absent(quads[i]);
        }
        waiting = waiting && awaited && !failed;
        if waiting {
            if expired(&mut clock, PATIENCE) {
                raise_fault(part.control);
                failed = true;
                waiting = false;
            }
        }
    }
    failed
}

/// Replaces the numbers of the sequences that start again by 0.
#[cube]
pub(super) fn clear(
    quads: &mut Array<Quad>,
    restarts: &Array<bool>,
    #[comptime] count: usize,
    #[comptime] cols: usize,
) {
    #[unroll]
    for n in 0..cols {
        #[unroll]
        for p in 0..count {
            let at = comptime!(n * count + p);
            if restarts[n] {
                quads[at] = Quad::new(0u32);
            }
        }
    }
}

/// The numbers of a word: two, or one and a zero.
#[cube]
pub(super) fn numbers(word: u32, #[comptime] storage: Storage) -> Pair {
    if comptime!(storage == Storage::Plain) {
        let mut pair = Pair::new(0.0f32);
        pair.insert(0usize, f32::reinterpret(word));
        pair
    } else {
        widen::<u32, Const<1>, Const<2>>(Vector::<u32, Const<1>>::new(word), storage)
    }
}

/// A word of two numbers, or of the first.
#[cube]
pub(super) fn word(pair: Pair, #[comptime] storage: Storage) -> u32 {
    if comptime!(storage == Storage::Plain) {
        u32::reinterpret(pair.extract(0usize))
    } else {
        narrow::<u32, Const<1>, Const<2>>(pair, storage).extract(0usize)
    }
}

/// Adds the products of blocks `start..start + count` with a group's tiles. `group` counts all groups of the matrix, `own` those of
/// the cube.
#[cube]
pub(super) fn multiply(
    quads: &Array<Quad>,
    sums: &mut Sums,
    weights: &[Quad],
    held: &[Quad],
    group: usize,
    #[comptime] own: usize,
    #[comptime] start: usize,
    #[comptime] count: usize,
    #[comptime] cols: usize,
    #[comptime] product: Product,
) {
    let lane = UNIT_POS_Y as usize * comptime!(product.blocks() * 64) + UNIT_POS_X as usize;
    // `mma` takes the whole plane at once.
    sync_plane();
    #[unroll]
    for p in 0..count {
        #[unroll]
        for half in 0..2usize {
            #[unroll]
            for tile in 0..comptime!(product.tiles) {
                let offset = comptime!(tile * product.tile() + (start + p) * 64 + half * 32);
                let weight = if comptime!(product.held.is_some()) {
                    let first = comptime!(product.held.unwrap_or(0) + own * product.group());
                    held[lane + comptime!(first + offset)]
                } else {
                    weights[group * comptime!(product.group())
                        + lane
                        + comptime!(product.first + offset)]
                };
                #[unroll]
                for n in 0..cols {
                    let quad = quads[comptime!(n * count + p)];
                    let b_0 = quad.extract(comptime!(half * 2));
                    let b_1 = quad.extract(comptime!(half * 2 + 1));
                    accumulate(
                        sums,
                        comptime!(tile * cols + n),
                        weight,
                        b_0,
                        b_1,
                        product.storage,
                    );
                }
            }
        }
    }
}

/// Leaves the plane's sums in shared memory, `[planes, tiles · 16, stride]`.
#[cube]
pub(super) fn leave(
    sums: &Sums,
    partial: &mut [f32],
    #[comptime] cols: usize,
    #[comptime] stride: usize,
    #[comptime] product: Product,
) {
    #[unroll]
    for tile in 0..comptime!(product.tiles) {
        #[unroll]
        for n in 0..cols {
            let sum = sums[comptime!(tile * cols + n)];
            let unit = (UNIT_POS_Y as usize * comptime!(product.tiles) + tile) * 16
                + UNIT_POS_X as usize / 4;
            let at = unit * stride + n * 8 + UNIT_POS_X as usize % 4 * 2;
            partial[at] = sum.extract(0usize);
            partial[at + 1] = sum.extract(1usize);
            partial[at + comptime!(8 * stride)] = sum.extract(2usize);
            partial[at + comptime!(8 * stride + 1)] = sum.extract(3usize);
        }
    }
}

/// The sum over planes for rows `unit` and `unit + 1` of a group and one of the cube's sequences.
#[cube]
pub(super) fn total(
    partial: &[f32],
    unit: usize,
    sequence: usize,
    #[comptime] stride: usize,
    #[comptime] product: Product,
) -> Pair {
    let mut sum = Pair::new(0.0f32);
    #[unroll]
    for plane in 0..comptime!(product.planes) {
        let at = (comptime!(plane * product.tiles * 16) + unit) * stride + sequence;
        let mut term = Pair::new(0.0f32);
        term.insert(0usize, partial[at]);
        term.insert(1usize, partial[at + stride]);
        sum += term;
    }
    sum
}

/// Copies the cube's groups of a matrix, `count` of them from `group` on, to where it holds them.
#[cube]
pub(super) fn hold(
    weights: &[Quad],
    held: &mut [Quad],
    group: usize,
    #[comptime] count: usize,
    #[comptime] product: Product,
) {
    if comptime!(product.held.is_some()) {
        let from = group * comptime!(product.group()) + comptime!(product.first);
        let to = comptime!(product.held.unwrap_or(0));
        let mut i = UNIT_POS as usize;
        while i < comptime!(count * product.group()) {
            held[i + to] = weights[from + i];
            i += comptime!(32 * product.planes);
        }
    }
}

/// Numbers that are 0.
#[cube]
pub(super) fn none(quads: &mut Array<Quad>, #[comptime] len: usize) {
    #[unroll]
    for i in 0..len {
        quads[i] = Quad::new(0u32);
    }
}
