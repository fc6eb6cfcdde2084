//! Features of the states of many training runs.

#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "flex")]
mod flex;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, backend_extension};
use burn::tensor::{DType, Device, Tensor, TensorData};
use riverrun_kernels::encoder::{FlatStates, SCALARS, StateEncoder};

use super::support::checks;
use crate::Error;

/// States of `N` training runs on a device.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RunStates {
    /// Losses, the oldest first, zeros after the newest: `[N, L]`.
    pub losses: Tensor<2>,
    /// Gradient norms in the same order, `[N, G]`.
    pub gradients: Tensor<2>,
    /// The values without a history, `[N, 24]`, see [`FlatStates`].
    pub scalars: Tensor<2>,
}

impl RunStates {
    /// States from tensors in f32.
    pub fn new(losses: Tensor<2>, gradients: Tensor<2>, scalars: Tensor<2>) -> Self {
        Self {
            losses,
            gradients,
            scalars,
        }
    }

    /// Sends the states of encoders to a device.
    ///
    /// # Errors
    /// Encoders with histories of different sizes.
    pub fn from_encoders<'a>(
        encoders: impl IntoIterator<Item = &'a StateEncoder>,
        device: &Device,
    ) -> Result<Self, Error> {
        let flat = FlatStates::new(encoders)?;
        let runs = flat.runs();
        let send = |numbers: Vec<f32>, each: usize| {
            Tensor::from_data(TensorData::new(numbers, [runs, each]), device)
        };
        Ok(Self {
            losses: send(flat.losses, flat.losses_each),
            gradients: send(flat.gradients, flat.gradients_each),
            scalars: send(flat.scalars, SCALARS),
        })
    }
}

/// The 64 features of every run, `[N, 64]`, in f32: one launch on a GPU. See [`riverrun_kernels::encoder`] for each feature.
/// No gradients pass.
///
/// # Errors
/// Shapes or devices that do not fit together, histories of fewer than 32 values, dtypes other than f32.
pub fn encode_states(states: RunStates) -> Result<Tensor<2>, Error> {
    let [runs, losses] = states.losses.dims();
    let gradients = states.gradients.dims()[1];
    checks::dtype("losses", DType::F32, states.losses.dtype())?;
    for (what, tensor, each) in [
        ("gradients", &states.gradients, gradients),
        ("scalars", &states.scalars, SCALARS),
    ] {
        checks::fits(what, &states.losses, tensor, &[runs, each])?;
    }
    if losses.min(gradients) < 32 {
        return Err(riverrun_kernels::Error::Encoder {
            reason: format!("histories of {losses} and {gradients} places, expected 32 or more"),
        }
        .into());
    }
    let plain = |tensor: Tensor<2>| tensor.inner().into_dispatch();
    Ok(Tensor::from_dispatch(
        <Dispatch as EncoderOps>::encode_states(
            plain(states.losses),
            plain(states.gradients),
            plain(states.scalars),
        ),
    ))
}

#[cfg(feature = "cube")]
mod fused {
    //! The shapes of the outputs, which fusion needs before an operation runs.

    use burn::backend::fusion::custom::TensorSpec;
    use burn::tensor::{DType, Shape};
    use riverrun_kernels::encoder::FEATURES;

    pub(super) fn features(scalars: &TensorSpec) -> TensorSpec {
        TensorSpec::new(Shape::new([scalars.shape[0], FEATURES]), DType::F32)
    }
}

/// [`encode_states`] on a backend. Shapes and dtypes have been checked.
#[backend_extension(
    Flex: cfg(feature = "flex"),
    Cube: cfg(feature = "cube"),
    Fusion: cfg(feature = "cube"),
)]
pub trait EncoderOps: Backend {
    /// `[N, 64]`.
    #[fusion(meta = |_losses, _gradients, scalars| fused::features(scalars))]
    fn encode_states(
        losses: FloatTensor<Self>,
        gradients: FloatTensor<Self>,
        scalars: FloatTensor<Self>,
    ) -> FloatTensor<Self>;
}
