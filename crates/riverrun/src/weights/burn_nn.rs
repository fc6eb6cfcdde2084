//! The GRU and the LSTM of `burn::nn`.
//!
//! There each gate has its own two linear layers, with weights `[in, out]`; here all gates of a product share one matrix
//! `[gates · out, in]`.

use burn::module::Param;
use burn::nn::activation::Activation;
use burn::nn::{GateController, Linear};
use burn::tensor::{Device, Tensor};

use crate::Error;
use crate::nn::{CellLayer, Gru, GruConfig, Lstm, LstmConfig};
use crate::ops::ResetGate;

/// A [`Gru`] with the weights of a `burn::nn::Gru`.
///
/// # Errors
/// Clipping, or other activations than sigmoid and tanh.
pub fn from_burn_gru(gru: &burn::nn::Gru) -> Result<Gru, Error> {
    plain(
        gru.clip,
        &[
            ("gate_activation", &gru.gate_activation, true),
            ("hidden_activation", &gru.hidden_activation, false),
        ],
    )?;
    let gates = [&gru.reset_gate, &gru.update_gate, &gru.new_gate];
    let (input, bias) = (input_size(gates[0]), has_bias(gates[0]));
    let reset = match gru.reset_after {
        true => ResetGate::After,
        false => ResetGate::Before,
    };
    let mut ours = GruConfig::new(input, gru.d_hidden)
        .with_bias(bias)
        .with_reset_gate(reset)
        .init(&device(gates[0]));
    fill(&mut ours.stack.layers[0], &gates);
    Ok(ours)
}

/// An [`Lstm`] with the weights of a `burn::nn::Lstm`.
///
/// # Errors
/// Clipping, a coupled forget gate, running in reverse, or other activations than sigmoid and tanh.
pub fn from_burn_lstm(lstm: &burn::nn::Lstm) -> Result<Lstm, Error> {
    plain(
        lstm.clip,
        &[
            ("gate_activation", &lstm.gate_activation, true),
            ("cell_activation", &lstm.cell_activation, false),
            ("hidden_activation", &lstm.hidden_activation, false),
        ],
    )?;
    let Some(forget) = &lstm.forget_gate else {
        return Err(Error::Unsupported(
            "`input_forget`: an LSTM whose forget gate is coupled to its input gate is not supported".into(),
        ));
    };
    if lstm.reverse {
        return Err(Error::Unsupported(
            "`reverse`: an LSTM that runs in reverse alone is not supported".into(),
        ));
    }
    let gates = [&lstm.input_gate, forget, &lstm.cell_gate, &lstm.output_gate];
    let mut ours = LstmConfig::new(input_size(gates[0]), lstm.d_hidden)
        .with_bias(has_bias(gates[0]))
        .init(&device(gates[0]));
    fill(&mut ours.stack.layers[0], &gates);
    Ok(ours)
}

/// Refuses fields of Burn's layers without a counterpart here, by name.
fn plain(clip: Option<f64>, activations: &[(&str, &Activation, bool)]) -> Result<(), Error> {
    if let Some(clip) = clip {
        return Err(Error::Unsupported(format!(
            "`clip` {clip}: a layer that clips its state is not supported"
        )));
    }
    let other = activations.iter().find(|(_, activation, gate)| match gate {
        true => !matches!(activation, Activation::Sigmoid(_)),
        false => !matches!(activation, Activation::Tanh(_)),
    });
    match other {
        None => Ok(()),
        Some((field, activation, gate)) => Err(Error::Unsupported(format!(
            "`{field}` {activation:?}: only {} is supported",
            if *gate { "sigmoid" } else { "tanh" }
        ))),
    }
}

fn input_size(gate: &GateController) -> usize {
    gate.input_transform.weight.val().dims()[0]
}

fn has_bias(gate: &GateController) -> bool {
    gate.input_transform.bias.is_some()
}

fn device(gate: &GateController) -> Device {
    gate.input_transform.weight.val().device()
}

fn fill(layer: &mut CellLayer, gates: &[&GateController]) {
    let weight = |of: fn(&GateController) -> &Linear| {
        let gates = gates.iter().map(|gate| of(gate).weight.val().transpose());
        // A leaf, so that the layer can be trained on a device that differentiates.
        Tensor::cat(gates.collect(), 0).detach()
    };
    let bias = |of: fn(&GateController) -> &Linear| {
        let gates = gates.iter().map(|gate| of(gate).bias.as_ref());
        let biases: Option<Vec<Tensor<1>>> =
            gates.map(|bias| bias.map(|bias| bias.val())).collect();
        biases.map(|biases| Param::from_tensor(Tensor::cat(biases, 0).detach()))
    };
    layer.weight_ih = Param::from_tensor(weight(|gate| &gate.input_transform));
    layer.weight_hh = Param::from_tensor(weight(|gate| &gate.hidden_transform));
    layer.bias_ih = bias(|gate| &gate.input_transform);
    layer.bias_hh = bias(|gate| &gate.hidden_transform);
}
