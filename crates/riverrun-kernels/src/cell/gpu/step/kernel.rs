//! The kernel of a step.

use cubecl::prelude::*;

use crate::cell::gpu::gates::*;
use crate::cell::gpu::plan::Form;
use crate::gpu::group::{Fold, Group, fold};

/// The part of a step that a launch computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Stage {
    Whole,
    /// Reset gate before the product: `z`, and `r ∘ h` instead of the state.
    Gates,
    /// Then the state.
    Candidate,
}

/// The values that change the generated code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Config {
    pub form: Form,
    pub stage: Stage,
    pub gates: usize,
    pub hidden: usize,
    /// Hidden units of a head.
    pub own: usize,
    /// Vectors in a row of the input, and of a head's state.
    pub input_cols: usize,
    pub state_cols: usize,
    /// Sequences that a group takes.
    pub rows: usize,
    pub bias_ih: bool,
    pub bias_hh: bool,
    pub group: Group,
    pub ptx: bool,
}

impl Config {
    /// The gates that the stage computes: the first, and their number.
    fn range(&self) -> (usize, usize) {
        match self.stage {
            Stage::Whole => (0, self.gates),
            Stage::Gates => (0, 2),
            Stage::Candidate => (2, 1),
        }
    }

    /// Sums of a hidden unit and a sequence. In the GRU with the reset gate after the product, the third gate's two
    /// products are kept apart.
    fn sums(&self) -> usize {
        self.range().1 + usize::from(self.form == Form::Gru)
    }

    fn slot(&self, gate: usize, recurrent: bool) -> usize {
        match recurrent && self.form == Form::Gru && gate == 2 {
            true => self.gates,
            false => gate - self.range().0,
        }
    }

    /// Index of a sum among a thread's values.
    fn value(&self, slot: usize, unit: usize, row: usize) -> usize {
        (slot * 2 + unit) * self.rows + row
    }

    fn values(&self) -> usize {
        self.sums() * 2 * self.rows
    }

    pub fn pairs(&self) -> usize {
        self.hidden.div_ceil(2)
    }
}

#[cube]
fn widened<E: Numeric, N: Size>(x: Vector<E, N>) -> Vector<f32, N> {
    let mut y = Vector::<f32, N>::new(0.0f32);
    #[unroll]
    for i in 0..N::value() {
        y.insert(i, f32::cast_from(x.extract(i)));
    }
    y
}

/// Adds the products of rows of weights with rows of an operand to a thread's values.
#[cube]
fn accumulate<E: Numeric, N: Size>(
    values: &mut Array<f32>,
    weights: &[Vector<E, N>],
    operand: &[Vector<E, N>],
    first_unit: usize,
    first_row: usize,
    batch: usize,
    #[comptime] recurrent: bool,
    #[comptime] config: Config,
) {
    let cols = comptime!(if recurrent {
        config.state_cols
    } else {
        config.input_cols
    });
    let heads = comptime!(config.hidden / config.own);
    let row_cols = comptime!(if recurrent { cols * heads } else { cols });
    let (first, count) = comptime!(config.range());
    let mut k = UNIT_POS_X as usize;
    while k < cols {
        #[unroll]
        for e in 0..2usize {
            // Past the end, the last hidden unit again; its result is not stored.
            let unit = (first_unit + e).min(comptime!(config.hidden - 1));
            let mut head = 0usize.runtime();
            if comptime!(recurrent && heads > 1) {
                head = unit / comptime!(config.own) * cols;
            }
            let mut states = Array::<Vector<f32, N>>::new(comptime!(config.rows));
            #[unroll]
            for r in 0..comptime!(config.rows) {
                let row = (first_row + r).min(batch - 1);
                states[r] = widened::<E, N>(operand[row * row_cols + head + k]);
            }
            #[unroll]
            for g in 0..count {
                let gate = comptime!(first + g);
                let at = (comptime!(gate * config.hidden) + unit) * cols + k;
                let weight = widened::<E, N>(weights[at]);
                #[unroll]
                for r in 0..comptime!(config.rows) {
                    let to = comptime!(config.value(config.slot(gate, recurrent), e, r));
                    let mut sum = values[to];
                    #[unroll]
                    for i in 0..N::value() {
                        sum += weight.extract(i) * states[r].extract(i);
                    }
                    values[to] = sum;
                }
            }
        }
        k += comptime!(config.group.units);
    }
}

/// Two neighbouring numbers from `at` on; the second is not read past `last`.
#[cube]
fn pair_of<E: Numeric>(buffer: &[E], at: usize, last: usize) -> Pair {
    let mut pair = Pair::new(0.0f32);
    pair.insert(0usize, f32::cast_from(buffer[at]));
    pair.insert(1usize, f32::cast_from(buffer[(at + 1).min(last)]));
    pair
}

#[cube]
fn put_pair<E: Numeric>(buffer: &mut [E], at: usize, pair: Pair, both: bool) {
    buffer[at] = E::cast_from(pair.extract(0usize));
    if both {
        buffer[at + 1] = E::cast_from(pair.extract(1usize));
    }
}

/// Adds the biases of a pair of hidden units, gate by gate.
#[cube]
fn add_bias<E: Numeric>(to: &mut Array<Pair>, bias: &[E], unit: usize, #[comptime] config: Config) {
    #[unroll]
    for gate in 0..comptime!(config.gates) {
        let start = comptime!(gate * config.hidden);
        to[gate] += pair_of::<E>(bias, start + unit, comptime!(start + config.hidden - 1));
    }
}

/// A sum of both hidden units for the `r`-th sequence.
#[cube]
fn summed(
    values: &Array<f32>,
    #[comptime] r: usize,
    #[comptime] slot: usize,
    #[comptime] config: Config,
) -> Pair {
    let mut pair = Pair::new(0.0f32);
    pair.insert(0usize, values[comptime!(config.value(slot, 0, r))]);
    pair.insert(1usize, values[comptime!(config.value(slot, 1, r))]);
    pair
}

#[cube(launch_unchecked)]
pub(super) fn fused_step<E: Numeric, N: Size>(
    x: &[Vector<E, N>],
    w: &[Vector<E, N>],
    u: &[Vector<E, N>],
    operand: &[Vector<E, N>],
    bias_ih: &[E],
    bias_hh: &[E],
    h: &[E],
    c: &[E],
    update: &[f32],
    new_update: &mut [f32],
    h_next: &mut [E],
    c_next: &mut [E],
    batch: usize,
    #[comptime] config: Config,
    #[define(E)] _dtype: ElemType,
) {
    let groups = comptime!(config.group.rows);
    let cubes = comptime!(config.pairs().div_ceil(groups));
    let pair = CUBE_POS % cubes * groups + UNIT_POS_Y as usize;
    let unit = pair.min(comptime!(config.pairs() - 1)) * 2;
    let first_row = CUBE_POS / cubes * comptime!(config.rows);
    let count = comptime!(config.values());
    let mut scratch = Shared::<[f32]>::new_slice(comptime!(config.group.scratch(count)));
    let mut values = Array::<f32>::new(count);
    #[unroll]
    for i in 0..count {
        values[i] = 0.0f32;
    }
    accumulate::<E, N>(&mut values, w, x, unit, first_row, batch, false, config);
    accumulate::<E, N>(
        &mut values,
        u,
        operand,
        unit,
        first_row,
        batch,
        true,
        config,
    );
    fold(
        &mut values,
        &mut scratch,
        0usize,
        count,
        Fold::Sum,
        config.group,
    );
    #[unroll]
    for r in 0..comptime!(config.rows) {
        let row = first_row + r;
        if UNIT_POS_X == comptime!(r as u32) && row < batch && pair < comptime!(config.pairs()) {
            let gates = comptime!(config.gates);
            let (first, some) = comptime!(config.range());
            let mut input = Array::<Pair>::new(gates);
            let mut recurrent = Array::<Pair>::new(gates);
            #[unroll]
            for gate in 0..gates {
                input[gate] = Pair::new(0.0f32);
                recurrent[gate] = Pair::new(0.0f32);
                if comptime!(gate >= first && gate < first + some) {
                    input[gate] = summed(&values, r, comptime!(config.slot(gate, false)), config);
                    if comptime!(config.slot(gate, true) != config.slot(gate, false)) {
                        recurrent[gate] =
                            summed(&values, r, comptime!(config.slot(gate, true)), config);
                    }
                }
            }
            if comptime!(config.bias_ih) {
                add_bias::<E>(&mut input, bias_ih, unit, config);
            }
            if comptime!(config.bias_hh) {
                add_bias::<E>(&mut recurrent, bias_hh, unit, config);
            }
            let at = row * comptime!(config.hidden) + unit;
            let last = row * comptime!(config.hidden) + comptime!(config.hidden - 1);
            let both = at < last;
            let before = pair_of::<E>(h, at, last);
            if comptime!(config.stage == Stage::Gates) {
                let reset = sigma(input[0] + recurrent[0], config.ptx);
                let z = sigma(input[1] + recurrent[1], config.ptx);
                put_pair::<E>(h_next, at, reset * before, both);
                put_pair::<f32>(new_update, at, z, both);
            } else {
                let next = if comptime!(config.stage == Stage::Candidate) {
                    let z = pair_of::<f32>(update, at, last);
                    gru_reset_before(
                        &input, &recurrent, before, z, before, before, before, config.ptx,
                    )
                } else if comptime!(config.form == Form::Gru) {
                    gru(&input, &recurrent, before, before, config.ptx)
                } else if comptime!(config.form == Form::Lstm) {
                    let cell = pair_of::<E>(c, at, last);
                    lstm(&input, &recurrent, cell, config.ptx)
                } else {
                    let relu = comptime!(config.form == Form::Relu);
                    elman(&input, &recurrent, before, relu, config.ptx)
                };
                put_pair::<E>(h_next, at, next.h, both);
                if comptime!(config.form == Form::Lstm) {
                    put_pair::<E>(c_next, at, next.c, both);
                }
            }
        }
    }
}
