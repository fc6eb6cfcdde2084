//! Layers with a matrix in the loop: GRU, LSTM and Elman, from the input `x` to every state.
//!
//! See [`riverrun_kernels::cell`] for the formulas. On the CPU a layer is one call of a fused kernel each way. On a GPU it
//! is the input product of all steps, then the cell: on NVIDIA's in one launch each way, elsewhere, and where a launch
//! cannot hold the weights, step by step from the backend's own operations.

mod autodiff;
mod backend;
mod composed;
#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "flex")]
mod flex;
mod heads;
mod route;

use burn::backend::Dispatch;
use burn::tensor::{Bool, Tensor};
use riverrun_kernels::cell::Problem;
pub use riverrun_kernels::cell::{Activation, Cell, ResetGate};

pub use backend::{
    CellGradients, CellInputs, CellOps, CellOutputGrads, CellSpec, CellStates, StepGradients,
    StepInputs,
};

use super::support::Maybe;
use crate::Error;

/// The weights of one layer in one direction; shapes, gate orders and names are PyTorch's. `G` is 3 for the GRU
/// (r, z, n), 4 for the LSTM (i, f, g, o), 1 for Elman.
#[derive(Debug, Clone)]
pub struct CellWeights {
    /// `[G·H, I]`: from the input.
    pub weight_ih: Tensor<2>,
    /// `[G·H, H]`: from the state. Or `[G·H, H/N]`, of `N` heads: the units are cut into `N` groups, each of which hears of its
    /// own states only, in the order of its columns.
    pub weight_hh: Tensor<2>,
    /// `[G·H]`: added to the input product.
    pub bias_ih: Option<Tensor<1>>,
    /// `[G·H]`: added to the recurrent product.
    pub bias_hh: Option<Tensor<1>>,
}

/// How a cell starts and runs. The default starts from zero, forward in time, without resets.
#[derive(Debug, Clone, Default)]
pub struct CellRun {
    /// `[B, H]`: the state before the first step.
    pub h0: Option<Tensor<2>>,
    /// `[B, H]`, LSTM only: the cell state before the first step.
    pub c0: Option<Tensor<2>>,
    /// `[B, T]`: true where a step starts anew, as if the state before it were zero.
    pub reset: Option<Tensor<2, Bool>>,
    /// From the last step to the first.
    pub reverse: bool,
}

/// What a layer returns.
#[derive(Debug, Clone)]
pub struct CellOutput {
    /// `[B, T, H]`: every state.
    pub h: Tensor<3>,
    /// `[B, H]`: the state after the last step, which is `h0` when `T = 0`.
    pub h_last: Tensor<2>,
    /// `[B, H]`, LSTM only: the cell state after the last step.
    pub c_last: Option<Tensor<2>>,
}

/// [`try_cell_layer`].
///
/// # Panics
/// Where [`try_cell_layer`] returns an error.
pub fn cell_layer(x: Tensor<3>, weights: CellWeights, cell: Cell, run: CellRun) -> CellOutput {
    try_cell_layer(x, weights, cell, run).unwrap_or_else(|error| panic!("{}: {error}", cell.name()))
}

/// Runs a cell over `x`, `[B, T, I]`, input product included.
///
/// With several heads ([`CellWeights::weight_hh`]) the layer is that of a block-diagonal recurrent matrix, an ensemble of small
/// cells side by side. On NVIDIA's GPUs they run in one launch where each has a multiple of 16 units; elsewhere one after the
/// other.
///
/// Differentiable in `x`, the weights, the biases and the initial states, from every state and from the last ones.
/// Backward keeps `x`, the states and 4 (GRU), 5 (LSTM) or no (Elman) blocks of `H` values a step.
///
/// # Errors
/// Shapes, dtypes or devices that do not fit, by name; a `c0` for a cell without one. Nothing has been launched then.
pub fn try_cell_layer(
    x: Tensor<3>,
    weights: CellWeights,
    cell: Cell,
    run: CellRun,
) -> Result<CellOutput, Error> {
    let [batch, steps, width] = x.dims();
    let [rows, own] = weights.weight_hh.dims();
    if own == 0 {
        return Err(riverrun_kernels::Error::NoChannels.into());
    }
    let heads = (rows / cell.gates() / own).max(1);
    let hidden = heads * own;
    let gates = cell.gates() * hidden;
    check(&x, "weight_ih", &weights.weight_ih, [gates, width])?;
    check(&x, "weight_hh", &weights.weight_hh, [gates, own])?;
    for (what, bias) in [("bias_ih", &weights.bias_ih), ("bias_hh", &weights.bias_hh)] {
        bias.as_ref()
            .map_or(Ok(()), |bias| check(&x, what, bias, [gates]))?;
    }
    for (what, state) in [("h0", &run.h0), ("c0", &run.c0)] {
        state
            .as_ref()
            .map_or(Ok(()), |state| check(&x, what, state, [batch, hidden]))?;
    }
    if let Some(c0) = &run.c0
        && cell != Cell::Lstm
    {
        return Err(Error::Shape {
            what: "c0, which only an LSTM has",
            expected: vec![],
            found: c0.dims().to_vec(),
        });
    }
    if let Some(reset) = &run.reset
        && reset.dims() != [batch, steps]
    {
        return Err(Error::Shape {
            what: "reset",
            expected: vec![batch, steps],
            found: reset.dims().to_vec(),
        });
    }
    if heads > 1 {
        let problem = Problem::new(cell, batch, steps, hidden).with_heads(heads);
        if !route::in_one_launch(&x.device(), x.dtype(), &problem) {
            return heads::one_by_one(x, weights, cell, run, heads);
        }
    }
    let reset = run.reset.map(|reset| reset.float().cast(x.dtype()));
    let inputs = CellInputs {
        x: x.into_dispatch(),
        w: weights.weight_ih.into_dispatch(),
        u: weights.weight_hh.into_dispatch(),
        bias_ih: maybe(weights.bias_ih),
        bias_hh: maybe(weights.bias_hh),
        h0: maybe(run.h0),
        c0: maybe(run.c0),
        reset: maybe(reset),
    };
    let spec = CellSpec {
        cell,
        reverse: run.reverse,
    };
    let states = <Dispatch as CellOps>::cell_layer(inputs, spec);
    Ok(CellOutput {
        h: Tensor::from_dispatch(states.h),
        h_last: Tensor::from_dispatch(states.h_last),
        c_last: states.c_last.into_option().map(Tensor::from_dispatch),
    })
}

fn maybe<const D: usize>(tensor: Option<Tensor<D>>) -> Maybe<Dispatch> {
    Maybe::from_option(tensor.map(Tensor::into_dispatch))
}

fn check<const D: usize>(
    reference: &Tensor<3>,
    what: &'static str,
    tensor: &Tensor<D>,
    shape: [usize; D],
) -> Result<(), Error> {
    super::support::checks::fits(what, reference, tensor, &shape)
}
