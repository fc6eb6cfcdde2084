//! Weights of other frameworks.
//!
//! [`from_pytorch`] and [`to_pytorch`] exchange [`Gru`], [`Lstm`] and [`Rnn`] with PyTorch's `nn.GRU`, `nn.LSTM` and `nn.RNN`: the
//! parameters here have PyTorch's shapes and gate orders already, so the numbers stay as they are and only the names are
//! translated. [`from_burn_gru`] and [`from_burn_lstm`] take over the layers of `burn::nn`, [`from_keras_gru`] and
//! [`from_keras_lstm`] arrays in Keras' layout, [`from_cudnn_gru`] and [`from_cudnn_lstm`] cuDNN's flat one.
//!
//! PyTorch's own files (`.pt`) are read and not written: they are pickled programs in a ZIP archive, and no crate that is
//! kept up writes them. `safetensors.torch.load_file` opens what is written here.
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
mod cudnn;
mod keras;
mod pytorch;

pub use burn_nn::{from_burn_gru, from_burn_lstm};
pub use cudnn::{from_cudnn_gru, from_cudnn_lstm};
pub use keras::{from_keras_gru, from_keras_lstm};
pub use pytorch::{from_pytorch, to_pytorch};

use crate::Error;
use crate::nn::{CellStack, Gru, Lstm, Rnn};
use crate::ops::{Cell, ResetGate};

/// A layer that PyTorch has too.
pub trait PyTorchLayer {
    /// Its layers.
    fn stack(&self) -> &CellStack;

    /// Its layers, to be changed.
    fn stack_mut(&mut self) -> &mut CellStack;

    /// Refuses what PyTorch does not have.
    ///
    /// # Errors
    /// A GRU that resets before the product: the same numbers would mean something else there.
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
        impl PyTorchLayer for $layer {
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
