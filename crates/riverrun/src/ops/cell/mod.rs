//! Layers with a recurrent matrix: GRU, LSTM and Elman, from the input `x` to every state.

#[cfg(feature = "autodiff")]
mod autodiff;
pub(crate) mod backend;
mod composed;
#[cfg(feature = "cube")]
mod cube;
mod divided;
#[cfg(feature = "flex")]
mod flex;
mod heads;
mod route;

use burn::backend::Dispatch;
use burn::tensor::{DType, Int, Tensor, TensorData};
use riverrun_kernels::cell::Problem;
pub use riverrun_kernels::cell::{Activation, Cell, ResetGate};
pub(crate) use route::CellRoutes;

pub(crate) use backend::{
    CellGradients, CellInputs, CellOps, CellOutputGrads, CellSpec, CellStates, StepGradients,
    StepInputs,
};

use super::support::lengths::{fill, padding};
use super::support::{Maybe, MaybeInt, checks};
use crate::{Error, Sequence};

/// The weights of one layer in one direction; shapes, gate orders and names are PyTorch's. `G` is 3 for the GRU
/// (r, z, n), 4 for the LSTM (i, f, g, o), 1 for Elman; `N` is the number of heads.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CellWeights {
    /// `[G·H, I]`: from the input.
    pub weight_ih: Tensor<2>,
    /// `[G·H, H/N]`: from the state. With several heads the hidden units are `N` groups, each connected to its own group of
    /// states only, in the order of its columns.
    pub weight_hh: Tensor<2>,
    /// `[G·H]`: added to the input product.
    pub bias_ih: Option<Tensor<1>>,
    /// `[G·H]`: added to the recurrent product.
    pub bias_hh: Option<Tensor<1>>,
    /// `N ≥ 1`: the blocks of a block-diagonal recurrent matrix.
    pub heads: usize,
}

impl CellWeights {
    /// `weight_ih`, `[G·H, I]`, and `weight_hh`, `[G·H, H]`: one head, no biases.
    pub fn new(weight_ih: Tensor<2>, weight_hh: Tensor<2>) -> Self {
        Self {
            weight_ih,
            weight_hh,
            bias_ih: None,
            bias_hh: None,
            heads: 1,
        }
    }

    /// With biases, `[G·H]` each, of the input product and of the recurrent product.
    pub fn with_biases(mut self, ih: Option<Tensor<1>>, hh: Option<Tensor<1>>) -> Self {
        (self.bias_ih, self.bias_hh) = (ih, hh);
        self
    }

    /// With a `weight_hh` of this many heads, `[G·H, H/N]`.
    pub fn with_heads(mut self, heads: usize) -> Self {
        self.heads = heads;
        self
    }
}

/// The state of a cell.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CellState {
    /// `[B, H]`.
    pub h: Tensor<2>,
    /// `[B, H]`, LSTM only: the cell state; zero when absent from an initial state.
    pub c: Option<Tensor<2>>,
}

impl CellState {
    /// `h`, `[B, H]`, with no cell state.
    pub fn new(h: Tensor<2>) -> Self {
        Self { h, c: None }
    }

    /// With the cell state of an LSTM, `[B, H]`.
    pub fn with_c(mut self, c: Tensor<2>) -> Self {
        self.c = Some(c);
        self
    }
}

/// The options of a cell. The default runs forward in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct CellOptions {
    /// From the last step to the first.
    pub reverse: bool,
}

impl CellOptions {
    /// The default.
    pub fn new() -> Self {
        Self::default()
    }

    /// From the last step to the first, or from the first to the last.
    pub fn with_reverse(mut self, reverse: bool) -> Self {
        self.reverse = reverse;
        self
    }
}

/// Runs a cell over `x`, input product included.
///
/// See [`riverrun_kernels::cell`] for the formulas. On the CPU a layer is one call of a fused kernel each way. On a GPU it
/// is the input product of all steps, then the cell: on NVIDIA GPUs in one launch each way; on others, and where a launch
/// cannot hold the weights, step by step from the backend's own operations.
///
/// A single step without gradients, as a stream makes it, is one launch on every GPU, input product included, for up to 64
/// sequences (two launches for the GRU with the reset gate before the product); the states stay on the device.
///
/// With several heads the layer is that of a block-diagonal recurrent matrix, an ensemble of small cells side by side. On
/// NVIDIA GPUs they run in one launch where each has a multiple of 16 hidden units; elsewhere one after the other.
///
/// Differentiable in `x`, the weights, the biases and the initial state, from every state and from the last one. The backward
/// pass saves `x`, the states and 4 (GRU), 5 (LSTM) or no (Elman) blocks of `H` values a step.
///
/// # Arguments
/// - `x`: `[B, T, I]`.
/// - `weights`: in the dtype of `x`.
/// - `sequence`: the initial state, resets `[B, T]`, lengths.
/// - `options`: the direction.
///
/// # Returns
/// `[B, T, H]`, every state, and the last one, which is the initial one where `T` is 0.
///
/// # Errors
/// Shapes, dtypes, devices or lengths that do not fit, by name; a dtype that the device lacks; a `c` for a cell without one.
/// Nothing has been launched then.
pub fn cell_layer(
    x: Tensor<3>,
    weights: CellWeights,
    cell: Cell,
    sequence: Sequence<CellState>,
    options: CellOptions,
) -> Result<(Tensor<3>, CellState), Error> {
    let hidden = check(&x, &weights, cell, &sequence)?;
    match sequence.neighbours {
        Some(_) => divided::run(x, weights, cell, hidden, sequence, options),
        None => run(x, weights, cell, hidden, sequence, options),
    }
}

/// The cell on arguments that have been checked, with a state of its own.
fn run(
    x: Tensor<3>,
    weights: CellWeights,
    cell: Cell,
    hidden: usize,
    sequence: Sequence<CellState>,
    options: CellOptions,
) -> Result<(Tensor<3>, CellState), Error> {
    let [batch, steps, _] = x.dims();
    let (heads, device, dtype) = (weights.heads, x.device(), x.dtype());
    if heads > 1 {
        let problem = Problem::new(cell, batch, steps, hidden).with_heads(heads);
        if !route::in_one_launch(&device, dtype, &problem) {
            return heads::one_by_one(x, weights, cell, sequence, options);
        }
    }
    let (h0, c0) = match sequence.state {
        Some(state) => (Some(state.h), state.c),
        None => (None, None),
    };
    let padded = padding(sequence.lengths.as_deref(), steps, &device);
    let (x, lengths) = match (&padded, sequence.lengths) {
        // A NaN at a padded step would reach the weights' gradients even when multiplied by 0.
        (Some(padding), Some(lengths)) => (fill(x, padding, 0.0), Some(lengths)),
        _ => (x, None),
    };
    let lengths = lengths.map(|lengths| {
        let lengths: Vec<i32> = lengths.into_iter().map(|length| length as i32).collect();
        let lengths = TensorData::new(lengths, [batch]);
        Tensor::<1, Int>::from_data(lengths, (&device, DType::I32)).into_dispatch()
    });
    let reset = sequence.reset.map(|reset| reset.float().cast(dtype));
    let inputs = CellInputs {
        x: x.into_dispatch(),
        w: weights.weight_ih.into_dispatch(),
        u: weights.weight_hh.into_dispatch(),
        bias_ih: maybe(weights.bias_ih),
        bias_hh: maybe(weights.bias_hh),
        h0: maybe(h0),
        c0: maybe(c0),
        reset: maybe(reset),
        lengths: MaybeInt::from_option(lengths),
    };
    let spec = CellSpec {
        cell,
        heads,
        reverse: options.reverse,
    };
    let states = <Dispatch as CellOps>::cell_layer(inputs, spec);
    let state = CellState {
        h: Tensor::from_dispatch(states.h_last),
        c: states.c_last.into_option().map(Tensor::from_dispatch),
    };
    let h = Tensor::from_dispatch(states.h);
    let h = match &padded {
        Some(padding) => fill(h, padding, 0.0),
        None => h,
    };
    Ok((h, state))
}

fn maybe<const D: usize>(tensor: Option<Tensor<D>>) -> Maybe<Dispatch> {
    Maybe::from_option(tensor.map(Tensor::into_dispatch))
}

/// Refuses arguments that do not fit; returns `H`.
fn check(
    x: &Tensor<3>,
    weights: &CellWeights,
    cell: Cell,
    sequence: &Sequence<CellState>,
) -> Result<usize, Error> {
    let [batch, steps, width] = x.dims();
    let [rows, depth] = weights.weight_hh.dims();
    let (hidden, heads) = (rows / cell.gates(), weights.heads);
    if hidden == 0 || depth == 0 {
        return Err(riverrun_kernels::Error::NoChannels.into());
    }
    if heads == 0 || !hidden.is_multiple_of(heads) {
        return Err(Error::Unsupported(format!(
            "{hidden} hidden units do not make {heads} heads of one size"
        )));
    }
    let gates = cell.gates() * hidden;
    checks::supported("x", &x.device(), x.dtype())?;
    checks::fits("weight_hh", x, &weights.weight_hh, &[gates, hidden / heads])?;
    checks::fits("weight_ih", x, &weights.weight_ih, &[gates, width])?;
    checks::optional("bias_ih", x, weights.bias_ih.as_ref(), &[gates])?;
    checks::optional("bias_hh", x, weights.bias_hh.as_ref(), &[gates])?;
    if let Some(state) = &sequence.state {
        checks::fits("h0", x, &state.h, &[batch, hidden])?;
        checks::optional("c0", x, state.c.as_ref(), &[batch, hidden])?;
        if let (Some(c), false) = (&state.c, cell == Cell::Lstm) {
            return Err(Error::Shape {
                what: "c0, which only an LSTM has",
                expected: vec![],
                found: c.dims().to_vec(),
            });
        }
    }
    checks::reset(x, sequence.reset.as_ref(), [batch, steps])?;
    checks::lengths(sequence.lengths.as_deref(), [batch, steps])?;
    Ok(hidden)
}
