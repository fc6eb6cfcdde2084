//! A step of a Gated DeltaNet between its products, in one launch: on GPUs, for streams.

#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "flex")]
mod flex;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, backend_extension};
use burn::tensor::{DType, Device, Tensor};
use riverrun_kernels::delta_step::Problem;

use super::support::checks;
use crate::Error;

/// What a step reads, in the shapes of [`riverrun_kernels::delta_step`].
pub(crate) struct DeltaStep {
    /// `[B, 2 J K + H V]`.
    pub mixed: Tensor<2>,
    /// `[B, 2 H]`.
    pub rates: Tensor<2>,
    /// `[B, H V]`.
    pub gate: Tensor<2>,
    /// `[taps, 2 J K + H V]`.
    pub weight: Tensor<2>,
    /// `[H]`, `f32`.
    pub a_log: Tensor<1>,
    /// `[H]`, `f32`.
    pub dt_bias: Tensor<1>,
    /// `[V]`.
    pub gamma: Tensor<1>,
}

/// Whether a device has the kernel for a problem; none has it under autodiff.
#[allow(unused_variables)]
pub(crate) fn takes_delta_step(device: &Device, dtype: DType, problem: &Problem) -> bool {
    #[cfg(feature = "cube")]
    if let burn::backend::DispatchDevice::Cube(cube) = device.as_dispatch() {
        return super::support::cube::known(dtype).is_some()
            && riverrun_kernels::delta_step::gpu::takes(&cube.client(), problem);
    }
    false
}

impl DeltaStep {
    /// `[B, H V]`, and the inputs, `[B, taps - 1, 2 J K + H V]`, and states, `[B, H, K, V]` in `f32`, after the step: in the memory of
    /// those before where no other tensor shares it.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where [`takes_delta_step`] says no; shapes and dtypes that do not fit.
    pub(crate) fn run(
        self,
        inputs: Tensor<3>,
        states: Tensor<4>,
        problem: Problem,
    ) -> Result<(Tensor<2>, Tensor<3>, Tensor<4>), Error> {
        let (shape, x) = (problem.shape, &self.mixed);
        if !takes_delta_step(&x.device(), x.dtype(), &problem) {
            let reason = "a Gated DeltaNet's step in one launch is for GPUs, without autodiff";
            return Err(Error::Unsupported(reason.into()));
        }
        let (batch, channels) = (shape.batch, shape.channels());
        checks::shape("mixed", &[batch, channels], &x.dims())?;
        checks::fits("rates", x, &self.rates, &[batch, 2 * shape.heads])?;
        checks::fits("gate", x, &self.gate, &[batch, shape.width()])?;
        checks::fits("weight", x, &self.weight, &[shape.taps, channels])?;
        checks::fits("gamma", x, &self.gamma, &[shape.value])?;
        let kept = [batch, shape.taps - 1, channels];
        checks::fits("the inputs of the state", x, &inputs, &kept)?;
        let sizes = [batch, shape.heads, shape.key, shape.value];
        checks::shape("the matrices of the state", &sizes, &states.dims())?;
        checks::fits("a_log", &states, &self.a_log, &[shape.heads])?;
        checks::fits("dt_bias", &states, &self.dt_bias, &[shape.heads])?;
        if states.dtype() != DType::F32 {
            return Err(Error::Dtype {
                what: "the matrices of the state",
                expected: "F32".into(),
                found: format!("{:?}", states.dtype()),
            });
        }
        let (y, inputs, states) = <Dispatch as DeltaStepOps>::delta_step(
            self.mixed.into_dispatch(),
            self.rates.into_dispatch(),
            self.gate.into_dispatch(),
            self.weight.into_dispatch(),
            self.a_log.into_dispatch(),
            self.dt_bias.into_dispatch(),
            self.gamma.into_dispatch(),
            inputs.into_dispatch(),
            states.into_dispatch(),
            problem,
        );
        Ok((
            Tensor::from_dispatch(y),
            Tensor::from_dispatch(inputs),
            Tensor::from_dispatch(states),
        ))
    }
}

/// [`DeltaStep::run`] on a backend. Shapes, dtypes and the device have been checked.
#[backend_extension(
    Flex: cfg(feature = "flex"),
    Cube: cfg(feature = "cube"),
    Fusion: cfg(feature = "cube"),
)]
pub trait DeltaStepOps: Backend {
    /// `y`, the inputs and the states.
    #[fusion(meta = |_mixed, _rates, gate, _weight, _a_log, _dt_bias, _gamma, inputs, states, _problem| (gate.clone(), inputs.clone(), states.clone()))]
    fn delta_step(
        mixed: FloatTensor<Self>,
        rates: FloatTensor<Self>,
        gate: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        a_log: FloatTensor<Self>,
        dt_bias: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        inputs: FloatTensor<Self>,
        states: FloatTensor<Self>,
        problem: Problem,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);
}
