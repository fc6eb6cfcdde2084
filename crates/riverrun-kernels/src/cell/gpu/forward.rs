//! The forward pass in one launch.
//!
//! A cube owns some units and 8 · `cols` sequences for the whole time: their rows of the weights and their state stay
//! in registers. A step: read the state of all units as the other cubes wrote it, multiply, add the planes' partial
//! sums, run the cell on the own units, write their new state. See [`super::exchange`] and [`super::product`].

// An outer `if` on a comptime value chooses code; joined with the inner one it would only choose what runs.
#![allow(clippy::collapsible_if)]

use cubecl::prelude::*;

use super::exchange::*;
use super::gates::*;
use super::plan::{Config, Form, time};
use super::product::*;
use super::weights::load_weights;
use super::words::*;

/// How many steps ahead a unit asks for what it will need.
pub(super) const AHEAD: usize = 4;

/// What a unit works on after the product: two neighbouring units of the network, and one sequence after another.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Item {
    /// The first of the two units, in the cube and in the network.
    pub pair: usize,
    pub unit: usize,
    /// The sequence, in the cube and in the batch.
    pub sequence: usize,
    pub row: usize,
    pub inside: bool,
}

#[cube]
pub(super) fn part(batch: usize, first: usize, #[comptime] product: Product) -> Part {
    let cubes = comptime!(product.hidden.div_ceil(product.units));
    Part {
        unit: (CUBE_POS % cubes) * comptime!(product.units),
        row: first + CUBE_POS / cubes * comptime!(8 * product.cols),
        batch,
    }
}

/// The `o`-th item of a unit.
#[cube]
pub(super) fn item(part: &Part, o: usize, #[comptime] product: Product) -> Item {
    let i = UNIT_POS as usize + o * comptime!(32 * product.planes);
    let pair = i % comptime!(product.units / 2) * 2;
    let sequence = i / comptime!(product.units / 2);
    let unit = part.unit + pair;
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

#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn persistent_forward<R: Numeric>(
    xg: &[u32],
    u: &[Vector<u32, Const<4>>],
    bias: &[u32],
    h0: &[u32],
    c0: &[u32],
    reset: &[R],
    h: &mut [u32],
    h_last: &mut [u32],
    c_last: &mut [u32],
    saved: &mut [u32],
    control: &mut [Atomic<u32>],
    batch: usize,
    steps: usize,
    first: usize,
    spins: u32,
    #[comptime] config: Config,
    #[define(R)] _storage: ElemType,
) {
    // A launch of no steps is for compiling.
    if steps == 0 {
        terminate!();
    }
    let product = comptime!(config.product);
    let hidden = comptime!(product.hidden);
    let gates = comptime!(product.gates);
    let blocks = comptime!(config.saved);
    let items = comptime!(config.items());
    let part = part(batch, first, product);
    let mut spilled =
        Shared::<[Vector<u32, Const<4>>]>::new_slice(comptime!(product.spilled().max(1)));
    let weights = load_weights(u, &mut spilled, &part, product);
    let mut partial = Shared::<[f32]>::new_slice(comptime!(product.sums()));
    let h_at = address_mut::<u32>(h);
    let x_at = address::<u32>(xg);
    let h0_at = address::<u32>(h0);
    let zero = Pair::new(0.0f32);
    let size = comptime!(product.size() as u64);

    let mut biases = Array::<Pair>::new(gates);
    let mut states = Array::<Pair>::new(items);
    let mut cells = Array::<Pair>::new(items);
    #[unroll]
    for gate in 0..gates {
        biases[gate] = zero;
        if comptime!(config.bias) {
            let own = item(&part, 0usize, product);
            if own.unit < hidden {
                biases[gate] = unpack(fetch(bias, gate * hidden + own.unit, product), product);
            }
        }
    }
    #[unroll]
    for o in 0..items {
        let own = item(&part, o, product);
        states[o] = zero;
        cells[o] = zero;
        if own.inside {
            let at = own.row * hidden + own.unit;
            if comptime!(config.h0) {
                states[o] = unpack(fetch(h0, at, product), product);
            }
            if comptime!(config.c0) {
                cells[o] = unpack(fetch(c0, at, product), product);
            }
        }
    }

    let mut patience = spins;
    for s in 0..steps {
        let t = time(s, steps, config);
        // Asked for before the wait, so that it is there after it.
        let mut inputs = Array::<Words>::new(comptime!(items * gates));
        let mut cut = Array::<bool>::new(items);
        #[unroll]
        for o in 0..items {
            let own = item(&part, o, product);
            cut[o] = s == 0 && comptime!(!config.h0);
            #[unroll]
            for gate in 0..gates {
                inputs[comptime!(o * gates + gate)] = Words::new(0u32);
            }
            if own.inside {
                let at = (own.row * steps + t) * comptime!(gates * hidden) + own.unit;
                #[unroll]
                for gate in 0..gates {
                    inputs[comptime!(o * gates + gate)] =
                        fetch(xg, at + comptime!(gate * hidden), product);
                }
                if comptime!(config.reset) {
                    if reset[own.row * steps + t] != R::from_int(0) {
                        cut[o] = true;
                        states[o] = zero;
                        cells[o] = zero;
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
            patience = multiply(
                &weights,
                &spilled,
                source,
                u64::cast_from(rows * hidden) * size,
                &part,
                &mut partial,
                control,
                s > 0,
                patience,
                product,
            );
        }
        sync_cube();
        #[unroll]
        for o in 0..items {
            let own = item(&part, o, product);
            if own.inside {
                let mut x = Array::<Pair>::new(gates);
                let mut a = Array::<Pair>::new(gates);
                #[unroll]
                for gate in 0..gates {
                    x[gate] = unpack(inputs[comptime!(o * gates + gate)], product);
                    a[gate] = biases[gate];
                }
                if !cut[o] {
                    #[unroll]
                    for gate in 0..gates {
                        a[gate] += total(&partial, gate, own.pair, own.sequence, product);
                    }
                }
                let place = own.row * steps + t;
                let next = step(&x, &a, states[o], cells[o], config);
                states[o] = next.h;
                cells[o] = next.c;
                share(
                    h_at,
                    place * hidden + own.unit,
                    pack(next.h, product),
                    product,
                );
                if comptime!(blocks > 0) {
                    let at = place * comptime!(blocks * hidden) + own.unit;
                    put(saved, at, pack(next.kept_0, product), product);
                    put(saved, at + hidden, pack(next.kept_1, product), product);
                    put(
                        saved,
                        at + comptime!(2 * hidden),
                        pack(next.kept_2, product),
                        product,
                    );
                    put(
                        saved,
                        at + comptime!(3 * hidden),
                        pack(next.kept_3, product),
                        product,
                    );
                }
                if comptime!(blocks > 4) {
                    let at = place * comptime!(blocks * hidden) + own.unit;
                    put(
                        saved,
                        at + comptime!(4 * hidden),
                        pack(next.c, product),
                        product,
                    );
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
            put(h_last, at, pack(states[o], product), product);
            if comptime!(config.form == Form::Lstm) {
                put(c_last, at, pack(cells[o], product), product);
            }
        }
    }
    release(control);
}

#[cube]
fn step(x: &Array<Pair>, a: &Array<Pair>, h: Pair, c: Pair, #[comptime] config: Config) -> Stepped {
    if comptime!(config.form == Form::Gru) {
        gru(x, a, h, c)
    } else if comptime!(config.form == Form::Lstm) {
        lstm(x, a, c)
    } else {
        elman(x, a, c, comptime!(config.form == Form::Relu))
    }
}
