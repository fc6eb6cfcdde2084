//! A single step, input product included, in one launch on any GPU.
//!
//! The new state of a hidden unit needs the whole state before, which is an input: so cubes need not wait for each other. A
//! group of [`LANES`] threads takes two neighbouring hidden units and a few sequences; its threads divide the depth of both
//! products between them, add up their parts, and run the cell. The GRU with the reset gate before the product takes two
//! launches: `U_n (r ∘ h)` needs the reset gates of all hidden units.
//!
//! The weights are read once for every few sequences, so a step of one sequence takes as long as reading them. Many steps that
//! are known in advance run faster in one launch for all of them, where the weights stay in registers.

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::gates::*;
use super::plan::Form;
use crate::Error;
use crate::cell::{Cell, Problem};
use crate::gpu::group::{Fold, Group, fold};
use crate::gpu::{Dtype, vector_width};

/// Threads that share a pair of hidden units.
const LANES: usize = 32;

/// Buffers of a step, all contiguous and of the storage type.
#[derive(Debug, Clone)]
pub struct Step {
    /// `[B, I]`: the input.
    pub x: Handle,
    /// `[G·H, I]`: the input weights.
    pub w: Handle,
    /// `[G·H]`: the input bias.
    pub bias_ih: Option<Handle>,
    /// `[G·H, H/N]`: the recurrent weights.
    pub u: Handle,
    /// `[G·H]`: the recurrent bias.
    pub bias_hh: Option<Handle>,
    /// `[B, H]`: the state before.
    pub h: Handle,
    /// `[B, H]`, LSTM only: the cell state before.
    pub c: Option<Handle>,
    /// `[B, H]`, written: the state after. Not the same buffer as `h`.
    pub h_next: Handle,
    /// `[B, H]`, LSTM only, written: the cell state after. Not the same buffer as `c`.
    pub c_next: Option<Handle>,
}

/// The part of a step that a launch computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Stage {
    Whole,
    /// Reset gate before the product: `z`, and `r ∘ h` instead of the state.
    Gates,
    /// Then the state.
    Candidate,
}

/// The values that change the generated code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Config {
    form: Form,
    stage: Stage,
    gates: usize,
    hidden: usize,
    /// Hidden units of a head.
    own: usize,
    /// Vectors in a row of the input, and of a head's state.
    input_cols: usize,
    state_cols: usize,
    /// Sequences that a group takes.
    rows: usize,
    bias_ih: bool,
    bias_hh: bool,
    group: Group,
    ptx: bool,
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

    fn pairs(&self) -> usize {
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
fn fused_step<E: Numeric, N: Size>(
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

/// Why a step with inputs of `width` numbers cannot run on this device, if it cannot.
pub fn missing(client: &Client, problem: &Problem, width: usize, dtype: Dtype) -> Option<String> {
    if let Err(error) = dtype.check(client) {
        return Some(error.to_string());
    }
    if problem.hidden == 0 {
        return Some(Error::NoChannels.to_string());
    }
    // The kernel's indices have 32 bits, for bytes.
    let numbers = (problem.gate_width() * width.max(problem.depth()))
        .max(problem.batch * width.max(problem.hidden));
    (numbers.saturating_mul(dtype.size()) >= 1 << 31)
        .then(|| "its weights or its states take 2 GiB or more".into())
}

/// Runs one step of a cell with inputs of `width` numbers, of the problem's batch, hidden size and heads; its steps and its
/// direction are ignored.
///
/// # Errors
/// [`Error::Dtype`] for a type that the device lacks, [`Error::NoChannels`], [`Error::Routine`] where [`missing`] has another
/// reason, [`Error::Length`] where a buffer is too small. Nothing has been launched then.
pub fn step(
    client: &Client,
    problem: &Problem,
    width: usize,
    dtype: Dtype,
    args: &Step,
) -> Result<(), Error> {
    dtype.check(client)?;
    if problem.hidden == 0 {
        return Err(Error::NoChannels);
    }
    if let Some(reason) = missing(client, problem, width, dtype) {
        return Err(Error::Routine {
            routine: "step",
            reason,
        });
    }
    let (own, gates, state) = (problem.depth(), problem.cell.gates(), problem.state());
    let wide = problem.gate_width();
    let lstm = problem.cell == Cell::Lstm;
    let vector = vector_width(client, dtype, 16, width | own);
    let sized = |what, handle: &Handle, numbers: usize, vector: usize| {
        let found = handle.size_in_used() as usize / dtype.size();
        if found < numbers {
            return Err(Error::Length {
                what,
                expected: numbers,
                found,
            });
        }
        // Safety: the buffer has that many numbers.
        Ok(unsafe { BufferArg::from_raw_parts(handle.clone(), numbers / vector) })
    };
    let dummy = client.empty(16);
    let absent = || -> Result<BufferArg, Error> {
        // Safety: it has at least that many numbers.
        Ok(unsafe { BufferArg::from_raw_parts(dummy.clone(), 4) })
    };
    let some = |what, handle: &Option<Handle>, numbers| match handle {
        Some(handle) => sized(what, handle, numbers, 1),
        None => absent(),
    };
    let cells = |what, handle: &Option<Handle>| match handle {
        Some(handle) if lstm => sized(what, handle, state, 1),
        None if lstm => Err(Error::Length {
            what,
            expected: state,
            found: 0,
        }),
        _ => absent(),
    };
    let planes = matches!(client.name(), "cuda" | "hip");
    let most = if planes { 4 } else { 2 };
    let config = |stage| Config {
        form: Form::of(problem.cell),
        stage,
        gates,
        hidden: problem.hidden,
        own,
        input_cols: width / vector,
        state_cols: own / vector,
        rows: problem.batch.next_power_of_two().min(most),
        bias_ih: args.bias_ih.is_some(),
        bias_hh: args.bias_hh.is_some(),
        group: Group {
            units: LANES,
            rows: if planes { 8 } else { 4 },
            planes,
        },
        ptx: client.name() == "cuda",
    };
    let two = Form::of(problem.cell) == Form::GruResetBefore;
    let gated = two.then(|| client.empty((state * dtype.size()).max(16)));
    let update = client.empty(if two { (state * 4).max(16) } else { 16 });
    // A stage reads the update gates or writes them: none has the buffer twice.
    let updates = |used: bool| -> Result<BufferArg, Error> {
        if !used {
            return absent();
        }
        // Safety: it was made with that many numbers.
        Ok(unsafe { BufferArg::from_raw_parts(update.clone(), state) })
    };
    let launch = |stage, operand: &Handle, h_next: &Handle, run: bool| -> Result<(), Error> {
        let config = config(stage);
        let cubes =
            config.pairs().div_ceil(config.group.rows) * problem.batch.div_ceil(config.rows);
        let x = sized("x", &args.x, problem.batch * width, vector)?;
        let w = sized("w", &args.w, wide * width, vector)?;
        let u = sized("u", &args.u, wide * own, vector)?;
        let operand = sized("h", operand, state, vector)?;
        let bias_ih = some("bias_ih", &args.bias_ih, wide)?;
        let bias_hh = some("bias_hh", &args.bias_hh, wide)?;
        let h = sized("h", &args.h, state, 1)?;
        let c = cells("c", &args.c)?;
        let h_next = sized("h_next", h_next, state, 1)?;
        let c_next = cells("c_next", &args.c_next)?;
        let update = updates(stage == Stage::Candidate)?;
        let new_update = updates(stage == Stage::Gates)?;
        if !run || problem.batch == 0 {
            return Ok(());
        }
        // Safety: the buffers have the lengths that the kernel indexes.
        unsafe {
            fused_step::launch_unchecked(
                client,
                crate::gpu::grid(client, cubes),
                config.group.dim(),
                vector,
                x,
                w,
                u,
                operand,
                bias_ih,
                bias_hh,
                h,
                c,
                update,
                new_update,
                h_next,
                c_next,
                problem.batch,
                config,
                dtype.elem(),
            );
        }
        Ok(())
    };
    match &gated {
        Some(gated) => {
            launch(Stage::Candidate, gated, &args.h_next, false)?;
            launch(Stage::Gates, &args.h, gated, true)?;
            launch(Stage::Candidate, gated, &args.h_next, true)
        }
        None => launch(Stage::Whole, &args.h, &args.h_next, true),
    }
}
