//! Operations on rows: RMSNorm and cross-entropy.

use cubecl::ir::{ElemType, IntKind};
use pyo3::prelude::*;
use riverrun_guest::call::Call;
use riverrun_kernels::cross_entropy::gpu as loss;
use riverrun_kernels::norm::{Spec, gpu as norm};

use super::{dtype, run};
use crate::array::Array;
use crate::place::Stream;

fn numbers(name: &str, numbers: [u64; 2]) -> Vec<u64> {
    numbers
        .into_iter()
        .chain(name.bytes().map(u64::from))
        .collect()
}

/// Computes `y` of `x`, both `[rows, D]`, with a weight `[D]`.
pub fn rms_norm(
    py: Python<'_>,
    stream: &Stream,
    name: &str,
    spec: Spec,
    [x, weight, y]: [Array; 3],
) -> PyResult<()> {
    let dtype = dtype(name)?;
    let (size, dim) = (dtype.size(), weight.1);
    let rows = x.1.checked_div(dim).unwrap_or(0);
    let mut call = Call::new(
        "rms_norm",
        numbers(name, [dim as u64, spec.epsilon.to_bits()]),
    );
    let [x, weight, y] = [
        call.array(x, size),
        call.array(weight, size),
        call.array(y, size),
    ];
    let request = call.recorded(|client, handles| {
        let args = norm::Forward {
            x: handles.at(x),
            residual: None,
            gamma: handles.at(weight),
            beta: None,
            y: handles.at(y),
        };
        norm::forward(client, &spec, dtype, [rows, dim], &args, None)
    });
    run(py, stream, &request)
}

/// Computes the gradients of `x` and the weight.
pub fn rms_norm_back(
    py: Python<'_>,
    stream: &Stream,
    name: &str,
    spec: Spec,
    [x, weight, d_y, d_x, d_weight]: [Array; 5],
) -> PyResult<()> {
    let dtype = dtype(name)?;
    let (size, dim) = (dtype.size(), weight.1);
    let rows = x.1.checked_div(dim).unwrap_or(0);
    let key = numbers(name, [dim as u64, spec.epsilon.to_bits()]);
    let mut call = Call::new("rms_norm_back", key);
    let x = call.array(x, size);
    let weight = call.array(weight, size);
    let d_y = call.array(d_y, size);
    let d_x = call.array(d_x, size);
    let d_weight = call.array(d_weight, size);
    let request = call.recorded(|client, handles| {
        let args = norm::Backward {
            x: handles.at(x),
            gamma: handles.at(weight),
            d_y: handles.at(d_y),
            d_sum: None,
            d_x: handles.at(d_x),
            d_gamma: handles.at(d_weight),
            d_beta: None,
        };
        norm::backward(client, &spec, dtype, [rows, dim], &args, None)
    });
    run(py, stream, &request)
}

/// The type of targets.
const INDEX: ElemType = ElemType::Int(IntKind::I64);

/// Computes the loss, `1 / count` and, a number a row, `lse`.
pub fn cross_entropy(
    py: Python<'_>,
    stream: &Stream,
    name: &str,
    vocab: usize,
    [x, targets, lse, loss, weight]: [Array; 5],
) -> PyResult<()> {
    let dtype = dtype(name)?;
    let rows = targets.1;
    let mut call = Call::new("cross_entropy", numbers(name, [vocab as u64, 0]));
    let x = call.array(x, dtype.size());
    let targets = call.array(targets, 8);
    let [lse, loss, weight] = [
        call.array(lse, 4),
        call.array(loss, 4),
        call.array(weight, 4),
    ];
    let request = call.recorded(|client, handles| {
        let args = loss::Forward {
            x: handles.at(x),
            targets: handles.at(targets),
            index: INDEX,
            loss: handles.at(loss),
            lse: handles.at(lse),
            weight: handles.at(weight),
        };
        loss::forward(client, dtype, [rows, vocab], &args, None)
    });
    run(py, stream, &request)
}

/// Computes the gradient of the logits from `scale`, one number in `f32`: `∂L/∂loss` over the count.
pub fn cross_entropy_back(
    py: Python<'_>,
    stream: &Stream,
    name: &str,
    vocab: usize,
    [x, targets, lse, scale, d_x]: [Array; 5],
) -> PyResult<()> {
    let dtype = dtype(name)?;
    let rows = targets.1;
    let mut call = Call::new("cross_entropy_back", numbers(name, [vocab as u64, 0]));
    let x = call.array(x, dtype.size());
    let targets = call.array(targets, 8);
    let (lse, scale) = (call.array(lse, 4), call.array(scale, 4));
    let d_x = call.array(d_x, dtype.size());
    let request = call.recorded(|client, handles| {
        let args = loss::Backward {
            x: handles.at(x),
            targets: handles.at(targets),
            index: INDEX,
            lse: handles.at(lse),
            // The count is in the scale.
            weight: client.create_from_slice(&1f32.to_ne_bytes()),
            d_loss: handles.at(scale),
            d_x: handles.at(d_x),
        };
        loss::backward(client, dtype, [rows, vocab], &args, None)
    });
    run(py, stream, &request)
}
