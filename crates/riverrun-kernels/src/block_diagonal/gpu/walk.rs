//! One thread for each block of each sequence: its state in registers, time in a loop, [`Config::len`] steps loaded at a
//! time so that their loads are in flight together.

use cubecl::ir::ElemType;
use cubecl::prelude::*;

/// The values that change the generated code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Config {
    /// Channels of a block, `P`.
    pub size: usize,
    /// Elements of a vector; divides `P`.
    pub vector: usize,
    /// Steps loaded at a time.
    pub len: usize,
    pub reverse: bool,
    pub h0: bool,
    pub reset: bool,
    /// Backward only: `∂L/∂h_last` exists.
    pub d_h_last: bool,
}

/// Loads `count` vectors, from vector `at` on, into `out` from element `to` on.
#[cube]
fn load<F: Numeric, W: Size>(
    x: &[Vector<F, W>],
    at: usize,
    out: &mut Array<f32>,
    #[comptime] to: usize,
    #[comptime] count: usize,
    #[comptime] width: usize,
) {
    #[unroll]
    for k in 0..count {
        let vector = x[at + k];
        #[unroll]
        for l in 0..width {
            out[to + k * width + l] = f32::cast_from(vector.extract(l));
        }
    }
}

/// The reverse of [`load`].
#[cube]
fn store<F: Numeric, W: Size>(
    x: &mut [Vector<F, W>],
    at: usize,
    from: &Array<f32>,
    #[comptime] count: usize,
    #[comptime] width: usize,
) {
    #[unroll]
    for k in 0..count {
        let mut vector = Vector::<F, W>::new(F::from_int(0));
        #[unroll]
        for l in 0..width {
            vector.insert(l, F::cast_from(from[k * width + l]));
        }
        x[at + k] = vector;
    }
}

/// The row of step `s` of a sequence; steps past the end count as the last.
#[cube]
fn row(sequence: usize, s: usize, steps: usize, #[comptime] reverse: bool) -> usize {
    let s = s.min(steps - 1);
    if comptime!(reverse) {
        sequence * steps + (steps - 1 - s)
    } else {
        sequence * steps + s
    }
}

/// Threads: `lanes`, blocks times sequences.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn walk_forward<F: Numeric, W: Size>(
    a: &[Vector<F, W>],
    b: &[Vector<F, W>],
    h0: &[Vector<F, W>],
    reset: &[F],
    h: &mut [Vector<F, W>],
    lanes: usize,
    steps: usize,
    blocks: usize,
    #[comptime] config: Config,
    #[define(F)] _dtype: ElemType,
) {
    let lane = ABSOLUTE_POS;
    if lane >= lanes {
        terminate!();
    }
    let (p, w, len) = comptime!((config.size, config.vector, config.len));
    let (row_vectors, matrix_vectors) = comptime!((p / w, p * p / w));
    let sequence = lane / blocks;
    let block = lane % blocks;
    let mut state = Array::<f32>::new(p);
    let mut next = Array::<f32>::new(p);
    let mut matrices = Array::<f32>::new(comptime!(len * p * p));
    let mut inputs = Array::<f32>::new(comptime!(len * p));
    let mut cuts = Array::<u32>::new(len);
    if comptime!(config.h0) {
        load::<F, W>(h0, lane * row_vectors, &mut state, 0usize, row_vectors, w);
    } else {
        #[unroll]
        for i in 0..p {
            state[i] = 0.0f32;
        }
    }
    let tiles = steps.div_ceil(len);
    for tile in 0..tiles {
        let first = tile * len;
        #[unroll]
        for u in 0..len {
            let row = row(sequence, first + u, steps, config.reverse);
            let at = row * blocks + block;
            load::<F, W>(
                a,
                at * matrix_vectors,
                &mut matrices,
                comptime!(u * p * p),
                matrix_vectors,
                w,
            );
            load::<F, W>(
                b,
                at * row_vectors,
                &mut inputs,
                comptime!(u * p),
                row_vectors,
                w,
            );
            if comptime!(config.reset) {
                cuts[u] = u32::cast_from(reset[row] != F::from_int(0));
            }
        }
        #[unroll]
        for u in 0..len {
            let s = first + u;
            if s < steps {
                if comptime!(config.reset) {
                    #[unroll]
                    for i in 0..p {
                        state[i] = select(cuts[u] != 0, 0.0f32, state[i]);
                    }
                }
                #[unroll]
                for i in 0..p {
                    let mut sum = inputs[u * p + i];
                    #[unroll]
                    for j in 0..p {
                        sum = fma(matrices[u * p * p + i * p + j], state[j], sum);
                    }
                    next[i] = sum;
                }
                #[unroll]
                for i in 0..p {
                    state[i] = next[i];
                }
                let at = row(sequence, s, steps, config.reverse) * blocks + block;
                store::<F, W>(h, at * row_vectors, &state, row_vectors, w);
            }
        }
    }
}

/// As [`walk_forward`], from the last step to the first.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn walk_backward<F: Numeric, W: Size>(
    a: &[Vector<F, W>],
    h: &[Vector<F, W>],
    h0: &[Vector<F, W>],
    d_h: &[Vector<F, W>],
    d_h_last: &[Vector<F, W>],
    reset: &[F],
    d_a: &mut [Vector<F, W>],
    d_b: &mut [Vector<F, W>],
    d_h0: &mut [Vector<F, W>],
    lanes: usize,
    steps: usize,
    blocks: usize,
    #[comptime] config: Config,
    #[define(F)] _dtype: ElemType,
) {
    let lane = ABSOLUTE_POS;
    if lane >= lanes {
        terminate!();
    }
    let (p, w, len) = comptime!((config.size, config.vector, config.len));
    let (row_vectors, matrix_vectors) = comptime!((p / w, p * p / w));
    let sequence = lane / blocks;
    let block = lane % blocks;
    let mut later = Array::<f32>::new(p);
    let mut total = Array::<f32>::new(p);
    let mut product = Array::<f32>::new(comptime!(p * p));
    let mut matrices = Array::<f32>::new(comptime!(len * p * p));
    let mut before = Array::<f32>::new(comptime!(len * p));
    let mut inputs = Array::<f32>::new(comptime!(len * p));
    let mut cuts = Array::<u32>::new(len);
    if comptime!(config.d_h_last) {
        load::<F, W>(
            d_h_last,
            lane * row_vectors,
            &mut later,
            0usize,
            row_vectors,
            w,
        );
    } else {
        #[unroll]
        for i in 0..p {
            later[i] = 0.0f32;
        }
    }
    let tiles = steps.div_ceil(len);
    for tile in 0..tiles {
        let first = tile * len;
        #[unroll]
        for u in 0..len {
            // Backward steps count from the last one; those past the end count as the first.
            let s = steps - 1 - (first + u).min(steps - 1);
            let row_at = row(sequence, s, steps, config.reverse);
            let at = row_at * blocks + block;
            load::<F, W>(
                a,
                at * matrix_vectors,
                &mut matrices,
                comptime!(u * p * p),
                matrix_vectors,
                w,
            );
            load::<F, W>(
                d_h,
                at * row_vectors,
                &mut inputs,
                comptime!(u * p),
                row_vectors,
                w,
            );
            if s > 0 {
                let at = row(sequence, s - 1, steps, config.reverse) * blocks + block;
                load::<F, W>(
                    h,
                    at * row_vectors,
                    &mut before,
                    comptime!(u * p),
                    row_vectors,
                    w,
                );
            } else if comptime!(config.h0) {
                load::<F, W>(
                    h0,
                    lane * row_vectors,
                    &mut before,
                    comptime!(u * p),
                    row_vectors,
                    w,
                );
            } else {
                #[unroll]
                for i in 0..p {
                    before[u * p + i] = 0.0f32;
                }
            }
            if comptime!(config.reset) {
                cuts[u] = u32::cast_from(reset[row_at] != F::from_int(0));
            }
        }
        #[unroll]
        for u in 0..len {
            if first + u < steps {
                let s = steps - 1 - (first + u);
                let at = row(sequence, s, steps, config.reverse) * blocks + block;
                if comptime!(config.reset) {
                    #[unroll]
                    for i in 0..p {
                        before[u * p + i] = select(cuts[u] != 0, 0.0f32, before[u * p + i]);
                    }
                }
                #[unroll]
                for i in 0..p {
                    total[i] = inputs[u * p + i] + later[i];
                    #[unroll]
                    for j in 0..p {
                        product[i * p + j] = total[i] * before[u * p + j];
                    }
                }
                store::<F, W>(d_b, at * row_vectors, &total, row_vectors, w);
                store::<F, W>(d_a, at * matrix_vectors, &product, matrix_vectors, w);
                #[unroll]
                for j in 0..p {
                    let mut sum = 0.0f32;
                    #[unroll]
                    for i in 0..p {
                        sum = fma(matrices[u * p * p + i * p + j], total[i], sum);
                    }
                    if comptime!(config.reset) {
                        sum = select(cuts[u] != 0, 0.0f32, sum);
                    }
                    later[j] = sum;
                }
            }
        }
    }
    store::<F, W>(d_h0, lane * row_vectors, &later, row_vectors, w);
}
