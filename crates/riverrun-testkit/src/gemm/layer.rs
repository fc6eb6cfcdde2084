//! Linear layers and MLPs on tensors.

use burn::tensor::{DType, Device, Tensor, TensorData};
use riverrun::Error;
use riverrun::ops::{self as product, LinearSpec, WeightOrder, matmul, mlp};

use crate::gemm::check::{LayerCase, Outcome};

fn tensor<const D: usize>(
    data: &[f64],
    shape: [usize; D],
    dtype: DType,
    device: &Device,
) -> Tensor<D> {
    let data = TensorData::new(data.to_vec(), shape).convert_dtype(dtype);
    Tensor::from_data(data, (device, dtype)).require_grad()
}

fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    tensor.into_data().iter::<f64>().collect()
}

/// Runs a case in a storage type, forward and backward; the case's activation and arithmetic override those of `spec`.
///
/// # Errors
/// If the route in `spec` does not exist on the device.
pub fn linear(
    case: &LayerCase,
    device: &Device,
    dtype: DType,
    spec: LinearSpec,
) -> Result<Outcome, Error> {
    let device = device.clone().autodiff();
    let spec = LinearSpec {
        gelu: case.gelu,
        arithmetic: case.arithmetic,
        ..spec
    };
    let turned = spec.weight == WeightOrder::OutputsFirst;
    let first = case.layers[0].features[0];
    let outputs = case.layers[case.layers.len() - 1].features[1];
    // Three dimensions, so that they are folded and unfolded.
    let x = tensor(&case.x, [1, case.rows, first], dtype, &device);
    let d_y = tensor(&case.d_y, [1, case.rows, outputs], dtype, &device);
    let layers: Vec<(Tensor<2>, Option<Tensor<1>>)> = case
        .layers
        .iter()
        .map(|layer| {
            let weight = tensor(&layer.weight, layer.features, dtype, &device);
            let weight = match turned {
                true => Tensor::from_data(weight.transpose().into_data(), (&device, dtype))
                    .require_grad(),
                false => weight,
            };
            let bias = layer.bias.as_ref();
            (
                weight,
                bias.map(|bias| tensor(bias, [layer.features[1]], dtype, &device)),
            )
        })
        .collect();
    let y = match layers.as_slice() {
        [(weight, bias)] => product::linear(x.clone(), weight.clone(), bias.clone(), spec)?,
        [up, down] => mlp(x.clone(), up.clone(), down.clone(), spec)?,
        _ => unreachable!("one layer or two"),
    };
    let grads = (y.clone() * d_y.detach()).sum().backward();
    let mut outcome = vec![("y".to_string(), numbers(y))];
    for (i, (weight, bias)) in layers.iter().enumerate().rev() {
        let d_weight = weight.grad(&grads).expect("a gradient");
        let d_weight = if turned {
            d_weight.transpose()
        } else {
            d_weight
        };
        outcome.push((format!("d_weight {i}"), numbers(d_weight)));
        if let Some(bias) = bias {
            let d_bias = bias.grad(&grads).expect("a gradient");
            outcome.push((format!("d_bias {i}"), numbers(d_bias)));
        }
    }
    outcome.push(("d_x".into(), numbers(x.grad(&grads).expect("a gradient"))));
    Ok(outcome)
}

/// Runs cases of one layer each, of the same sizes and without biases, as one batch of products whose features lie side by
/// side: `[R, G · I]` to `[R, G · O]`.
///
/// # Errors
/// A dtype that the device lacks.
pub fn blocks(cases: &[LayerCase], device: &Device, dtype: DType) -> Result<Vec<Outcome>, Error> {
    let device = device.clone().autodiff();
    let (count, rows) = (cases.len(), cases[0].rows);
    let [inputs, outputs] = cases[0].layers[0].features;
    let beside = |width: usize, of: &dyn Fn(&LayerCase) -> &[f64]| -> Tensor<3> {
        let data: Vec<f64> = (0..rows)
            .flat_map(|row| {
                cases
                    .iter()
                    .flat_map(move |case| of(case)[row * width..][..width].iter().copied())
            })
            .collect();
        tensor(&data, [rows, count, width], dtype, &device)
    };
    let x = beside(inputs, &|case| &case.x);
    let d_y = beside(outputs, &|case| &case.d_y).detach();
    let weights: Vec<f64> = cases
        .iter()
        .flat_map(|case| case.layers[0].weight.iter().copied())
        .collect();
    let weight = tensor(&weights, [count, inputs, outputs], dtype, &device);
    let y = matmul(x.clone().swap_dims(0, 1), weight.clone())?.swap_dims(0, 1);
    let grads = (y.clone() * d_y).sum().backward();
    let [y, d_x] = [y, x.grad(&grads).expect("a gradient")].map(|x| numbers(x.swap_dims(0, 1)));
    let d_weight = numbers(weight.grad(&grads).expect("a gradient"));
    let of = |data: &[f64], size: usize, i: usize| data[i * size..][..size].to_vec();
    Ok((0..count)
        .map(|i| {
            vec![
                ("y".to_string(), of(&y, rows * outputs, i)),
                ("d_weight 0".to_string(), of(&d_weight, inputs * outputs, i)),
                ("d_x".to_string(), of(&d_x, rows * inputs, i)),
            ]
        })
        .collect())
}
