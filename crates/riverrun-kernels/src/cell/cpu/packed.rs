//! A layer whose weights stay packed between calls, for streams: packing reads and writes every weight, a step of one
//! sequence only reads them.

use super::forward;
use super::forward_weights::Weights;
use super::lanes::Lanes;
use super::routine::{Level, Routine};
use crate::Error;
use crate::cell::arguments::{length, optional};
use crate::cell::{Cell, Inputs, Layer, Outputs, Problem};

/// A layer with packed weights, in `f32`. What it computes is bit for bit what [`forward_layer`](super::forward_layer) does.
pub struct PackedLayer {
    cell: Cell,
    hidden: usize,
    width: usize,
    routine: Routine,
    level: Level,
    weights: Weights<f32>,
}

impl std::fmt::Debug for PackedLayer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PackedLayer")
            .field("cell", &self.cell)
            .field("hidden", &self.hidden)
            .field("width", &self.width)
            .field("level", &self.level)
            .finish_non_exhaustive()
    }
}

/// What a sequence starts from.
#[derive(Debug, Clone, Copy, Default)]
pub struct State<'a> {
    /// `[B, H]`; zero when absent.
    pub h0: Option<&'a [f32]>,
    /// `[B, H]`, LSTM only; zero when absent.
    pub c0: Option<&'a [f32]>,
    /// `[B, T]`: the steps before which the state is reset to zero.
    pub reset: Option<&'a [bool]>,
    /// `[B]`: the steps of each sequence; see [`Inputs::lengths`].
    pub lengths: Option<&'a [u32]>,
}

fn pack<L: Lanes<Real = f32>>(
    problem: &Problem,
    inputs: &Inputs<f32>,
    layer: &Layer<f32>,
) -> Weights<f32> {
    let units = 0..problem.hidden;
    Weights::new::<L>(problem, inputs, Some(layer), units, problem.batch, false)
}

fn run<L: Lanes<Real = f32>>(
    problem: &Problem,
    inputs: &Inputs<f32>,
    layer: Layer<f32>,
    outputs: Outputs<f32, f32>,
    packed: &PackedLayer,
) {
    let plan = packed.routine.plan::<L>(problem);
    let weights = Some(&packed.weights);
    forward::run::<L>(problem, inputs, Some(layer), outputs, plan, weights);
}

impl PackedLayer {
    /// Packs the weights for calls of about `batch` sequences; other numbers of sequences give the same results.
    ///
    /// # Arguments
    /// - `width`: `I`.
    /// - `w`: `[G·H, I]`, `u`: `[G·H, H]`; `bias_ih`, `bias_hh`: `[G·H]`, zero when absent.
    ///
    /// # Errors
    /// [`Error::Length`], [`Error::NoChannels`]; [`Error::Routine`] for instructions that the machine does not have.
    pub fn new(
        cell: Cell,
        [batch, width, hidden]: [usize; 3],
        [w, u]: [&[f32]; 2],
        [bias_ih, bias_hh]: [Option<&[f32]>; 2],
        routine: Routine,
    ) -> Result<Self, Error> {
        // One step, so that the weights are packed for few rows.
        let problem = Problem::new(cell, batch, 1, hidden);
        if hidden == 0 {
            return Err(Error::NoChannels);
        }
        length("w", problem.gate_width() * width, w.len())?;
        length("u", problem.gate_width() * hidden, u.len())?;
        optional("bias_ih", problem.gate_width(), bias_ih)?;
        optional("bias_hh", problem.gate_width(), bias_hh)?;
        let level = routine.level()?;
        let inputs = Inputs {
            bias: bias_hh,
            ..Inputs::new(&[], u)
        };
        let layer = Layer {
            x: &[],
            width,
            w,
            bias: bias_ih,
        };
        Ok(Self {
            cell,
            hidden,
            width,
            routine,
            level,
            weights: at_level!(level, f32, pack(&problem, &inputs, &layer)),
        })
    }

    /// Runs `batch` sequences of `steps` steps `x`, `[B, T, I]`.
    ///
    /// # Errors
    /// [`Error::Length`]; nothing is written then.
    pub fn forward(
        &self,
        [batch, steps]: [usize; 2],
        x: &[f32],
        state: State,
        outputs: Outputs<f32, f32>,
    ) -> Result<(), Error> {
        let problem = &Problem::new(self.cell, batch, steps, self.hidden);
        length("x", batch * steps * self.width, x.len())?;
        optional("h0", problem.state(), state.h0)?;
        optional("c0", problem.cell_state(), state.c0)?;
        optional("reset", batch * steps, state.reset)?;
        optional("lengths", batch, state.lengths)?;
        outputs.check(problem)?;
        let inputs = &Inputs {
            xg: &[],
            u: &[],
            bias: None,
            h0: state.h0,
            c0: state.c0,
            reset: state.reset,
            lengths: state.lengths,
        };
        let layer = Layer {
            x,
            width: self.width,
            w: &[],
            bias: None,
        };
        at_level!(self.level, f32, run(problem, inputs, layer, outputs, self));
        Ok(())
    }
}
