//! The arguments of the cells: slices with their shapes, and the checks of their lengths.

use super::{Problem, size};
use crate::Error;
pub(super) use crate::error::expect_length as length;

/// The inputs of a cell.
#[derive(Debug, Clone, Copy)]
pub struct Inputs<'a, E> {
    /// `[B, T, G·H]`: the input product of every step, input bias included.
    pub xg: &'a [E],
    /// `[G·H, H]`: the recurrent weights, PyTorch's `weight_hh`.
    pub u: &'a [E],
    /// `[G·H]`: the recurrent bias, PyTorch's `bias_hh`; zero when absent.
    pub bias: Option<&'a [E]>,
    /// `[B, H]`: the state before the first step; zero when absent.
    pub h0: Option<&'a [E]>,
    /// `[B, H]`, LSTM only: the cell state before the first step; zero when absent.
    pub c0: Option<&'a [E]>,
    /// `[B, T]`: the steps before which the state is reset to zero.
    pub reset: Option<&'a [bool]>,
    /// `[B]`: the steps of each sequence; later ones are padding. See the [module](super). Absent: all `T`.
    pub lengths: Option<&'a [u32]>,
}

impl<'a, E> Inputs<'a, E> {
    /// Pre-activations and recurrent weights, everything else absent.
    pub fn new(xg: &'a [E], u: &'a [E]) -> Self {
        Self {
            xg,
            u,
            bias: None,
            h0: None,
            c0: None,
            reset: None,
            lengths: None,
        }
    }

    /// Whether time `t` of sequence `b` is padding, which leaves the state as it was.
    #[inline(always)]
    pub fn is_padding(&self, b: usize, t: usize) -> bool {
        self.lengths.is_some_and(|lengths| t >= lengths[b] as usize)
    }

    /// Whether the state is reset before time `t` of sequence `b`, of `steps` steps; never at padding.
    #[inline(always)]
    pub fn is_reset(&self, b: usize, t: usize, steps: usize) -> bool {
        self.reset.is_some_and(|reset| reset[b * steps + t]) && !self.is_padding(b, t)
    }

    /// Checks every length against the problem.
    pub fn check(&self, problem: &Problem) -> Result<(), Error> {
        self.check_with_xg(problem, problem.pre_activations())
    }

    /// The same where `xg` has another length than usual.
    pub(super) fn check_with_xg(&self, problem: &Problem, xg: usize) -> Result<(), Error> {
        if problem.hidden == 0 {
            return Err(Error::NoChannels);
        }
        if problem.heads != 1 {
            return Err(Error::Routine {
                routine: "cpu",
                reason: "it runs one head at a time".into(),
            });
        }
        let rows = size([problem.batch, problem.steps]);
        length("xg", xg, self.xg.len())?;
        length(
            "u",
            size([problem.gate_width(), problem.hidden]),
            self.u.len(),
        )?;
        optional("bias", problem.gate_width(), self.bias)?;
        optional("h0", problem.state(), self.h0)?;
        optional("c0", problem.cell_state(), self.c0)?;
        optional("reset", rows, self.reset)?;
        optional("lengths", problem.batch, self.lengths)
    }
}

/// The input product, for a cell that computes it block by block, in the cache, instead of reading it.
#[derive(Debug, Clone, Copy)]
pub struct Layer<'a, E> {
    /// `[B, T, I]`: the layer's input.
    pub x: &'a [E],
    /// `I ≥ 0`.
    pub width: usize,
    /// `[G·H, I]`: the input weights, PyTorch's `weight_ih`.
    pub w: &'a [E],
    /// `[G·H]`: the input bias, PyTorch's `bias_ih`; zero when absent.
    pub bias: Option<&'a [E]>,
}

impl<E> Layer<'_, E> {
    /// Checks every length against the problem.
    pub fn check(&self, problem: &Problem) -> Result<(), Error> {
        length(
            "x",
            size([problem.batch, problem.steps, self.width]),
            self.x.len(),
        )?;
        length("w", size([problem.gate_width(), self.width]), self.w.len())?;
        optional("bias", problem.gate_width(), self.bias)
    }
}

/// The outputs of a cell. `A` is the arithmetic type of `E`: `f32`, or `f64` for `f64`.
#[derive(Debug)]
pub struct Outputs<'a, E, A> {
    /// `[B, T, H]`: every state.
    pub h: &'a mut [E],
    /// `[B, H]`: the state after the last step, which is `h0` when `T = 0`.
    pub h_last: &'a mut [E],
    /// `[B, H]`, LSTM only: the cell state after the last step.
    pub c_last: Option<&'a mut [E]>,
    /// `[B, T, S·H]`: the values that backward needs besides `h`; absent if no gradient is wanted.
    pub saved: Option<&'a mut [A]>,
}

impl<E, A> Outputs<'_, E, A> {
    /// Checks every length against the problem.
    pub fn check(&self, problem: &Problem) -> Result<(), Error> {
        length("h", problem.outputs(), self.h.len())?;
        length("h_last", problem.state(), self.h_last.len())?;
        optional("c_last", problem.cell_state(), self.c_last.as_deref())?;
        optional("saved", problem.saved(), self.saved.as_deref())
    }
}

/// The incoming gradients; an absent one is zero.
#[derive(Debug, Clone, Copy)]
pub struct OutputGrads<'a, E> {
    /// `[B, T, H]`: `∂L/∂h`.
    pub d_h: Option<&'a [E]>,
    /// `[B, H]`: `∂L/∂h_last`, in addition to the part in `d_h`.
    pub d_h_last: Option<&'a [E]>,
    /// `[B, H]`, LSTM only: `∂L/∂c_last`.
    pub d_c_last: Option<&'a [E]>,
}

impl<E> OutputGrads<'_, E> {
    /// Checks every length against the problem.
    pub fn check(&self, problem: &Problem) -> Result<(), Error> {
        optional("d_h", problem.outputs(), self.d_h)?;
        optional("d_h_last", problem.state(), self.d_h_last)?;
        optional("d_c_last", problem.cell_state(), self.d_c_last)
    }
}

/// The outgoing gradients. Absent ones are not computed, where that saves work.
#[derive(Debug)]
pub struct InputGrads<'a, E> {
    /// `[B, T, G·H]`: `∂L/∂xg`. It may be empty where a layer's gradients are computed too, and is then not kept.
    pub d_xg: &'a mut [E],
    /// `[G·H, H]`: `∂L/∂U`.
    pub d_u: Option<&'a mut [E]>,
    /// `[G·H]`: `∂L/∂b`.
    pub d_bias: Option<&'a mut [E]>,
    /// `[B, H]`: `∂L/∂h_0`.
    pub d_h0: Option<&'a mut [E]>,
    /// `[B, H]`, LSTM only: `∂L/∂c_0`.
    pub d_c0: Option<&'a mut [E]>,
}

impl<E> InputGrads<'_, E> {
    /// Checks every length against the problem.
    pub fn check(&self, problem: &Problem) -> Result<(), Error> {
        self.check_with_d_xg(problem, problem.pre_activations())
    }

    /// The same where `d_xg` has another length than usual.
    pub(super) fn check_with_d_xg(&self, problem: &Problem, d_xg: usize) -> Result<(), Error> {
        length("d_xg", d_xg, self.d_xg.len())?;
        optional(
            "d_u",
            size([problem.gate_width(), problem.hidden]),
            self.d_u.as_deref(),
        )?;
        optional("d_bias", problem.gate_width(), self.d_bias.as_deref())?;
        optional("d_h0", problem.state(), self.d_h0.as_deref())?;
        optional("d_c0", problem.cell_state(), self.d_c0.as_deref())
    }
}

/// The gradients of a [`Layer`]. Those that are absent are not computed.
#[derive(Debug)]
pub struct LayerGrads<'a, E> {
    /// `[B, T, I]`: `∂L/∂x`.
    pub d_x: Option<&'a mut [E]>,
    /// `[G·H, I]`: `∂L/∂W`.
    pub d_w: Option<&'a mut [E]>,
    /// `[G·H]`: `∂L/∂b_ih`.
    pub d_bias: Option<&'a mut [E]>,
}

impl<E> LayerGrads<'_, E> {
    /// Checks every length against the problem and the layer.
    pub fn check(&self, problem: &Problem, layer: &Layer<E>) -> Result<(), Error> {
        optional(
            "d_x",
            size([problem.batch, problem.steps, layer.width]),
            self.d_x.as_deref(),
        )?;
        optional(
            "d_w",
            size([problem.gate_width(), layer.width]),
            self.d_w.as_deref(),
        )?;
        optional("d_bias", problem.gate_width(), self.d_bias.as_deref())
    }
}

pub(super) fn optional<T>(
    what: &'static str,
    expected: usize,
    slice: Option<&[T]>,
) -> Result<(), Error> {
    slice.map_or(Ok(()), |slice| length(what, expected, slice.len()))
}
