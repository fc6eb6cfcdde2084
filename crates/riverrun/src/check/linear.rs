//! Linear layers and MLPs.

use burn::tensor::{DType, Device, Tensor, TensorData};
use riverrun_kernels::gemm::check::{LayerCase, Outcome};

use crate::Error;
use crate::ops::linear::{LinearSpec, WeightOrder, try_linear, try_mlp};

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
        [(weight, bias)] => try_linear(x.clone(), weight.clone(), bias.clone(), spec)?,
        [up, down] => try_mlp(x.clone(), up.clone(), down.clone(), spec)?,
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
