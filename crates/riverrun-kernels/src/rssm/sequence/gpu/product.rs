//! Rows of a matrix times the numbers of a cube's sequences, on tensor cores.
//!
//! As in the cells (`cell::gpu::product`): PTX's `m16n8k16`, the weights are `A`, 16 rows of one tile, the sequences' numbers are `B`,
//! 8 sequences. The planes of a cube divide the depth between them; thread `4 g + q` of a plane takes 16 bytes of sequence `g` at a
//! time, from `block · p + q` quads on, and uses its weights in the same order. The planes' partial sums meet in shared memory.
//! Unlike there, an input may be normalized and activated on its way from the read to the product.

use cubecl::prelude::*;

use crate::gpu::exchange::{absent, expired, read_shared, wait};
use crate::gpu::fault::PATIENCE;
use crate::gpu::full_plane::shuffle_xor;
use crate::gpu::lock::raise_fault;
use crate::gpu::math::sigmoid;
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
fn depth_of(#[comptime] p: usize, #[comptime] product: Product) -> usize {
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
fn numbers(word: u32, #[comptime] storage: Storage) -> Pair {
    if comptime!(storage == Storage::Plain) {
        let mut pair = Pair::new(0.0f32);
        pair.insert(0usize, f32::reinterpret(word));
        pair
    } else {
        widen::<u32, Const<1>, Const<2>>(Vector::<u32, Const<1>>::new(word), storage)
    }
}

#[cube]
fn word(pair: Pair, #[comptime] storage: Storage) -> u32 {
    if comptime!(storage == Storage::Plain) {
        u32::reinterpret(pair.extract(0usize))
    } else {
        narrow::<u32, Const<1>, Const<2>>(pair, storage).extract(0usize)
    }
}

/// Leaves the plane's sum of squares of each sequence in `norms`, `[planes, sequences]`.
#[cube]
pub(super) fn leave_squares(
    quads: &Array<Quad>,
    norms: &mut [f32],
    #[comptime] first: usize,
    #[comptime] count: usize,
    #[comptime] cols: usize,
    #[comptime] product: Product,
) {
    #[unroll]
    for n in 0..cols {
        let mut sum = 0.0f32;
        #[unroll]
        for p in 0..count {
            #[unroll]
            for i in 0..4usize {
                let quad = quads[comptime!(n * count + p)];
                let pair = numbers(quad.extract(i), product.storage);
                let squares = pair * pair;
                sum += squares.extract(0usize) + squares.extract(1usize);
            }
        }
        sum += shuffle_xor(sum, 1u32);
        sum += shuffle_xor(sum, 2u32);
        if UNIT_POS_X % 4 == 0 {
            let sequence = n * 8 + UNIT_POS_X as usize / 4;
            norms[first + UNIT_POS_Y as usize * comptime!(8 * cols) + sequence] = sum;
        }
    }
}

/// The sum over planes for the thread's sequence of column `n`.
#[cube]
fn row_sum(
    norms: &[f32],
    #[comptime] first: usize,
    #[comptime] n: usize,
    #[comptime] cols: usize,
    #[comptime] product: Product,
) -> f32 {
    let sequence = comptime!(n * 8) + UNIT_POS_X as usize / 4;
    let mut sum = 0.0f32;
    #[unroll]
    for plane in 0..comptime!(product.planes) {
        sum += norms[comptime!(first + plane * 8 * cols) + sequence];
    }
    sum
}

/// `1 / √(mean x² + ε)` of the thread's sequences, from what the planes left.
#[cube]
pub(super) fn scales(
    norms: &[f32],
    epsilon: f32,
    #[comptime] first: usize,
    #[comptime] cols: usize,
    #[comptime] product: Product,
) -> Array<f32> {
    let mut scales = Array::<f32>::new(cols);
    #[unroll]
    for n in 0..cols {
        scales[n] = scale(
            row_sum(norms, first, n, cols, product),
            epsilon,
            product.depth,
        );
    }
    scales
}

/// `1 / √(squares / numbers + ε)`.
#[cube]
pub(super) fn scale(squares: f32, epsilon: f32, #[comptime] numbers: usize) -> f32 {
    1.0f32 / (squares / comptime!(numbers as f32) + epsilon).sqrt()
}

/// Replaces each number `x` by `silu(x · scale · γ)`; `gamma` from its quad `from` on.
#[cube]
pub(super) fn activate(
    quads: &mut Array<Quad>,
    gamma: &[Quad],
    from: usize,
    scales: &Array<f32>,
    #[comptime] count: usize,
    #[comptime] cols: usize,
    #[comptime] product: Product,
) {
    #[unroll]
    for p in 0..count {
        let k = depth_of(p, product);
        let mut weights = Quad::new(0u32);
        if k < comptime!(product.depth) {
            weights = gamma[from + k / comptime!(product.quad())];
        }
        #[unroll]
        for n in 0..cols {
            let at = comptime!(n * count + p);
            let quad = quads[at];
            let mut result = Quad::new(0u32);
            #[unroll]
            for i in 0..4usize {
                let x = numbers(quad.extract(i), product.storage);
                let g = numbers(weights.extract(i), product.storage);
                let y = x * Pair::new(scales[n]) * g;
                let y = y * sigmoid::<Const<2>>(y, true);
                result.insert(i, word(y, product.storage));
            }
            quads[at] = result;
        }
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

/// The derivative of `silu(x · scale · γ)` by `x · scale`.
#[cube]
pub(super) fn slope(x: Pair, gamma: Pair, scale: f32) -> Pair {
    let y = x * Pair::new(scale) * gamma;
    let s = sigmoid::<Const<2>>(y, true);
    let rest = sigmoid::<Const<2>>(Pair::new(0.0f32) - y, true);
    (s + y * s * rest) * gamma
}

/// The thread's quad of γ for block `p`.
#[cube]
fn gamma_of(gamma: &[Quad], #[comptime] p: usize, #[comptime] product: Product) -> Quad {
    let k = depth_of(p, product);
    let mut weights = Quad::new(0u32);
    if k < comptime!(product.depth) {
        weights = gamma[k / comptime!(product.quad())];
    }
    weights
}

/// Leaves the plane's sums of `x · ∂(x scale)` in `norms`, `[planes, sequences]`; `d`: the gradient of the activated norm of `x`.
#[cube]
pub(super) fn leave_dots(
    x: &Array<Quad>,
    d: &Array<Quad>,
    gamma: &[Quad],
    scales: &Array<f32>,
    norms: &mut [f32],
    #[comptime] count: usize,
    #[comptime] cols: usize,
    #[comptime] product: Product,
) {
    let mut sums = Array::<f32>::new(cols);
    #[unroll]
    for n in 0..cols {
        sums[n] = 0.0f32;
    }
    #[unroll]
    for p in 0..count {
        let weights = gamma_of(gamma, p, product);
        #[unroll]
        for n in 0..cols {
            let (of_x, of_d) = (x[comptime!(n * count + p)], d[comptime!(n * count + p)]);
            #[unroll]
            for i in 0..4usize {
                let x = numbers(of_x.extract(i), product.storage);
                let g = numbers(weights.extract(i), product.storage);
                let d = numbers(of_d.extract(i), product.storage);
                let terms = x * d * slope(x, g, scales[n]);
                sums[n] += terms.extract(0usize) + terms.extract(1usize);
            }
        }
    }
    #[unroll]
    for n in 0..cols {
        let mut sum = sums[n];
        sum += shuffle_xor(sum, 1u32);
        sum += shuffle_xor(sum, 2u32);
        if UNIT_POS_X % 4 == 0 {
            let sequence = n * 8 + UNIT_POS_X as usize / 4;
            norms[UNIT_POS_Y as usize * comptime!(8 * cols) + sequence] = sum;
        }
    }
}

/// Replaces the gradient of the activated norm of `x` by that of `x`, with what the planes left.
#[cube]
pub(super) fn normalize_back(
    x: &Array<Quad>,
    d: &mut Array<Quad>,
    gamma: &[Quad],
    scales: &Array<f32>,
    norms: &[f32],
    #[comptime] count: usize,
    #[comptime] cols: usize,
    #[comptime] product: Product,
) {
    #[unroll]
    for n in 0..cols {
        let dot = row_sum(norms, 0usize, n, cols, product);
        let scale = scales[n];
        let back = dot * scale * scale * scale / comptime!(product.depth as f32);
        #[unroll]
        for p in 0..count {
            let weights = gamma_of(gamma, p, product);
            let at = comptime!(n * count + p);
            let (of_x, of_d) = (x[at], d[at]);
            let mut result = Quad::new(0u32);
            #[unroll]
            for i in 0..4usize {
                let x = numbers(of_x.extract(i), product.storage);
                let g = numbers(weights.extract(i), product.storage);
                let inner = numbers(of_d.extract(i), product.storage) * slope(x, g, scale);
                let d_x = inner * Pair::new(scale) - x * Pair::new(back);
                result.insert(i, word(d_x, product.storage));
            }
            d[at] = result;
        }
    }
}
