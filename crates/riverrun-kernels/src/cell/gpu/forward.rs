//! The forward pass.
//!
//! A cube owns some hidden units and 8 · `cols` sequences for the whole time: their rows of the weights and their state stay
//! in registers. A step: read the state of all hidden units as the other cubes wrote it, multiply, add the planes' partial
//! sums, run the cell on the own units, publish their new state. With the reset gate before the product, a step does
//! that twice: first for `r ∘ h`, then for the state. See [`crate::gpu::exchange`] and [`super::product`].

// An outer `if` on a comptime value chooses code; joined with the inner one it would only choose what runs.
#![allow(clippy::collapsible_if)]

use cubecl::prelude::*;

use super::buffers::{ForwardInput, ForwardOutput, Span};
use super::gates::*;
use super::plan::{Config, Form, time};
use super::product::*;
use super::shared_depth::*;
use super::weights::load_weights;
use crate::gpu::exchange::*;
use crate::gpu::lock::{release, report_progress};
use crate::gpu::words::*;

/// Steps that a thread prefetches ahead.
pub(super) const AHEAD: usize = 4;

/// The work of a thread after the product: two neighbouring hidden units of one sequence.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Item {
    /// The first of the two hidden units, in the cube and in the network.
    pub pair: usize,
    pub unit: usize,
    /// The sequence, in the cube and in the batch.
    pub sequence: usize,
    pub row: usize,
    pub inside: bool,
}

#[cube]
pub(super) fn part(span: &Span, #[comptime] product: Product) -> Part {
    let cubes = comptime!(product.hidden.div_ceil(product.units));
    if comptime!(product.cluster > 1) {
        let cluster = CUBE_POS / comptime!(product.cluster);
        Part {
            unit: (cluster % cubes) * comptime!(product.units),
            row: span.first + cluster / cubes * comptime!(8 * product.cols),
            batch: span.batch,
            rank: CUBE_POS % comptime!(product.cluster),
        }
    } else {
        Part {
            unit: (CUBE_POS % cubes) * comptime!(product.units),
            row: span.first + CUBE_POS / cubes * comptime!(8 * product.cols),
            batch: span.batch,
            rank: 0usize.runtime(),
        }
    }
}

/// The `o`-th item of a thread.
#[cube]
pub(super) fn item(part: &Part, o: usize, #[comptime] product: Product) -> Item {
    let i = UNIT_POS as usize + o * comptime!(32 * product.planes);
    let pair = i % comptime!(product.own_units() / 2) * 2;
    let sequence = i / comptime!(product.own_units() / 2);
    let unit = if comptime!(product.cluster > 1) {
        part.unit + part.rank * comptime!(product.own_units()) + pair
    } else {
        part.unit + pair
    };
    let row = part.row + sequence;
    Item {
        pair,
        unit,
        sequence,
        row,
        inside: sequence < comptime!(8 * product.cols)
            && row < part.batch
            && unit < comptime!(product.hidden),
    }
}

/// The steps of each item's sequence.
#[cube]
pub(super) fn lengths_of(
    lengths: &[u32],
    part: &Part,
    steps: usize,
    #[comptime] config: Config,
) -> Array<usize> {
    let items = comptime!(config.items());
    let mut own = Array::<usize>::new(items);
    #[unroll]
    for o in 0..items {
        own[o] = steps;
        if comptime!(config.lengths) {
            let item = item(part, o, config.product);
            if item.inside {
                own[o] = lengths[item.row] as usize;
            }
        }
    }
    own
}

/// The whole pass, of one cube.
#[cube]
pub(super) fn forward_pass<R: Numeric>(
    input: &ForwardInput,
    reset: &[R],
    output: &mut ForwardOutput,
    control: &[u32],
    launch_words: &mut [Atomic<u32>],
    span: &Span,
    #[comptime] config: Config,
) {
    let steps = span.steps;
    let product = comptime!(config.product);
    let second = comptime!(config.second);
    let hidden = comptime!(product.hidden);
    // Groups of a step's input.
    let gates = comptime!(if config.two_products() {
        3
    } else {
        product.gates
    });
    let blocks = comptime!(config.saved);
    let items = comptime!(config.items());
    let part = part(span, product);
    let mut spilled =
        Shared::<[Vector<u32, Const<4>>]>::new_slice(comptime!(product.spilled().max(1)));
    let weights = load_weights(&input.u, &mut spilled, &part, product);
    let mut spilled_second =
        Shared::<[Vector<u32, Const<4>>]>::new_slice(comptime!(if config.two_products() {
            second.spilled().max(1)
        } else {
            1
        }));
    let weights_second = if comptime!(config.two_products()) {
        load_weights(&input.u, &mut spilled_second, &part, second)
    } else {
        Array::<Vector<u32, Const<4>>>::new(1usize)
    };
    let mut partial = Shared::<[f32]>::new_slice(comptime!(config.sums()));
    let arrivals = join(config);
    let mut sums = Array::<Pair>::new(comptime!(config.own_sums()));
    let control = address::<u32>(control);
    let h_at = address_mut::<u32>(&mut output.h);
    let gated_at = address_mut::<u32>(&mut output.gated);
    let x_at = address::<u32>(&input.xg);
    let h0_at = address::<u32>(&input.h0);
    let zero = Pair::new(0.0f32);
    let size = comptime!(product.size() as u64);
    let lengths = lengths_of(&input.lengths, &part, steps, config);

    let mut biases = Array::<Pair>::new(gates);
    let mut states = Array::<Pair>::new(items);
    let mut cells = Array::<Pair>::new(items);
    // With the reset gate before the product: r, z and r ∘ h of the step.
    let mut resets = Array::<Pair>::new(items);
    let mut updates = Array::<Pair>::new(items);
    let mut gated = Array::<Pair>::new(items);
    #[unroll]
    for gate in 0..gates {
        biases[gate] = zero;
        if comptime!(config.bias) {
            let own = item(&part, 0usize, product);
            if own.unit < hidden {
                biases[gate] = unpack(
                    fetch(&input.bias, gate * hidden + own.unit, product.storage),
                    product.storage,
                );
            }
        }
    }
    #[unroll]
    for o in 0..items {
        let own = item(&part, o, product);
        states[o] = zero;
        cells[o] = zero;
        resets[o] = zero;
        updates[o] = zero;
        gated[o] = zero;
        if own.inside {
            let at = own.row * hidden + own.unit;
            if comptime!(config.h0) {
                states[o] = unpack(fetch(&input.h0, at, product.storage), product.storage);
            }
            if comptime!(config.c0) {
                cells[o] = unpack(fetch(&input.c0, at, product.storage), product.storage);
            }
        }
    }

    let mut failed = false;
    for s in 0..steps {
        let t = time(s, steps, config);
        if CUBE_POS == 0 && UNIT_POS == 0 {
            report_progress(control, s);
        }
        // Requested before the wait, so that it has arrived after it.
        let mut inputs = Array::<Words>::new(comptime!(items * gates));
        let mut zero_state = Array::<bool>::new(items);
        #[unroll]
        for o in 0..items {
            let own = item(&part, o, product);
            zero_state[o] = s == 0 && comptime!(!config.h0);
            #[unroll]
            for gate in 0..gates {
                inputs[comptime!(o * gates + gate)] = Words::new(0u32);
            }
            if own.inside {
                let at = (own.row * steps + t) * comptime!(gates * hidden) + own.unit;
                #[unroll]
                for gate in 0..gates {
                    inputs[comptime!(o * gates + gate)] =
                        fetch(&input.xg, at + comptime!(gate * hidden), product.storage);
                }
                if comptime!(config.reset) {
                    if reset[own.row * steps + t] != R::from_int(0) {
                        // A reset at padding does not count.
                        if t < lengths[o] {
                            zero_state[o] = true;
                            states[o] = zero;
                            cells[o] = zero;
                        }
                    }
                }
                if s + AHEAD < steps {
                    let later = own.row * steps + time(s + AHEAD, steps, config);
                    let at = later * comptime!(gates * hidden) + own.unit;
                    #[unroll]
                    for gate in 0..gates {
                        prefetch(x_at + u64::cast_from(at + comptime!(gate * hidden)) * size);
                    }
                    prefetch(h_at + u64::cast_from(later * hidden + own.unit) * size);
                }
            }
        }
        if s > 0 || comptime!(config.h0) {
            let before = time(s.max(1) - 1, steps, config);
            let source = select(s == 0, h0_at, h_at + u64::cast_from(before * hidden) * size);
            let rows = select(s == 0, 1usize, steps);
            failed = multiply(
                &weights,
                &spilled,
                source,
                u64::cast_from(rows * hidden) * size,
                &part,
                &mut partial,
                control,
                s > 0,
                failed,
                product,
            );
        }
        sync_cube();
        if comptime!(product.cluster > 1) {
            if s > 0 || comptime!(config.h0) {
                let round = round(s, false, config);
                collect(&mut sums, &partial, arrivals, round, &part, product, config);
            }
        }
        if comptime!(config.two_products()) {
            #[unroll]
            for o in 0..items {
                let own = item(&part, o, product);
                if own.inside {
                    let mut r = biases[0];
                    let mut z = biases[1];
                    if !zero_state[o] {
                        r += summed(&sums, &partial, 0usize, o, own.pair, own.sequence, product);
                        z += summed(&sums, &partial, 1usize, o, own.pair, own.sequence, product);
                    }
                    resets[o] = sigma(
                        unpack(inputs[comptime!(o * gates)], product.storage) + r,
                        true,
                    );
                    updates[o] = sigma(
                        unpack(inputs[comptime!(o * gates + 1)], product.storage) + z,
                        true,
                    );
                    gated[o] = resets[o] * states[o];
                    let place = own.row * steps + t;
                    publish(
                        gated_at,
                        place * hidden + own.unit,
                        pack(gated[o], product.storage),
                        product.storage,
                    );
                }
            }
            // The partial sums have been read.
            sync_cube();
            failed = multiply(
                &weights_second,
                &spilled_second,
                gated_at + u64::cast_from(t * hidden) * size,
                u64::cast_from(steps * hidden) * size,
                &part,
                &mut partial,
                control,
                true,
                failed,
                second,
            );
            sync_cube();
            if comptime!(product.cluster > 1) {
                let round = round(s, true, config);
                collect(&mut sums, &partial, arrivals, round, &part, second, config);
            }
        }
        #[unroll]
        for o in 0..items {
            let own = item(&part, o, product);
            if own.inside {
                let mut x = Array::<Pair>::new(gates);
                let mut a = Array::<Pair>::new(gates);
                #[unroll]
                for gate in 0..gates {
                    x[gate] = unpack(inputs[comptime!(o * gates + gate)], product.storage);
                    a[gate] = biases[gate];
                }
                if comptime!(config.two_products()) {
                    a[2] += summed(&sums, &partial, 0usize, o, own.pair, own.sequence, second);
                } else {
                    if !zero_state[o] {
                        #[unroll]
                        for gate in 0..gates {
                            a[gate] +=
                                summed(&sums, &partial, gate, o, own.pair, own.sequence, product);
                        }
                    }
                }
                let place = own.row * steps + t;
                let next = if comptime!(config.two_products()) {
                    gru_reset_before(
                        &x, &a, resets[o], updates[o], gated[o], states[o], cells[o], true,
                    )
                } else {
                    step(&x, &a, states[o], cells[o], config)
                };
                // At padding the state stays.
                let runs = t < lengths[o];
                if runs {
                    states[o] = next.h;
                    cells[o] = next.c;
                }
                publish(
                    h_at,
                    place * hidden + own.unit,
                    pack(states[o], product.storage),
                    product.storage,
                );
                if comptime!(blocks > 0) {
                    let at = place * comptime!(blocks * hidden) + own.unit;
                    let saved = &mut output.saved;
                    put(
                        saved,
                        at,
                        pack(next.saved_0, product.storage),
                        product.storage,
                    );
                    put(
                        saved,
                        at + hidden,
                        pack(next.saved_1, product.storage),
                        product.storage,
                    );
                    let third = at + comptime!(2 * hidden);
                    put(
                        saved,
                        third,
                        pack(next.saved_2, product.storage),
                        product.storage,
                    );
                    let fourth = at + comptime!(3 * hidden);
                    put(
                        saved,
                        fourth,
                        pack(next.saved_3, product.storage),
                        product.storage,
                    );
                    if comptime!(blocks > 4) {
                        let fifth = at + comptime!(4 * hidden);
                        put(
                            saved,
                            fifth,
                            pack(cells[o], product.storage),
                            product.storage,
                        );
                    }
                }
            }
        }
        // The partial sums have been read.
        sync_cube();
    }
    #[unroll]
    for o in 0..items {
        let own = item(&part, o, product);
        if own.inside {
            let at = own.row * hidden + own.unit;
            put(
                &mut output.h_last,
                at,
                pack(states[o], product.storage),
                product.storage,
            );
            if comptime!(config.form == Form::Lstm) {
                put(
                    &mut output.c_last,
                    at,
                    pack(cells[o], product.storage),
                    product.storage,
                );
            }
        }
    }
    leave(config);
    release(control, launch_words);
}

#[cube]
fn step(x: &Array<Pair>, a: &Array<Pair>, h: Pair, c: Pair, #[comptime] config: Config) -> Stepped {
    if comptime!(config.form == Form::Gru) {
        gru(x, a, h, c, true)
    } else if comptime!(config.form == Form::Lstm) {
        lstm(x, a, c, true)
    } else {
        elman(x, a, c, comptime!(config.form == Form::Relu), true)
    }
}
