//! The backward pass through the steps, the last one first.
//!
//! | phase | cubes | waits for | publishes |
//! | --- | --- | --- | --- |
//! | `l` | one for each 16 logits, or for each categorical of more | `∂n(e₂)` of the step after | `∂l` |
//! | `n(p)` | one for each 16 numbers | `∂l` | `∂n(p)` |
//! | `d'` | all | `∂n(p)`; `∂x`, `∂n(e₁)` of the step after | gradients of the gates |
//! | `n(x)` | all | those of their block | sums of `x · ∂(x scale)` |
//! | `x` | all | all those sums | `∂x` |
//! | `n(e₁)`, `n(e₂)` | one for each 16 numbers | `∂x` | `∂n(e₁)`, `∂n(e₂)` |
//!
//! One round more makes the gradients of the state before the first step. As forward, the gradient of a norm is made by those who
//! read: of `e` and `p` every reader has the whole row. The scales of all rows are computed before the launch.

// An outer `if` on a comptime value chooses code; joined with the inner one it would only choose what runs.
#![allow(clippy::collapsible_if)]

use cubecl::prelude::*;

use super::buffers::{BackwardInput, BackwardOutput, Span};
use super::categorical::logits_group;
use super::norm::*;
use super::parts::*;
use super::plan::{Config, GROUP, Role};
use super::product::*;
use crate::gpu::exchange::{ABSENT, address, address_mut, write_shared};
use crate::gpu::full_plane::shuffle_xor;
use crate::gpu::lock::{release, report_progress};
use crate::gpu::math::{sigmoid, tanh_number};
use crate::gpu::words::{Pair, fetch, pack, publish, put, unpack};

/// Inputs whose scales are given, in their order.
const DETER: usize = 0;
const STOCH: usize = 1;
const HIDDEN: usize = 2;
const POSTERIOR: usize = 3;

/// Makes of the gradients of an activated norm, which it waits for, those of the norm's input, both `[B, T, H]`: the rows at time
/// `t`. Returns whether a wait has timed out.
#[cube]
fn of_norm(
    quads: &mut Array<Quad>,
    x: u64,
    d: u64,
    gamma: &[Quad],
    scales: &[f32],
    norms: &mut [f32],
    t: usize,
    span: &Span,
    part: &Part,
    gave_up: bool,
    #[comptime] which: usize,
    #[comptime] product: Product,
    #[comptime] config: Config,
) -> bool {
    let cols = comptime!(config.cols);
    let count = comptime!(product.blocks());
    let size = comptime!(config.storage.size() as u64);
    let start = u64::cast_from(t * comptime!(config.hidden)) * size;
    let stride = u64::cast_from(span.steps * comptime!(config.hidden)) * size;
    let mut of_x = Array::<Quad>::new(comptime!(count * cols));
    let failed = read(
        &mut of_x,
        x + start,
        stride,
        part,
        false,
        gave_up,
        0usize,
        count,
        cols,
        product,
    );
    let mut own = Array::<f32>::new(cols);
    #[unroll]
    for n in 0..cols {
        let row = (part.row + n * 8 + UNIT_POS_X as usize / 4).min(part.batch - 1);
        own[n] = scales[(which * part.batch + row) * span.steps + t];
    }
    let failed = read(
        quads,
        d + start,
        stride,
        part,
        true,
        failed,
        0usize,
        count,
        cols,
        product,
    );
    leave_dots(&of_x, &*quads, gamma, &own, norms, count, cols, product);
    sync_cube();
    normalize_back(&of_x, quads, gamma, &own, &*norms, count, cols, product);
    failed
}

#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn sequence_backward<R: Numeric>(
    input: BackwardInput,
    reset: &[R],
    mut output: BackwardOutput,
    control: &[u32],
    launch_words: &mut [Atomic<u32>],
    span: Span,
    #[comptime] config: Config,
    #[define(R)] _storage: ElemType,
) {
    let steps = span.steps;
    // A launch of no steps is for compiling.
    if steps == 0 {
        terminate!();
    }
    let products = comptime!(config.products);
    let storage = comptime!(config.storage);
    let (cols, per) = comptime!((config.cols, config.per));
    let (deter, hidden, logits) = comptime!((config.deter, config.hidden, config.logits));
    let (width, numbers) = comptime!((config.width, config.row()));
    let stride = comptime!(config.stride());
    let size = comptime!(storage.size() as u64);
    let control = address::<u32>(control);
    let cube = CUBE_POS % comptime!(config.cubes);
    let part = Part {
        row: span.first + CUBE_POS / comptime!(config.cubes) * comptime!(config.sequences()),
        batch: span.batch,
        control,
    };
    let rows = span.batch * steps;
    let mut held = Shared::<[Quad]>::new_slice(comptime!(config.held.max(1)));
    let mut partial = Shared::<[f32]>::new_slice(comptime!(config.sums()));
    let mut norms = Shared::<[f32]>::new_slice(comptime!(config.norms()));
    let mut scores = Shared::<[f32]>::new_slice(comptime!(config.scores()));
    let mut exponentials = Shared::<[f32]>::new_slice(comptime!(config.scores()));
    let e_deter_at = address::<u32>(&input.deter);
    let e_stoch_at = address::<u32>(&input.stoch);
    let p_at = address::<u32>(&input.posterior);
    let deter_at = address_mut::<u32>(&mut output.deter);
    let stoch_at = address_mut::<u32>(&mut output.stoch);
    let gates_at = address_mut::<u32>(&mut output.gates);
    let posterior_at = address_mut::<u32>(&mut output.posterior);
    let logits_at = address_mut::<u32>(&mut output.logits);
    let x_at = address_mut::<u32>(&mut output.x);
    let dots_at = address_mut::<u32>(&mut output.dots);

    let with_units = cube < comptime!(deter / GROUP / per);
    let first = cube * per;
    let block = first * comptime!(GROUP) / width;
    let deter_group = group_of(cube, comptime!(Role::Deter), config);
    let stoch_group = group_of(cube, comptime!(Role::Stoch), config);
    let posterior_group = group_of(cube, comptime!(Role::Posterior), config);
    let draw_group = group_of(cube, comptime!(Role::Logits), config);
    let weights = &input.weights;
    if with_units {
        hold(weights, &mut held, first, per, products.gates);
        hold(weights, &mut held, first, per, products.blocks);
        hold(weights, &mut held, first, per, products.posterior);
        hold(weights, &mut held, first, per, products.deter);
    }
    if deter_group < comptime!(products.inputs_deter.groups) {
        hold(
            weights,
            &mut held,
            deter_group,
            1usize,
            products.inputs_deter,
        );
    }
    if stoch_group < comptime!(products.inputs_stoch.groups) {
        hold(
            weights,
            &mut held,
            stoch_group,
            1usize,
            products.inputs_stoch,
        );
    }
    if posterior_group < comptime!(products.logits.groups) {
        hold(weights, &mut held, posterior_group, 1usize, products.logits);
    }
    if draw_group < comptime!(products.stoch.groups) {
        hold(weights, &mut held, draw_group, 1usize, products.stoch);
    }
    sync_cube();

    let own = item(&part, 0usize, GROUP, config);
    // What the gradient of d' leaves to d, of the step after.
    let mut kept = Array::<Pair>::new(per);
    #[unroll]
    for j in 0..per {
        kept[j] = Pair::new(0.0f32);
    }
    let mut failed = false;
    for i in 0..steps + 1 {
        if CUBE_POS == 0 && UNIT_POS == 0 {
            report_progress(control, i);
        }
        // The step after, the step, and whether there are such steps.
        let next = (steps - i).min(steps - 1);
        let t = steps - (i + 1).min(steps);
        let carries = i > 0;
        let runs = i < steps;
        let place = own.row * steps + t;
        let mut restart = false;
        // Whether each sequence that the thread reads starts again in the step after.
        let mut restarts = Array::<bool>::new(cols);
        #[unroll]
        for n in 0..cols {
            restarts[n] = false;
        }
        if comptime!(config.reset) {
            restart = reset[own.row.min(part.batch - 1) * steps + t] != R::from_int(0);
            #[unroll]
            for n in 0..cols {
                let row = (part.row + n * 8 + UNIT_POS_X as usize / 4).min(part.batch - 1);
                restarts[n] = reset[row * steps + next] != R::from_int(0);
            }
        }

        // l.
        if draw_group < comptime!(products.stoch.groups) {
            let count = comptime!(products.stoch.blocks());
            let mut sums = zeros(comptime!(products.stoch.tiles * cols));
            if carries {
                let mut quads = Array::<Quad>::new(comptime!(count * cols));
                failed = of_norm(
                    &mut quads,
                    e_stoch_at,
                    stoch_at,
                    &input.stoch_norm,
                    &input.scales,
                    &mut norms,
                    next,
                    &span,
                    &part,
                    failed,
                    STOCH,
                    products.stoch,
                    config,
                );
                clear(&mut quads, &restarts, count, cols);
                multiply(
                    &quads,
                    &mut sums,
                    weights,
                    &held,
                    draw_group,
                    0usize,
                    0usize,
                    count,
                    cols,
                    products.stoch,
                );
            }
            leave(&sums, &mut partial, cols, stride, products.stoch);
            sync_cube();
            if runs {
                logits_group(
                    &input.states,
                    &input.d_states,
                    logits_at,
                    &partial,
                    &mut scores,
                    &mut exponentials,
                    &part,
                    draw_group,
                    t,
                    &span,
                    config,
                );
            } else {
                #[unroll]
                for o in 0..comptime!(config.items()) {
                    let own = item(&part, o, comptime!(config.draws()), config);
                    if own.inside {
                        let sum = total(&partial, own.unit, own.sequence, stride, products.stoch);
                        let unit = draw_group * comptime!(config.draws()) + own.unit;
                        put(
                            &mut output.s0,
                            own.row * logits + unit,
                            pack(sum, storage),
                            storage,
                        );
                    }
                }
            }
            sync_cube();
        }

        // n(p).
        if posterior_group < comptime!(products.logits.groups) {
            if runs {
                let source = Source {
                    at: logits_at + u64::cast_from(t * logits) * size,
                    stride: u64::cast_from(steps * logits) * size,
                };
                failed = publish_sums(
                    weights,
                    &held,
                    &mut partial,
                    &source,
                    Pair::new(0.0f32),
                    true,
                    posterior_at,
                    place * hidden,
                    &part,
                    posterior_group,
                    true,
                    failed,
                    products.logits,
                    config,
                );
            }
        }

        if with_units {
            // d'.
            let x_count = comptime!(products.blocks.blocks());
            let e_count = comptime!(products.deter.blocks());
            let p_count = comptime!(products.posterior.blocks());
            let mut of_x = Array::<Quad>::new(comptime!(x_count * cols));
            let mut of_e = Array::<Quad>::new(comptime!(e_count * cols));
            let mut of_p = Array::<Quad>::new(comptime!(p_count * cols));
            if carries {
                failed = read(
                    &mut of_x,
                    x_at + u64::cast_from(next * deter + block * width) * size,
                    u64::cast_from(steps * deter) * size,
                    &part,
                    true,
                    failed,
                    0usize,
                    x_count,
                    cols,
                    products.blocks,
                );
                failed = of_norm(
                    &mut of_e,
                    e_deter_at,
                    deter_at,
                    &input.deter_norm,
                    &input.scales,
                    &mut norms,
                    next,
                    &span,
                    &part,
                    failed,
                    DETER,
                    products.deter,
                    config,
                );
                clear(&mut of_x, &restarts, x_count, cols);
                clear(&mut of_e, &restarts, e_count, cols);
                // The sums have been read.
                sync_cube();
            } else {
                none(&mut of_x, comptime!(x_count * cols));
                none(&mut of_e, comptime!(e_count * cols));
            }
            if runs {
                failed = of_norm(
                    &mut of_p,
                    p_at,
                    posterior_at,
                    &input.posterior_norm,
                    &input.scales,
                    &mut norms,
                    t,
                    &span,
                    &part,
                    failed,
                    POSTERIOR,
                    products.posterior,
                    config,
                );
            } else {
                none(&mut of_p, comptime!(p_count * cols));
            }
            #[unroll]
            for j in 0..per {
                let group = first + j;
                let unit = group * comptime!(GROUP) + own.unit;
                let mut sums = zeros(cols);
                multiply(
                    &of_x,
                    &mut sums,
                    weights,
                    &held,
                    group,
                    j,
                    0usize,
                    x_count,
                    cols,
                    products.blocks,
                );
                multiply(
                    &of_e,
                    &mut sums,
                    weights,
                    &held,
                    group,
                    j,
                    0usize,
                    e_count,
                    cols,
                    products.deter,
                );
                multiply(
                    &of_p,
                    &mut sums,
                    weights,
                    &held,
                    group,
                    j,
                    0usize,
                    p_count,
                    cols,
                    products.posterior,
                );
                leave(&sums, &mut partial, cols, stride, products.blocks);
                sync_cube();
                if own.inside {
                    let d =
                        kept[j] + total(&partial, own.unit, own.sequence, stride, products.blocks);
                    if runs {
                        let given = fetch(&input.d_states, place * numbers + unit, storage);
                        let d = d + unpack(given, storage);
                        let at = (block * rows + place) * comptime!(3 * width) + unit % width;
                        let mut gates = Array::<Pair>::new(3usize);
                        #[unroll]
                        for gate in 0..3usize {
                            let word = fetch(&input.gates, at + gate * width, storage);
                            gates[gate] = unpack(word, storage);
                        }
                        let before =
                            unpack(fetch(&input.before, place * deter + unit, storage), storage);
                        let (zero, one) = (Pair::new(0.0f32), Pair::new(1.0f32));
                        let r = sigmoid::<Const<2>>(gates[0], true);
                        let open = sigmoid::<Const<2>>(zero - gates[0], true);
                        let u = sigmoid::<Const<2>>(gates[2] - one, true);
                        let keep = sigmoid::<Const<2>>(one - gates[2], true);
                        let inner = r * gates[1];
                        let mut y = zero;
                        #[unroll]
                        for k in 0..2usize {
                            y.insert(k, tanh_number(inner.extract(k), true));
                        }
                        let d_inner = d * u * (one - y * y);
                        let d_r = d_inner * gates[1] * r * open;
                        let d_u = d * (y - before) * u * keep;
                        publish(gates_at, at, pack(d_r, storage), storage);
                        publish(gates_at, at + width, pack(d_inner * r, storage), storage);
                        publish(
                            gates_at,
                            at + comptime!(2 * width),
                            pack(d_u, storage),
                            storage,
                        );
                        kept[j] = d * keep;
                        if restart {
                            kept[j] = zero;
                        }
                    } else {
                        put(
                            &mut output.d0,
                            own.row * deter + unit,
                            pack(d, storage),
                            storage,
                        );
                    }
                }
                sync_cube();
            }

            if runs {
                // n(x), and its sums.
                let source = Source {
                    at: gates_at + u64::cast_from((block * rows + t) * comptime!(3 * width)) * size,
                    stride: u64::cast_from(steps * comptime!(3 * width)) * size,
                };
                let mut inner = Array::<Pair>::new(per);
                let mut x = Array::<Pair>::new(per);
                let row = own.row.min(part.batch - 1);
                let scale = input.scales[(comptime!(HIDDEN) * part.batch + row) * steps + t];
                #[unroll]
                for j in 0..per {
                    let group = first + j;
                    let unit = group * comptime!(GROUP) + own.unit;
                    failed = plain(
                        weights,
                        &held,
                        &mut partial,
                        &source,
                        &part,
                        group,
                        true,
                        failed,
                        j,
                        products.gates,
                        config,
                    );
                    sync_cube();
                    x[j] = Pair::new(0.0f32);
                    inner[j] = Pair::new(0.0f32);
                    if own.inside {
                        let sum = total(&partial, own.unit, own.sequence, stride, products.gates);
                        let words = pack(sum, storage);
                        let at = (block * rows + place) * width + unit % width;
                        put(&mut output.hidden, at, words, storage);
                        x[j] = unpack(fetch(&input.x, place * deter + unit, storage), storage);
                        let gamma = unpack(fetch(&input.hidden_norm, unit, storage), storage);
                        inner[j] = unpack(words, storage) * slope(x[j], gamma, scale);
                    }
                    let terms = inner[j] * x[j];
                    // The eight threads of a sequence are neighbours.
                    let mut dot = terms.extract(0usize) + terms.extract(1usize);
                    dot += shuffle_xor(dot, 1u32);
                    dot += shuffle_xor(dot, 2u32);
                    dot += shuffle_xor(dot, 4u32);
                    if own.inside {
                        if own.unit == 0 {
                            let row =
                                dots_at + u64::cast_from(place * comptime!(4 * config.squares()));
                            let word = u32::reinterpret(dot).min(comptime!(ABSENT - 1));
                            write_shared(row + u64::cast_from(4 * group), word);
                            if group == comptime!(config.groups() - 1) {
                                #[unroll]
                                for pad in comptime!(config.groups())..comptime!(config.squares()) {
                                    write_shared(row + comptime!(4 * pad as u64), 0u32);
                                }
                            }
                        }
                    }
                    sync_cube();
                }
                // x.
                failed = row_sums(&mut norms, dots_at, t, &span, &part, failed, config);
                sync_cube();
                if own.inside {
                    let dot = norms[own.sequence];
                    let back = dot * scale * scale * scale / comptime!(deter as f32);
                    #[unroll]
                    for j in 0..per {
                        let unit = (first + j) * comptime!(GROUP) + own.unit;
                        let d_x = inner[j] * Pair::new(scale) - x[j] * Pair::new(back);
                        publish(x_at, place * deter + unit, pack(d_x, storage), storage);
                    }
                }
                sync_cube();
            }
        }

        // n(e).
        if runs {
            let source = Source {
                at: x_at + u64::cast_from(t * deter) * size,
                stride: u64::cast_from(steps * deter) * size,
            };
            if deter_group < comptime!(products.inputs_deter.groups) {
                failed = publish_sums(
                    weights,
                    &held,
                    &mut partial,
                    &source,
                    Pair::new(0.0f32),
                    true,
                    deter_at,
                    place * hidden,
                    &part,
                    deter_group,
                    true,
                    failed,
                    products.inputs_deter,
                    config,
                );
            }
            if stoch_group < comptime!(products.inputs_stoch.groups) {
                failed = publish_sums(
                    weights,
                    &held,
                    &mut partial,
                    &source,
                    Pair::new(0.0f32),
                    true,
                    stoch_at,
                    place * hidden,
                    &part,
                    stoch_group,
                    true,
                    failed,
                    products.inputs_stoch,
                    config,
                );
            }
        }
    }
    release(control, launch_words);
}
