//! cuDNN's flat layout, in which the cuDNN layers of TensorFlow and of older Keras keep their weights.
//!
//! All matrices come first, layer by layer and in each layer direction by direction: those from the input, `[H, I]` a gate,
//! then those from the state, `[H, H]` a gate, rows first. Then come all biases in the same order: two vectors a gate. Gates
//! are in the order used here: `r, z, n` for the GRU, which resets after the product, and `i, f, g, o` for the LSTM. cuDNN may
//! pad between layers in its own buffers; a canonical parameter vector has no padding, and this is one.

use burn::module::Param;
use burn::tensor::Tensor;

use super::keras::expect;
use crate::Error;
use crate::nn::{CellStack, Gru, GruConfig, Lstm, LstmConfig};
use crate::ops::ResetGate;

/// A [`Gru`] with the parameters of a cuDNN GRU: `params`, one flat vector, for the sizes, layers, directions and biases of
/// `config`. The layer is on the device of `params`.
///
/// # Errors
/// A parameter count that does not match the sizes; a `config` that resets before the product.
pub fn from_cudnn_gru(params: Tensor<1>, config: &GruConfig) -> Result<Gru, Error> {
    if config.reset_gate == ResetGate::Before {
        return Err(Error::Unsupported(
            "a GRU that resets before the product has no counterpart in cuDNN".into(),
        ));
    }
    let mut gru = config.init(&params.device());
    fill(&mut gru.stack, params)?;
    Ok(gru)
}

/// An [`Lstm`] with the parameters of a cuDNN LSTM, as [`from_cudnn_gru`].
///
/// # Errors
/// A parameter count that does not match the sizes.
pub fn from_cudnn_lstm(params: Tensor<1>, config: &LstmConfig) -> Result<Lstm, Error> {
    let mut lstm = config.init(&params.device());
    fill(&mut lstm.stack, params)?;
    Ok(lstm)
}

fn fill(stack: &mut CellStack, params: Tensor<1>) -> Result<(), Error> {
    let count: usize = stack
        .layers
        .iter()
        .map(|layer| {
            let biases = [&layer.bias_ih, &layer.bias_hh];
            let biases = biases.into_iter().flatten().map(|bias| bias.dims()[0]);
            let weights = [&layer.weight_ih, &layer.weight_hh];
            let weights = weights.map(|weight| weight.dims().iter().product::<usize>());
            biases.sum::<usize>() + weights.iter().sum::<usize>()
        })
        .sum();
    expect("cuDNN parameters", &[count], &params)?;
    let mut at = 0;
    let mut next = |len: usize| {
        let part = params.clone().narrow(0, at, len);
        at += len;
        part
    };
    for layer in &mut stack.layers {
        for weight in [&mut layer.weight_ih, &mut layer.weight_hh] {
            let shape = weight.dims();
            *weight = Param::from_tensor(next(shape[0] * shape[1]).reshape(shape).detach());
        }
    }
    for layer in &mut stack.layers {
        for bias in [&mut layer.bias_ih, &mut layer.bias_hh]
            .into_iter()
            .flatten()
        {
            *bias = Param::from_tensor(next(bias.dims()[0]).detach());
        }
    }
    Ok(())
}
