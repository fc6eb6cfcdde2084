//! The kernel: every cube goes through the phases of a step in the same order, and has a part in some of them.
//!
//! | phase | cubes | waits for | publishes |
//! | --- | --- | --- | --- |
//! | `e₁`, `e₂` | one for each 16 numbers | `d`, `s` of the step before | `e` |
//! | `x` | all | `e` | `x`, sums of squares |
//! | `d'` | all | `x` of their block, all sums of squares | `d'` |
//! | `p` | one for each 16 numbers | `d'` | `p` |
//! | `s'` | one for each 16 logits, or for each categorical of more | `p` | `s'` |
//!
//! A phase waits for phases before it only, and all cubes run at once, so none waits for ever. Of each phase the cube's planes
//! read their part of the input once, multiply, and leave partial sums in shared memory; then a thread has two neighbouring
//! numbers of one sequence, the same ones at every step.

// An outer `if` on a comptime value chooses code; joined with the inner one it would only choose what runs.
#![allow(clippy::collapsible_if)]

use cubecl::prelude::*;

use super::buffers::{Input, Output, Span};
use super::categorical::draw_group;
use super::norm::*;
use super::parts::*;
use super::plan::{Config, GROUP, Role};
use super::product::*;
use crate::gpu::exchange::{ABSENT, address, address_mut, prefetch, write_shared};
use crate::gpu::full_plane::shuffle_xor;
use crate::gpu::lock::{release, report_progress};
use crate::gpu::math::{sigmoid, tanh_number};
use crate::gpu::words::{Pair, fetch, pack, publish, unpack};

#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn sequence_forward<R: Numeric>(
    input: Input,
    reset: &[R],
    mut output: Output,
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
    let mut held = Shared::<[Quad]>::new_slice(comptime!(config.held.max(1)));
    let mut partial = Shared::<[f32]>::new_slice(comptime!(config.sums()));
    let mut norms = Shared::<[f32]>::new_slice(comptime!(config.norms()));
    let mut scores = Shared::<[f32]>::new_slice(comptime!(config.scores()));
    let mut exponentials = Shared::<[f32]>::new_slice(comptime!(config.scores()));
    let states_at = address_mut::<u32>(&mut output.states);
    let e_at = address_mut::<u32>(&mut output.e);
    let x_at = address_mut::<u32>(&mut output.x);
    let squares_at = address_mut::<u32>(&mut output.squares);
    let p_at = address_mut::<u32>(&mut output.p);
    let d0_at = address::<u32>(&input.d0);
    let s0_at = address::<u32>(&input.s0);
    let actions_at = address::<u32>(&input.actions);

    // What the cube computes, and the weights of it.
    let with_units = cube < comptime!(deter / GROUP / per);
    let first = cube * per;
    let block = first * comptime!(GROUP) / width;
    let deter_group = group_of(cube, comptime!(Role::Deter), config);
    let stoch_group = group_of(cube, comptime!(Role::Stoch), config);
    let posterior_group = group_of(cube, comptime!(Role::Posterior), config);
    let logits_group = group_of(cube, comptime!(Role::Logits), config);
    let weights = &input.weights;
    if with_units {
        hold(weights, &mut held, first, per, products.gates);
        hold(weights, &mut held, first, per, products.blocks);
        hold(weights, &mut held, first, per, products.inputs_deter);
        hold(weights, &mut held, first, per, products.inputs_stoch);
    }
    if deter_group < comptime!(products.deter.groups) {
        hold(weights, &mut held, deter_group, 1usize, products.deter);
    }
    if stoch_group < comptime!(products.stoch.groups) {
        hold(weights, &mut held, stoch_group, 1usize, products.stoch);
    }
    if posterior_group < comptime!(products.posterior.groups) {
        hold(
            weights,
            &mut held,
            posterior_group,
            1usize,
            products.posterior,
        );
    }
    if logits_group < comptime!(products.logits.groups) {
        hold(weights, &mut held, logits_group, 1usize, products.logits);
    }
    sync_cube();

    // The item of a group of 16 units, and its numbers of d.
    let own = item(&part, 0usize, GROUP, config);
    let mut states = Array::<Pair>::new(per);
    #[unroll]
    for j in 0..per {
        states[j] = Pair::new(0.0f32);
        if own.inside && with_units {
            let unit = (first + j) * comptime!(GROUP) + own.unit;
            states[j] = unpack(fetch(&input.d0, own.row * deter + unit, storage), storage);
        }
    }

    let mut failed = false;
    for s in 0..steps {
        if CUBE_POS == 0 && UNIT_POS == 0 {
            report_progress(control, s);
        }
        let later = s > 0;
        let before = s.max(1) - 1;
        let rows = u64::cast_from(steps * numbers) * size;
        let base = states_at + u64::cast_from(before * numbers) * size;
        let d_before = Source {
            at: select(later, base, d0_at),
            stride: select(later, rows, u64::cast_from(deter) * size),
        };
        let s_before = Source {
            at: select(later, base + u64::cast_from(deter) * size, s0_at),
            stride: select(later, rows, u64::cast_from(logits) * size),
        };
        // Whether the item's sequence starts again here, and each sequence that the thread reads.
        let mut restart = false;
        let mut restarts = Array::<bool>::new(cols);
        #[unroll]
        for n in 0..cols {
            restarts[n] = false;
        }
        if comptime!(config.reset) {
            let row = own.row.min(part.batch - 1);
            restart = reset[row * steps + s] != R::from_int(0);
            #[unroll]
            for n in 0..cols {
                let row = (part.row + n * 8 + UNIT_POS_X as usize / 4).min(part.batch - 1);
                restarts[n] = reset[row * steps + s] != R::from_int(0);
            }
        }
        let place = own.row * steps + s;

        // e, from d and s.
        if deter_group < comptime!(products.deter.groups) {
            let unit = deter_group * comptime!(GROUP) + own.unit;
            failed = publish_sums(
                weights,
                &held,
                &mut partial,
                &d_before,
                unpack(fetch(&input.deter_bias, unit, storage), storage),
                !restart,
                e_at,
                place * comptime!(2 * hidden),
                &part,
                deter_group,
                later,
                failed,
                products.deter,
                config,
            );
        }
        if stoch_group < comptime!(products.stoch.groups) {
            let unit = stoch_group * comptime!(GROUP) + own.unit;
            failed = publish_sums(
                weights,
                &held,
                &mut partial,
                &s_before,
                unpack(fetch(&input.stoch_bias, unit, storage), storage),
                !restart,
                e_at,
                place * comptime!(2 * hidden) + hidden,
                &part,
                stoch_group,
                later,
                failed,
                products.stoch,
                config,
            );
        }

        if with_units {
            // x. Its input from the actions is requested before the waits, so that it has arrived after them.
            let mut actions = Array::<Pair>::new(per);
            #[unroll]
            for j in 0..per {
                actions[j] = Pair::new(0.0f32);
                if own.inside {
                    let unit = (first + j) * comptime!(GROUP) + own.unit;
                    actions[j] = unpack(
                        fetch(&input.actions, place * deter + unit, storage),
                        storage,
                    );
                    if s + 1 < steps {
                        let next = (place + 1) * deter + unit;
                        prefetch(actions_at + u64::cast_from(next) * size);
                    }
                }
            }
            let own_blocks = comptime!(products.blocks.blocks());
            let mut of_d = Array::<Quad>::new(comptime!(own_blocks * cols));
            failed = read(
                &mut of_d,
                d_before.at + u64::cast_from(block * width) * size,
                d_before.stride,
                &part,
                later,
                failed,
                0usize,
                own_blocks,
                cols,
                products.blocks,
            );
            clear(&mut of_d, &restarts, own_blocks, cols);
            let e_blocks = comptime!(products.inputs_deter.blocks());
            let mut of_deter = Array::<Quad>::new(comptime!(e_blocks * cols));
            let mut of_stoch = Array::<Quad>::new(comptime!(e_blocks * cols));
            let e_base = e_at + u64::cast_from(s * comptime!(2 * hidden)) * size;
            let e_stride = u64::cast_from(steps * comptime!(2 * hidden)) * size;
            failed = read(
                &mut of_deter,
                e_base,
                e_stride,
                &part,
                true,
                failed,
                0usize,
                e_blocks,
                cols,
                products.inputs_deter,
            );
            failed = read(
                &mut of_stoch,
                e_base + u64::cast_from(hidden) * size,
                e_stride,
                &part,
                true,
                failed,
                0usize,
                e_blocks,
                cols,
                products.inputs_stoch,
            );
            let second = comptime!(config.norms() / 2);
            leave_squares(
                &of_deter,
                &mut norms,
                0usize,
                e_blocks,
                cols,
                products.inputs_deter,
            );
            leave_squares(
                &of_stoch,
                &mut norms,
                second,
                e_blocks,
                cols,
                products.inputs_stoch,
            );
            sync_cube();
            let scales_deter = scales(
                &norms,
                span.deter_epsilon,
                0usize,
                cols,
                products.inputs_deter,
            );
            let scales_stoch = scales(
                &norms,
                span.stoch_epsilon,
                second,
                cols,
                products.inputs_stoch,
            );
            activate(
                &mut of_deter,
                &input.deter_norm,
                0usize,
                &scales_deter,
                e_blocks,
                cols,
                products.inputs_deter,
            );
            activate(
                &mut of_stoch,
                &input.stoch_norm,
                0usize,
                &scales_stoch,
                e_blocks,
                cols,
                products.inputs_stoch,
            );
            #[unroll]
            for j in 0..per {
                let group = first + j;
                let mut sums = zeros(cols);
                multiply(
                    &of_d,
                    &mut sums,
                    weights,
                    &held,
                    group,
                    j,
                    0usize,
                    own_blocks,
                    cols,
                    products.blocks,
                );
                multiply(
                    &of_deter,
                    &mut sums,
                    weights,
                    &held,
                    group,
                    j,
                    0usize,
                    e_blocks,
                    cols,
                    products.inputs_deter,
                );
                multiply(
                    &of_stoch,
                    &mut sums,
                    weights,
                    &held,
                    group,
                    j,
                    0usize,
                    e_blocks,
                    cols,
                    products.inputs_stoch,
                );
                leave(&sums, &mut partial, cols, stride, products.blocks);
                sync_cube();
                let sum = total(
                    &partial,
                    own.unit,
                    own.sequence.min(comptime!(config.sequences() - 1)),
                    stride,
                    products.blocks,
                );
                let x = pack(actions[j] + sum, storage);
                let stored = unpack(x, storage);
                let squares = stored * stored;
                // The eight threads of a sequence are neighbours.
                let mut square = squares.extract(0usize) + squares.extract(1usize);
                square += shuffle_xor(square, 1u32);
                square += shuffle_xor(square, 2u32);
                square += shuffle_xor(square, 4u32);
                if own.inside {
                    publish(
                        x_at,
                        place * deter + group * comptime!(GROUP) + own.unit,
                        x,
                        storage,
                    );
                    if own.unit == 0 {
                        let row =
                            squares_at + u64::cast_from(place * comptime!(4 * config.squares()));
                        let word = u32::reinterpret(square).min(comptime!(ABSENT - 1));
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

            // d'.
            let x_blocks = comptime!(products.gates.blocks());
            let mut of_x = Array::<Quad>::new(comptime!(x_blocks * cols));
            failed = read(
                &mut of_x,
                x_at + u64::cast_from(s * deter + block * width) * size,
                u64::cast_from(steps * deter) * size,
                &part,
                true,
                failed,
                0usize,
                x_blocks,
                cols,
                products.gates,
            );
            failed = row_sums(&mut norms, squares_at, s, &span, &part, failed, config);
            sync_cube();
            let mut scales_x = Array::<f32>::new(cols);
            #[unroll]
            for n in 0..cols {
                scales_x[n] = scale(
                    norms[n * 8 + UNIT_POS_X as usize / 4],
                    span.hidden_epsilon,
                    deter,
                );
            }
            activate(
                &mut of_x,
                &input.hidden_norm,
                block * width / comptime!(products.gates.quad()),
                &scales_x,
                x_blocks,
                cols,
                products.gates,
            );
            #[unroll]
            for j in 0..per {
                let group = first + j;
                let mut sums = zeros(comptime!(3 * cols));
                multiply(
                    &of_x,
                    &mut sums,
                    weights,
                    &held,
                    group,
                    j,
                    0usize,
                    x_blocks,
                    cols,
                    products.gates,
                );
                leave(&sums, &mut partial, cols, stride, products.gates);
                sync_cube();
                if own.inside {
                    let unit = group * comptime!(GROUP) + own.unit;
                    let bias = block * comptime!(3 * width) + unit % width;
                    let mut gates = Array::<Pair>::new(3usize);
                    #[unroll]
                    for gate in 0..3usize {
                        gates[gate] = unpack(
                            fetch(&input.gates_bias, bias + gate * width, storage),
                            storage,
                        ) + total(
                            &partial,
                            comptime!(gate * GROUP) + own.unit,
                            own.sequence,
                            stride,
                            products.gates,
                        );
                    }
                    let zero = Pair::new(0.0f32);
                    let u = gates[2] - Pair::new(1.0f32);
                    let r = sigmoid::<Const<2>>(gates[0], true);
                    let inner = r * gates[1];
                    let mut candidate = zero;
                    #[unroll]
                    for i in 0..2usize {
                        candidate.insert(i, tanh_number(inner.extract(i), true));
                    }
                    let mut d = states[j];
                    if restart {
                        d = zero;
                    }
                    let next = sigmoid::<Const<2>>(u, true) * candidate
                        + sigmoid::<Const<2>>(zero - u, true) * d;
                    let words = pack(next, storage);
                    states[j] = unpack(words, storage);
                    publish(states_at, place * numbers + unit, words, storage);
                }
                sync_cube();
            }
        }

        // p.
        if posterior_group < comptime!(products.posterior.groups) {
            let unit = posterior_group * comptime!(GROUP) + own.unit;
            let mut p = Pair::new(0.0f32);
            if own.inside {
                p = unpack(
                    fetch(&input.tokens, place * hidden + unit, storage),
                    storage,
                );
            }
            let d_now = Source {
                at: states_at + u64::cast_from(s * numbers) * size,
                stride: rows,
            };
            failed = publish_sums(
                weights,
                &held,
                &mut partial,
                &d_now,
                p,
                true,
                p_at,
                place * hidden,
                &part,
                posterior_group,
                true,
                failed,
                products.posterior,
                config,
            );
        }

        // s'.
        if logits_group < comptime!(products.logits.groups) {
            let blocks = comptime!(products.logits.blocks());
            let mut of_p = Array::<Quad>::new(comptime!(blocks * cols));
            failed = read(
                &mut of_p,
                p_at + u64::cast_from(s * hidden) * size,
                u64::cast_from(steps * hidden) * size,
                &part,
                true,
                failed,
                0usize,
                blocks,
                cols,
                products.logits,
            );
            leave_squares(&of_p, &mut norms, 0usize, blocks, cols, products.logits);
            sync_cube();
            let scales_p = scales(
                &norms,
                span.posterior_epsilon,
                0usize,
                cols,
                products.logits,
            );
            activate(
                &mut of_p,
                &input.posterior_norm,
                0usize,
                &scales_p,
                blocks,
                cols,
                products.logits,
            );
            let mut sums = zeros(comptime!(products.logits.tiles * cols));
            multiply(
                &of_p,
                &mut sums,
                weights,
                &held,
                logits_group,
                0usize,
                0usize,
                blocks,
                cols,
                products.logits,
            );
            leave(&sums, &mut partial, cols, stride, products.logits);
            sync_cube();
            draw_group(
                &input.logits_bias,
                &input.noise,
                &mut output.states,
                states_at,
                &partial,
                &mut scores,
                &mut exponentials,
                &part,
                logits_group,
                s,
                &span,
                config,
            );
        }
    }
    release(control, launch_words);
}
