//! A layer whose weights stay packed between calls, for streams: packing reads and writes every weight, a step of one
//! sequence only reads them.

use pulp::{Simd, WithSimd};

use super::forward;
use super::routine::Routine;
use super::weights::ForwardWeights;
use crate::Error;
use crate::cell::arguments::{length, optional};
use crate::cell::{Cell, Inputs, Layer, Outputs, Problem, size};
use crate::simd::level::Level;

/// A layer with packed weights, in `f32`. The results are bit for bit those of [`forward_layer`](super::forward_layer).
pub struct PackedLayer {
    cell: Cell,
    hidden: usize,
    width: usize,
    routine: Routine,
    level: Level,
    weights: ForwardWeights<f32>,
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

/// The initial states, resets and lengths of a run.
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

/// Packs the weights for the instructions of a level.
struct Pack<'a> {
    problem: &'a Problem,
    inputs: &'a Inputs<'a, f32>,
    layer: &'a Layer<'a, f32>,
}

impl WithSimd for Pack<'_> {
    type Output = ForwardWeights<f32>;

    fn with_simd<S: Simd>(self, _simd: S) -> Self::Output {
        let Self {
            problem,
            inputs,
            layer,
        } = self;
        let units = 0..problem.hidden;
        ForwardWeights::new::<S>(problem, inputs, Some(layer), units, problem.batch, false)
    }
}

/// Runs the layer with the instructions that it was packed for.
struct Run<'a> {
    problem: &'a Problem,
    inputs: &'a Inputs<'a, f32>,
    layer: Layer<'a, f32>,
    outputs: Outputs<'a, f32, f32>,
    packed: &'a PackedLayer,
}

impl WithSimd for Run<'_> {
    type Output = ();

    fn with_simd<S: Simd>(self, simd: S) {
        let plan = self.packed.routine.plan::<S, f32>(self.problem);
        forward::run(
            simd,
            self.problem,
            self.inputs,
            Some(self.layer),
            self.outputs,
            plan,
            Some(&self.packed.weights),
        );
    }
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
        length("w", size([problem.gate_width(), width]), w.len())?;
        length("u", size([problem.gate_width(), hidden]), u.len())?;
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
            weights: level.with_token(Pack {
                problem: &problem,
                inputs: &inputs,
                layer: &layer,
            }),
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
        length("x", size([batch, steps, self.width]), x.len())?;
        optional("h0", problem.state(), state.h0)?;
        optional("c0", problem.cell_state(), state.c0)?;
        optional("reset", size([batch, steps]), state.reset)?;
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
        self.level.with_token(Run {
            problem,
            inputs,
            layer,
            outputs,
            packed: self,
        });
        Ok(())
    }
}
