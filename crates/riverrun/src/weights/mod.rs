//! Weights of other frameworks.
//!
//! [`from_pytorch`] and [`to_pytorch`] exchange [`Gru`], [`Lstm`] and [`Rnn`] with PyTorch's `nn.GRU`, `nn.LSTM` and `nn.RNN`: the
//! parameters have PyTorch's shapes and gate orders, so only names are translated. [`from_burn_gru`] and [`from_burn_lstm`]
//! convert the layers of `burn::nn`, [`from_keras_gru`] and [`from_keras_lstm`] arrays in Keras' layout, [`from_cudnn_gru`] and
//! [`from_cudnn_lstm`] cuDNN's flat one, [`from_complementary_gru`] GRUs whose update gate weighs the candidate.
//!
//! [`attention_from_pytorch`] reads `nn.MultiheadAttention`.
//!
//! PyTorch's own files (`.pt`) are read, not written: they are pickled programs in a ZIP archive, and no maintained crate
//! writes them. `safetensors.torch.load_file` opens the files written here.
//!
//! Files written here carry a checksum, and loading one refuses damaged tensors. [`checksum`] is the same for the parameters of
//! any module.
//!
//! ```
//! # #[cfg(feature = "flex")] {
//! use burn::tensor::Device;
//! use riverrun::nn::LstmConfig;
//! use riverrun::weights::{from_pytorch, to_pytorch};
//!
//! let device = Device::flex();
//! let path = std::env::temp_dir().join(format!("riverrun-doc-{}.safetensors", std::process::id()));
//! let lstm = LstmConfig::new(8, 16).with_layers(2).init(&device);
//! to_pytorch(&lstm, &path, "encoder.")?;
//! let again = from_pytorch(LstmConfig::new(8, 16).with_layers(2).init(&device), &path, "encoder.")?;
//! # std::fs::remove_file(&path).ok();
//! # let _ = again;
//! # }
//! # Ok::<(), riverrun::Error>(())
//! ```

mod burn_nn;
mod checksum;
mod complementary;
mod cudnn;
mod keras;
pub(crate) mod pytorch;

pub use burn_nn::{from_burn_gru, from_burn_lstm};
pub use checksum::checksum;
pub use complementary::from_complementary_gru;
pub use cudnn::{from_cudnn_gru, from_cudnn_lstm};
pub use keras::{from_keras_gru, from_keras_lstm};
pub use pytorch::{attention_from_pytorch, from_pytorch, to_pytorch};

use crate::Error;
use crate::nn::{CellStack, Gru, Lstm, Rnn};
use crate::ops::{Cell, ResetGate};

mod sealed {
    use crate::nn::CellStack;

    /// Access to the layers inside.
    pub trait Stacked {
        fn stack(&self) -> &CellStack;
        fn stack_mut(&mut self) -> &mut CellStack;
    }
}

pub(crate) use sealed::Stacked;

/// A layer with a counterpart in PyTorch: [`Gru`], [`Lstm`] and [`Rnn`]. Sealed.
pub trait PyTorchLayer: sealed::Stacked {
    /// Refuses what PyTorch does not have.
    ///
    /// # Errors
    /// A GRU that resets before the product: the same weights would compute something else there.
    #[doc(hidden)]
    fn check(&self) -> Result<(), Error> {
        let before = Cell::Gru {
            reset: ResetGate::Before,
        };
        if self.stack().layers.iter().any(|layer| layer.cell == before) {
            return Err(Error::Unsupported(
                "a GRU that resets before the product has no counterpart in PyTorch, whose GRU resets after it".into(),
            ));
        }
        Ok(())
    }
}

macro_rules! pytorch_layer {
    ($($layer:ty),*) => {$(
        impl PyTorchLayer for $layer {}

        impl Stacked for $layer {
            fn stack(&self) -> &CellStack {
                &self.stack
            }

            fn stack_mut(&mut self) -> &mut CellStack {
                &mut self.stack
            }
        }
    )*};
}

pytorch_layer!(Gru, Lstm, Rnn);
