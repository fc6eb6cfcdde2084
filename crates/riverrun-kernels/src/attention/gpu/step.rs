//! A step of a stream: one query of each head over a ring of keys and values, which the step adds its own to. The position comes
//! from memory, so the launch is the same at every step.
//!
//! A cube takes a part of the keys of a head, [`TILE`] at a time, and a second kernel joins the parts, in a fixed order. With one
//! query the time is that of reading the keys and values, so the parts are as many as fill a GPU.

use cubecl::client::Client;
use cubecl::ir::ElemType;
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::score::{Rule, Sizes, SizesLaunch, score};
use crate::Error;
use crate::attention::Problem;
use crate::gpu::buffer::{expect, vector_width};
use crate::gpu::math::exp_of_negative_number;
use crate::gpu::storage::{Storage, narrow, widen};
use crate::gpu::{Dtype, address, buffer, grid, ptx};

/// Threads of a cube.
const UNITS: usize = 256;

/// Keys of a tile.
const TILE: usize = 64;

/// Threads that share the product of the query and a key.
const LANES: usize = UNITS / TILE;

/// Cubes that fill a GPU.
const CUBES: usize = 256;

/// The most parts of a ring.
const PARTS: usize = 64;

/// Buffers of a step, all contiguous.
#[derive(Debug, Clone)]
pub struct Step {
    /// `[B, H + 2 Hk, D]`: queries beside keys beside values of the step.
    pub qkv: Handle,
    /// `[B, R, Hk, D]`; the step's keys are written to place `position mod R`.
    pub keys: Handle,
    /// `[B, R, Hk, D]`, as the keys.
    pub values: Handle,
    /// `[1]`: the steps before this one.
    pub position: Handle,
    /// The type of the position.
    pub index: ElemType,
    /// `[B, H, D]`, written.
    pub o: Handle,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Config {
    /// Vectors of a head.
    vectors: usize,
    /// Numbers of a vector.
    vector: usize,
    storage: Storage,
    rule: Rule,
}

impl Config {
    /// Vectors of a query that a thread multiplies.
    fn each(&self) -> usize {
        self.vectors.div_ceil(LANES)
    }

    /// Keys of a tile whose values are added at a time.
    fn groups(&self) -> usize {
        UNITS / self.vectors
    }
}

/// Where a cube's rows are, in vectors, and its keys.
#[derive(CubeType, Clone, Copy)]
struct Place {
    /// The first key of the head in the ring.
    base: usize,
    /// From key to key.
    stride: usize,
    /// The number of the step's key in the ring.
    own: usize,
}

/// A vector of a key or value: of the step, at `step` in `qkv`, or of the ring.
#[cube]
fn row<S: Numeric, W: Size, N: Size>(
    qkv: &[Vector<S, W>],
    ring: &[Vector<S, W>],
    step: usize,
    key: usize,
    channel: usize,
    place: &Place,
    #[comptime] config: Config,
) -> Vector<f32, N> {
    // A cube of another head may write the step's place in the ring meanwhile.
    let mut stored = qkv[step + channel];
    if key != place.own {
        stored = ring[place.base + key * place.stride + channel];
    }
    widen::<S, W, N>(stored, config.storage)
}

/// Cubes: at least one for each part of each head of each sequence.
#[cube(launch_unchecked, address_type = "dynamic")]
fn attention_step<I: Int, S: Numeric, W: Size, N: Size>(
    qkv: &[Vector<S, W>],
    position: &[I],
    keys: &mut [Vector<S, W>],
    values: &mut [Vector<S, W>],
    sums: &mut [Vector<f32, N>],
    totals: &mut [f32],
    cubes: usize,
    parts: usize,
    per_part: usize,
    sizes: Sizes,
    #[comptime] config: Config,
    #[define(I)] _index: ElemType,
    #[define(S)] _dtype: ElemType,
) {
    if CUBE_POS >= cubes {
        terminate!();
    }
    let mut products = Shared::<[f32]>::new_slice(UNITS);
    let mut scores = Shared::<[f32]>::new_slice(TILE);
    let mut weights = Shared::<[f32]>::new_slice(TILE);
    let mut meeting = Shared::<[f32]>::new_slice(comptime!(UNITS * config.vector));
    let (vectors, groups, each) = comptime!((config.vectors, config.groups(), config.each()));
    let unit = UNIT_POS as usize;
    let (part, lane) = (CUBE_POS % parts, CUBE_POS / parts);
    let (sequence, head) = (lane / sizes.heads, lane % sizes.heads);
    let group = sizes.heads / sizes.key_heads;
    let key_head = head / group;
    let packed = sequence * (sizes.heads + 2 * sizes.key_heads);
    let query = (packed + head) * vectors;
    let key_step = (packed + sizes.heads + key_head) * vectors;
    let value_step = key_step + sizes.key_heads * vectors;
    let at = usize::cast_from(position[0]);
    let place = Place {
        base: (sequence * sizes.keys * sizes.key_heads + key_head) * vectors,
        stride: sizes.key_heads * vectors,
        own: at % sizes.keys,
    };
    let first = part * per_part;
    let end = (first + per_part).min((at + 1).min(sizes.keys));

    let (key_of, share) = (unit / LANES, unit % LANES);
    let mut q = Array::<Vector<f32, N>>::new(each);
    #[unroll]
    for i in 0..each {
        let channel = i * LANES + share;
        q[i] = Vector::<f32, N>::new(0.0f32);
        if channel < vectors {
            q[i] = widen::<S, W, N>(qkv[query + channel], config.storage);
        }
    }
    let (channel, sub) = (unit % vectors, unit / vectors);
    let mut sum = Vector::<f32, N>::new(0.0f32);
    let mut top = f32::cast_from(f32::MIN);
    let mut total = 0.0f32;
    let mut tile = first;
    while tile < end {
        let key = tile + key_of;
        let mut product = Vector::<f32, N>::new(0.0f32);
        if key < end {
            #[unroll]
            for i in 0..each {
                let channel = i * LANES + share;
                if channel < vectors {
                    let k = row::<S, W, N>(qkv, &*keys, key_step, key, channel, &place, config);
                    product = fma(q[i], k, product);
                }
            }
        }
        let mut own = 0.0f32;
        #[unroll]
        for i in 0..comptime!(config.vector) {
            own += product.extract(i);
        }
        products[unit] = own;
        sync_cube();
        let inside = unit < TILE && tile + unit < end;
        if unit < TILE {
            let mut product = 0.0f32;
            #[unroll]
            for i in 0..LANES {
                product += products[unit * LANES + i];
            }
            let (value, _slope) = score(product, &sizes, config.rule);
            scores[unit] = select(inside, value, f32::cast_from(f32::MIN));
        }
        sync_cube();
        let mut highest = top;
        #[unroll]
        for i in 0..TILE {
            highest = highest.max(scores[i]);
        }
        // A distance of more than this makes 0 in any case.
        let factor = exp_of_negative_number((highest - top).min(1000.0f32), config.rule.ptx);
        top = highest;
        if unit < TILE {
            let p =
                exp_of_negative_number((highest - scores[unit]).min(1000.0f32), config.rule.ptx);
            let p = select(inside, p, 0.0f32);
            weights[unit] = p;
            total = total * factor + p;
        }
        sync_cube();
        sum *= Vector::<f32, N>::new(factor);
        if sub < groups {
            let mut i = sub;
            while i < TILE && tile + i < end {
                let v =
                    row::<S, W, N>(qkv, &*values, value_step, tile + i, channel, &place, config);
                sum = fma(Vector::<f32, N>::new(weights[i]), v, sum);
                i += groups;
            }
        }
        tile += TILE;
    }
    #[unroll]
    for i in 0..comptime!(config.vector) {
        meeting[i * UNITS + unit] = sum.extract(i);
    }
    products[unit] = total;
    sync_cube();
    if unit < vectors {
        let mut all = Vector::<f32, N>::new(0.0f32);
        #[unroll]
        for i in 0..comptime!(config.vector) {
            let mut one = 0.0f32;
            for sub in 0..groups {
                one += meeting[i * UNITS + sub * vectors + unit];
            }
            all.insert(i, one);
        }
        sums[CUBE_POS * vectors + unit] = all;
        if head % group == 0 && place.own >= first && place.own < first + per_part {
            let to = place.base + place.own * place.stride + unit;
            keys[to] = qkv[key_step + unit];
            values[to] = qkv[value_step + unit];
        }
    }
    if unit == 0 {
        let mut all = 0.0f32;
        for i in 0..TILE {
            all += products[i];
        }
        totals[CUBE_POS * 2] = top;
        totals[CUBE_POS * 2 + 1] = all;
    }
}

/// Joins the parts of each head. Threads: a vector of `o` each.
#[cube(launch_unchecked, address_type = "dynamic")]
fn attention_join<S: Numeric, W: Size, N: Size>(
    sums: &[Vector<f32, N>],
    totals: &[f32],
    o: &mut [Vector<S, W>],
    count: usize,
    parts: usize,
    #[comptime] config: Config,
    #[define(S)] _dtype: ElemType,
) {
    if ABSOLUTE_POS >= count {
        terminate!();
    }
    let vectors = comptime!(config.vectors);
    let (lane, channel) = (ABSOLUTE_POS / vectors, ABSOLUTE_POS % vectors);
    let first = lane * parts;
    let mut top = f32::cast_from(f32::MIN);
    for part in 0..parts {
        top = top.max(totals[(first + part) * 2]);
    }
    let mut total = 0.0f32;
    let mut sum = Vector::<f32, N>::new(0.0f32);
    for part in 0..parts {
        let at = first + part;
        let far = (top - totals[at * 2]).min(1000.0f32);
        let factor = exp_of_negative_number(far, config.rule.ptx);
        total = fma(factor, totals[at * 2 + 1], total);
        sum = fma(
            Vector::<f32, N>::new(factor),
            sums[at * vectors + channel],
            sum,
        );
    }
    let y = sum * Vector::<f32, N>::new(1.0f32 / total);
    o[ABSOLUTE_POS] = narrow::<S, W, N>(y, config.storage);
}

/// Writes the step's keys and values into the ring and computes `o` over the last `min(position + 1, R)` of them. The problem has
/// one query and `R` keys, which need not be in order; of its options the scale and the cap are used.
///
/// # Errors
/// The errors of [`Problem::check`], [`Error::Dtype`], [`Error::Length`]; [`Error::Attention`] for another number of queries or a ring
/// without room; nothing has been launched then.
pub fn step(client: &Client, problem: &Problem, dtype: Dtype, args: &Step) -> Result<(), Error> {
    dtype.check(client)?;
    problem.check(false)?;
    let shape = problem.shape;
    if shape.queries != 1 || !(1..=u32::MAX as usize).contains(&shape.keys) {
        let (queries, keys) = (shape.queries, shape.keys);
        return Err(Error::Attention {
            reason: format!(
                "expected a step of one query and at least one key, found {queries} and {keys}"
            ),
        });
    }
    let packed = shape
        .batch
        .saturating_mul(shape.packed_heads())
        .saturating_mul(shape.dim);
    let (ring, rows) = (shape.key_elements(), shape.rows());
    expect(
        dtype.size(),
        [
            ("qkv", Some(&args.qkv), packed),
            ("keys", Some(&args.keys), ring),
            ("values", Some(&args.values), ring),
            ("o", Some(&args.o), shape.query_elements()),
        ],
    )?;
    expect(args.index.size(), [("position", Some(&args.position), 1)])?;
    if rows == 0 {
        return Ok(());
    }
    let vector = vector_width(client, dtype, 16, shape.dim);
    let storage = Storage::choose(client, dtype, vector);
    let config = Config {
        vectors: shape.dim / vector,
        vector,
        storage,
        rule: Rule {
            causal: false,
            window: false,
            softcap: problem.softcap.is_some(),
            reset: false,
            ptx: ptx(client),
        },
    };
    let parts = CUBES.div_ceil(rows).clamp(1, PARTS);
    let per_part = shape.keys.div_ceil(parts).next_multiple_of(TILE);
    let parts = shape.keys.div_ceil(per_part);
    let cubes = rows * parts;
    let numbers = cubes * shape.dim;
    let (sums, totals) = (client.empty(numbers * 4), client.empty(cubes * 8));
    let address = address(ring.max(numbers), dtype);
    let sizes = SizesLaunch::new(
        1,
        shape.keys,
        shape.heads,
        shape.key_heads,
        shape.keys,
        problem.scale as f32,
        problem.softcap.unwrap_or(1.0) as f32,
    );
    let outputs = rows * config.vectors;
    // SAFETY: the buffers have been checked or made for the shape, the place in the ring is a remainder, and cubes and threads past
    // the last end at once.
    unsafe {
        attention_step::launch_unchecked(
            client,
            grid(client, cubes),
            CubeDim::new_1d(UNITS as u32),
            address,
            storage.width(vector),
            vector,
            buffer(&args.qkv, packed, vector),
            buffer(&args.position, 1, 1),
            buffer(&args.keys, ring, vector),
            buffer(&args.values, ring, vector),
            buffer(&sums, numbers, vector),
            buffer(&totals, cubes * 2, 1),
            cubes,
            parts,
            per_part,
            sizes,
            config,
            args.index,
            storage.elem(dtype),
        );
        attention_join::launch_unchecked(
            client,
            grid(client, outputs.div_ceil(UNITS)),
            CubeDim::new_1d(UNITS as u32),
            address,
            storage.width(vector),
            vector,
            buffer(&sums, numbers, vector),
            buffer(&totals, cubes * 2, 1),
            buffer(&args.o, shape.query_elements(), vector),
            outputs,
            parts,
            config,
            storage.elem(dtype),
        );
    }
    Ok(())
}
