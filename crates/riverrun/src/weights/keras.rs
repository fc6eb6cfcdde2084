//! Keras' layout: each product as `[in, gates · out]`, one bias or two.
//!
//! Gates are in the order `z, r, h` in Keras' GRU and `i, f, c, o` in its LSTM; here `r, z, n` and `i, f, g, o`.

use burn::module::Param;
use burn::tensor::Tensor;

use crate::Error;
use crate::nn::{CellLayer, Gru, GruConfig, Lstm, LstmConfig};
use crate::ops::ResetGate;

/// A [`Gru`] of one layer with the weights of Keras' `GRU`.
///
/// # Arguments
/// - `kernel`: `[I, 3H]`. `recurrent_kernel`: `[H, 3H]`. Gates side by side in the order `z, r, h`.
/// - `bias`: as Keras keeps it with `reset_after=True` (its default), `[2, 3H]`, the input's row first; with
///   `reset_after=False` its `[3H]` as `[1, 3H]`; none with `use_bias=False`.
/// - `reset_gate`: [`After`](ResetGate::After) for `reset_after=True`, [`Before`](ResetGate::Before) for `False`.
///
/// Activations are Keras' defaults, `tanh` and `sigmoid`. The layer is on the device of `kernel`.
///
/// # Errors
/// A tensor of the wrong shape, by Keras' name for it.
pub fn from_keras_gru(
    kernel: Tensor<2>,
    recurrent_kernel: Tensor<2>,
    bias: Option<Tensor<2>>,
    reset_gate: ResetGate,
) -> Result<Gru, Error> {
    let [input, hidden] = sizes(&kernel, &recurrent_kernel, 3)?;
    let rows = match reset_gate {
        ResetGate::After => 2,
        ResetGate::Before => 1,
    };
    if let Some(bias) = &bias {
        expect("bias", &[rows, 3 * hidden], bias)?;
    }
    let mut gru = GruConfig::new(input, hidden)
        .with_bias(bias.is_some())
        .with_reset_gate(reset_gate)
        .init(&kernel.device());
    // From z, r, h to r, z, n.
    let order = [1, 0, 2];
    let layer = &mut gru.stack.layers[0];
    fill(layer, kernel, recurrent_kernel, &order);
    if let Some(bias) = bias {
        let row = |row: usize| -> Tensor<1> {
            let row: Tensor<1> = bias.clone().narrow(0, row, 1).squeeze_dim(0);
            by_gate(row, 0, &order)
        };
        let input = row(0);
        let recurrent = match reset_gate {
            ResetGate::After => row(1),
            ResetGate::Before => input.zeros_like(),
        };
        set_biases(layer, input, recurrent);
    }
    Ok(gru)
}

/// An [`Lstm`] of one layer with the weights of Keras' `LSTM`.
///
/// # Arguments
/// - `kernel`: `[I, 4H]`. `recurrent_kernel`: `[H, 4H]`. Gates side by side in the order `i, f, c, o`.
/// - `bias`: `[4H]`; none with `use_bias=False`. Keras has put the 1 of `unit_forget_bias` into it already.
///
/// Activations are Keras' defaults, `tanh` and `sigmoid`. The layer is on the device of `kernel`.
///
/// # Errors
/// A tensor of the wrong shape, by Keras' name for it.
pub fn from_keras_lstm(
    kernel: Tensor<2>,
    recurrent_kernel: Tensor<2>,
    bias: Option<Tensor<1>>,
) -> Result<Lstm, Error> {
    let [input, hidden] = sizes(&kernel, &recurrent_kernel, 4)?;
    if let Some(bias) = &bias {
        expect("bias", &[4 * hidden], bias)?;
    }
    let mut lstm = LstmConfig::new(input, hidden)
        .with_bias(bias.is_some())
        .init(&kernel.device());
    let layer = &mut lstm.stack.layers[0];
    fill(layer, kernel, recurrent_kernel, &[0, 1, 2, 3]);
    if let Some(bias) = bias {
        let zeros = bias.zeros_like();
        set_biases(layer, bias, zeros);
    }
    Ok(lstm)
}

/// `[I, H]`.
fn sizes(
    kernel: &Tensor<2>,
    recurrent_kernel: &Tensor<2>,
    gates: usize,
) -> Result<[usize; 2], Error> {
    let [hidden, _] = recurrent_kernel.dims();
    if hidden == 0 {
        return Err(riverrun_kernels::Error::NoChannels.into());
    }
    let [input, _] = kernel.dims();
    expect(
        "recurrent_kernel",
        &[hidden, gates * hidden],
        recurrent_kernel,
    )?;
    expect("kernel", &[input, gates * hidden], kernel)?;
    Ok([input, hidden])
}

pub(super) fn expect<const D: usize>(
    what: &'static str,
    shape: &[usize],
    tensor: &Tensor<D>,
) -> Result<(), Error> {
    if tensor.dims() == shape {
        return Ok(());
    }
    Err(Error::Shape {
        what,
        expected: shape.to_vec(),
        found: tensor.dims().to_vec(),
    })
}

/// The blocks of dimension `dim` in another order.
fn by_gate<const D: usize>(x: Tensor<D>, dim: usize, order: &[usize]) -> Tensor<D> {
    let size = x.dims()[dim] / order.len();
    let block = |&gate: &usize| x.clone().narrow(dim, gate * size, size);
    Tensor::cat(order.iter().map(block).collect(), dim)
}

fn fill(layer: &mut CellLayer, kernel: Tensor<2>, recurrent_kernel: Tensor<2>, order: &[usize]) {
    let weight = |x: Tensor<2>| Param::from_tensor(by_gate(x, 1, order).transpose().detach());
    layer.weight_ih = weight(kernel);
    layer.weight_hh = weight(recurrent_kernel);
}

pub(super) fn set_biases(layer: &mut CellLayer, input: Tensor<1>, recurrent: Tensor<1>) {
    layer.bias_ih = Some(Param::from_tensor(input.detach()));
    layer.bias_hh = Some(Param::from_tensor(recurrent.detach()));
}
