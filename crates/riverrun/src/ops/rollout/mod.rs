//! Rollouts of an ensemble of recurrent world models, on tensors.

mod composed;
#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "flex")]
mod flex;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, backend_extension};
use burn::tensor::{DType, Tensor};
pub use riverrun_kernels::rollout::Decode;
use riverrun_kernels::rollout::{HEADS, Outcome, Problem, spans};

use super::support::checks;
use crate::Error;

/// The weights of an ensemble of `E` GRUs with the reset gate before the recurrent product, and their shared heads.
///
/// Rows of the update gate, then of the reset gate, then of the candidate; `h' = (1 - z) h + z c`.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Ensemble {
    /// `[E, 3H, I]`.
    pub w: Tensor<3>,
    /// `[E, 3H, H]`.
    pub u: Tensor<3>,
    /// `[E, 3H]`.
    pub bias: Tensor<2>,
    /// `[11, H + S]`: the loss head, then the delta head.
    pub heads: Tensor<2>,
}

impl Ensemble {
    /// An ensemble from its tensors.
    pub fn new(w: Tensor<3>, u: Tensor<3>, bias: Tensor<2>, heads: Tensor<2>) -> Self {
        Self { w, u, bias, heads }
    }

    /// The problem of a rollout of this ensemble.
    ///
    /// # Errors
    /// Shapes that do not fit together; sizes that [`Problem::check`] refuses.
    fn problem(&self, steps: usize, decode: Decode) -> Result<Problem, Error> {
        let [members, rows, features] = self.w.dims();
        let hidden = rows / 3;
        checks::shape("w", &[members, 3 * hidden, features], &self.w.dims())?;
        checks::shape("u", &[members, 3 * hidden, hidden], &self.u.dims())?;
        checks::shape("bias", &[members, 3 * hidden], &self.bias.dims())?;
        let stochastic = self.heads.dims()[1].saturating_sub(hidden);
        checks::shape("heads", &[HEADS, hidden + stochastic], &self.heads.dims())?;
        let mut problem = Problem::new(members, hidden, steps)
            .with_stochastic(stochastic)
            .with_features(features);
        problem.decode = decode;
        problem.check()?;
        Ok(problem)
    }
}

/// The outputs of a rollout, on the device.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Rollout {
    /// The current loss, then the predicted one of each step: `[E, Y + 1]`.
    pub trajectory: Tensor<2>,
    /// State and probabilities after the last step: `[E, H + S]`.
    pub state: Tensor<2>,
    /// Entropies of the categoricals, summed over the steps: `[E]`.
    pub entropy: Tensor<1>,
    /// `‖h‖₂` after each step: `[E, Y]`.
    pub norm: Tensor<2>,
    /// The delta head's outputs: `[E, 10]`.
    pub delta: Tensor<2>,
    rows: Tensor<2>,
    problem: Problem,
}

impl Rollout {
    /// The forecast without members, from a `[0, 1]` tensor that depends on the inputs with gradients: Burn has no backward pass of an empty slice.
    fn of_nobody(problem: Problem, nothing: Tensor<2>) -> Self {
        let part = |length: usize| match length {
            0 => Tensor::zeros([0, 0], (&nothing.device(), nothing.dtype())),
            _ => nothing.clone().reshape([0, length]),
        };
        Self {
            trajectory: part(problem.steps + 1),
            state: part(problem.combined()),
            entropy: nothing.clone().reshape([0]),
            norm: part(problem.steps),
            delta: part(HEADS - 1),
            rows: part(problem.row()),
            problem,
        }
    }

    fn from_rows(problem: Problem, rows: Tensor<2>) -> Self {
        let steps = problem.steps;
        let mut start = 0;
        let mut part = |length: usize| {
            let part = match length {
                0 => Tensor::zeros([problem.members, 0], (&rows.device(), rows.dtype())),
                _ => rows.clone().narrow(1, start, length),
            };
            start += length;
            part
        };
        Self {
            trajectory: part(steps + 1),
            state: part(problem.combined()),
            entropy: part(1).squeeze_dim(1),
            norm: part(steps),
            delta: part(HEADS - 1),
            rows,
            problem,
        }
    }

    /// Reads everything back in one transfer, for metrics, the ensemble's forecast and the proposed change of the weights, and
    /// reports it to `tracing`: see [`spans`].
    ///
    /// # Panics
    /// If the device fails.
    pub fn read(&self) -> (Problem, Outcome<f32>) {
        let rows: Vec<f32> = self.rows.clone().into_data().iter().collect();
        let outcome = Outcome::from_rows(&self.problem, &rows);
        spans(&self.problem, &outcome);
        (self.problem, outcome)
    }
}

/// Forecasts a loss `steps` steps ahead by every member of an ensemble.
///
/// All steps of all members are one kernel on the CPU, and one launch on a GPU for up to 1024 hidden units. With gradients,
/// with more hidden units on a GPU, and in dtypes other than f32 it is composed of tensor operations, through which gradients
/// flow to every input; this is logged at level `debug`. See [`riverrun_kernels::rollout`] for the formulas.
///
/// # Arguments
/// - `h0`: initial states, `[E, H]`.
/// - `features`: `[I]`; the first is replaced by the predicted loss after each step.
/// - `loss`: the current loss, `[1]`.
///
/// # Errors
/// Shapes, dtypes or devices that do not fit together, a dtype that the device does not have, sizes that [`Problem::check`] refuses.
pub fn rollout(
    ensemble: &Ensemble,
    h0: Tensor<2>,
    features: Tensor<1>,
    loss: Tensor<1>,
    steps: usize,
    decode: Decode,
) -> Result<Rollout, Error> {
    let problem = ensemble.problem(steps, decode)?;
    let Ensemble { w, u, bias, heads } = ensemble.clone();
    checks::fits("u", &w, &u, &u.dims())?;
    checks::fits("bias", &w, &bias, &bias.dims())?;
    checks::fits("heads", &w, &heads, &heads.dims())?;
    checks::fits("h0", &w, &h0, &[problem.members, problem.hidden])?;
    checks::fits("features", &w, &features, &[problem.features])?;
    checks::fits("loss", &w, &loss, &[1])?;
    checks::supported("rollout", &w.device(), w.dtype())?;
    let autodiff = [&w, &u].iter().any(|x| x.is_autodiff())
        || [&bias, &heads, &h0].iter().any(|x| x.is_autodiff())
        || [&features, &loss].iter().any(|x| x.is_autodiff());
    if problem.members == 0 {
        let [w, u] = [w, u].map(|x| x.reshape([0, 1]));
        let nothing = w + u + bias.reshape([0, 1]) + h0.reshape([0, 1]);
        return Ok(Rollout::of_nobody(problem, nothing));
    }
    if let Some(reason) = uncovered(&problem, &w, autodiff) {
        tracing::debug!(reason, ?problem, "rollout out of tensor operations");
        let ensemble = Ensemble { w, u, bias, heads };
        let rows = composed::rows(&problem, ensemble, h0, features, loss);
        return Ok(Rollout::from_rows(problem, rows));
    }
    let rows = <Dispatch as RolloutOps>::rollout(
        w.into_dispatch(),
        u.into_dispatch(),
        bias.into_dispatch(),
        heads.into_dispatch(),
        h0.into_dispatch(),
        features.into_dispatch(),
        loss.into_dispatch(),
        steps,
        decode == Decode::Linear,
    );
    Ok(Rollout::from_rows(problem, Tensor::from_dispatch(rows)))
}

/// The reason why the kernels do not cover the problem, if they do not.
#[allow(unused_variables)]
fn uncovered(problem: &Problem, w: &Tensor<3>, autodiff: bool) -> Option<&'static str> {
    if autodiff {
        return Some("gradients are asked for");
    }
    if w.dtype() != DType::F32 {
        return Some("another dtype than f32");
    }
    #[cfg(feature = "cube")]
    if crate::device::client(&w.device()).is_some()
        && problem.hidden > riverrun_kernels::rollout::LARGEST_HIDDEN
    {
        return Some("more hidden units than the GPU kernels take");
    }
    None
}

/// The problem of tensors of these shapes.
fn problem(w: &[usize], heads: &[usize], steps: usize, linear: bool) -> Problem {
    let hidden = w[1] / 3;
    let mut problem = Problem::new(w[0], hidden, steps)
        .with_stochastic(heads[1] - hidden)
        .with_features(w[2]);
    if linear {
        problem.decode = Decode::Linear;
    }
    problem
}

#[cfg(feature = "cube")]
mod fused {
    //! The shapes of the outputs, which fusion needs before an operation runs.

    use burn::backend::fusion::custom::TensorSpec;
    use burn::tensor::Shape;

    pub(super) fn rows(w: &TensorSpec, heads: &TensorSpec, steps: usize) -> TensorSpec {
        let problem = super::problem(&w.shape, &heads.shape, steps, false);
        TensorSpec::new(Shape::new([problem.members, problem.row()]), w.dtype)
    }
}

/// [`rollout`] on a backend, in f32. Shapes and dtypes have been checked.
#[backend_extension(
    Flex: cfg(feature = "flex"),
    Cube: cfg(feature = "cube"),
    Fusion: cfg(feature = "cube"),
)]
pub trait RolloutOps: Backend {
    /// `[E, R]`, see [`Outcome::from_rows`].
    #[fusion(meta = |w, _u, _bias, heads, _h0, _features, _loss, steps, _linear| fused::rows(w, heads, *steps))]
    fn rollout(
        w: FloatTensor<Self>,
        u: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        heads: FloatTensor<Self>,
        h0: FloatTensor<Self>,
        features: FloatTensor<Self>,
        loss: FloatTensor<Self>,
        steps: usize,
        linear: bool,
    ) -> FloatTensor<Self>;
}
