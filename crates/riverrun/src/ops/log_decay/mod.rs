//! Step sizes and the logarithms of the decays that they make, as one kernel each way on every device.

#[cfg(feature = "autodiff")]
mod autodiff;
#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "flex")]
mod flex;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, ExtensionType, TensorMetadata, backend_extension};
use burn::tensor::{DType, Tensor};
use riverrun_kernels::log_decay::Shape;

use super::support::Maybe;
use super::support::map::map_tensors;

/// `Δ = softplus(a + dt_bias)`, if wanted, and `g = -e^(A_log) Δ`; see [`riverrun_kernels::log_decay`]. The backward pass saves the
/// inputs.
///
/// # Arguments
/// - `a`: `[B, T, H E]`, any float dtype.
/// - `a_log`, `dt_bias`: `[H]` and `[H E]`, in `f32`, `f64` for `f64`.
///
/// # Returns
/// `Δ`, of the parameters' dtype, and `g`, of the dtype of `a`, both in the shape of `a`.
pub(crate) fn log_decay(
    a: Tensor<3>,
    a_log: Tensor<1>,
    dt_bias: Tensor<1>,
    with_step: bool,
) -> (Option<Tensor<3>>, Tensor<3>) {
    let inputs = DecayInputs {
        a: a.into_dispatch(),
        a_log: a_log.into_dispatch(),
        dt_bias: dt_bias.into_dispatch(),
    };
    let out = <Dispatch as LogDecayOps>::log_decay(inputs, with_step);
    (
        out.step.into_option().map(Tensor::from_dispatch),
        Tensor::from_dispatch(out.g),
    )
}

/// The dtype of parameters and step sizes.
fn wide(dtype: DType) -> DType {
    match dtype {
        DType::F64 => DType::F64,
        _ => DType::F32,
    }
}

fn sizes<B: Backend>(inputs: &DecayInputs<B>) -> Shape {
    let (all, heads) = (inputs.a.shape().num_elements(), inputs.a_log.shape()[0]);
    let dim = inputs.dt_bias.shape()[0];
    Shape {
        rows: all / dim,
        heads,
        each: dim / heads,
    }
}

/// Inputs of both passes.
#[derive(Debug, Clone, ExtensionType)]
#[extension_type(fusion: cfg(feature = "cube"))]
pub struct DecayInputs<B: Backend> {
    /// `[B, T, H E]`.
    pub a: FloatTensor<B>,
    /// `[H]`.
    pub a_log: FloatTensor<B>,
    /// `[H E]`.
    pub dt_bias: FloatTensor<B>,
}

/// Results of the forward pass.
#[derive(Debug, Clone, ExtensionType)]
#[extension_type(fusion: cfg(feature = "cube"))]
pub struct Decays<B: Backend> {
    /// `[B, T, H E]`, if wanted.
    #[extension_type]
    pub step: Maybe<B>,
    /// `[B, T, H E]`.
    pub g: FloatTensor<B>,
}

/// Gradients of the inputs.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "cube"))]
pub struct DecayGradients<B: Backend> {
    /// `[B, T, H E]`.
    pub a: FloatTensor<B>,
    /// `[H, E]`: that of a head is the sum over its channels.
    pub a_log: FloatTensor<B>,
    /// `[H E]`.
    pub dt_bias: FloatTensor<B>,
}

map_tensors!(DecayInputs {
    tensors: [a, a_log, dt_bias],
    nested: [],
    integers: []
});

map_tensors!(DecayGradients {
    tensors: [a, a_log, dt_bias],
    nested: [],
    integers: []
});

#[cfg(feature = "cube")]
mod fused {
    //! The shapes of the outputs, which fusion needs before an operation runs.

    use burn::tensor::Shape;

    use super::{DecayGradientsMetadata, DecayInputsMetadata, DecaysMetadata};
    use crate::ops::support::MaybeMetadata;

    pub(super) fn decays(inputs: &DecayInputsMetadata, with_step: bool) -> DecaysMetadata {
        let mut step = inputs.dt_bias.clone();
        step.shape = inputs.a.shape.clone();
        DecaysMetadata {
            step: if with_step {
                MaybeMetadata::Some(step)
            } else {
                MaybeMetadata::None
            },
            g: inputs.a.clone(),
        }
    }

    pub(super) fn gradients(inputs: &DecayInputsMetadata) -> DecayGradientsMetadata {
        let (heads, dim) = (inputs.a_log.shape[0], inputs.dt_bias.shape[0]);
        let mut a_log = inputs.a_log.clone();
        a_log.shape = Shape::new([heads, dim / heads]);
        DecayGradientsMetadata {
            a: inputs.a.clone(),
            a_log,
            dt_bias: inputs.dt_bias.clone(),
        }
    }
}

/// The operation on a backend. Shapes and dtypes are those of [`log_decay`].
#[backend_extension(
    Flex: cfg(feature = "flex"),
    Cube: cfg(feature = "cube"),
    Fusion: cfg(feature = "cube"),
    Autodiff: cfg(feature = "autodiff"),
)]
pub trait LogDecayOps: Backend {
    /// See [`log_decay`].
    #[fusion(meta = |inputs, with_step| fused::decays(inputs, *with_step))]
    fn log_decay(#[extension_type] inputs: DecayInputs<Self>, with_step: bool) -> Decays<Self>;

    /// The gradients from those of `Δ` and `g`.
    #[fusion(meta = |inputs, _d_step, _d_g| fused::gradients(inputs))]
    fn log_decay_backward(
        #[extension_type] inputs: DecayInputs<Self>,
        #[extension_type] d_step: Maybe<Self>,
        #[extension_type] d_g: Maybe<Self>,
    ) -> DecayGradients<Self>;
}
