//! Linear layers by [`ops::linear`](crate::ops::linear()): the parameters of `burn::nn::Linear`, and so its files.

use burn::nn::Linear;
use burn::tensor::Tensor;

use super::quantized::QuantizedWeight;
use crate::Error;
use crate::ops::{self, LinearSpec, gelu};

/// `x W + b`, `[.., d_input]` to `[.., d_output]`: [`Linear::forward`] by [`ops::linear`](crate::ops::linear()).
pub fn linear<const D: usize>(layer: &Linear, x: Tensor<D>) -> Tensor<D> {
    apply(layer, x).unwrap_or_else(Error::raise)
}

/// [`linear`], with an error for an `x` whose width, dtype or device is not the layer's.
pub fn apply<const D: usize>(layer: &Linear, x: Tensor<D>) -> Result<Tensor<D>, Error> {
    if let Some(weight) = QuantizedWeight::of(&layer.weight, &x) {
        return weight.product(x, layer.bias.as_ref().map(|bias| bias.val()));
    }
    let (weight, bias) = parameters(layer);
    ops::linear(x, weight, bias, LinearSpec::default())
}

/// [`apply`] of several layers to one `x`, whose gradient is added up within the products that make its terms.
pub fn beside<const D: usize, const N: usize>(
    layers: [&Linear; N],
    mut x: Tensor<D>,
) -> Result<[Tensor<D>; N], Error> {
    let mut results = Vec::with_capacity(N);
    for layer in &layers[..N.saturating_sub(1)] {
        if QuantizedWeight::of(&layer.weight, &x).is_some() {
            results.push(apply(layer, x.clone())?);
            continue;
        }
        let (weight, bias) = parameters(layer);
        let y;
        (y, x) = ops::linear::linear_beside(x, weight, bias)?;
        results.push(y);
    }
    if let Some(layer) = layers.last() {
        results.push(apply(layer, x)?);
    }
    Ok(results.try_into().expect("a result of each layer"))
}

/// `gelu(x W₁ + b₁) W₂ + b₂`, `[.., d_input]` to `[.., d_output]`: two layers with GELU between, by
/// [`ops::mlp`].
pub fn mlp<const D: usize>(up: &Linear, down: &Linear, x: Tensor<D>) -> Tensor<D> {
    if QuantizedWeight::of(&up.weight, &x).is_some() {
        let inner = gelu(linear(up, x)).unwrap_or_else(Error::raise);
        return linear(down, inner);
    }
    ops::mlp(x, parameters(up), parameters(down), LinearSpec::default())
        .unwrap_or_else(Error::raise)
}

fn parameters(layer: &Linear) -> (Tensor<2>, Option<Tensor<1>>) {
    (
        layer.weight.val(),
        layer.bias.as_ref().map(|bias| bias.val()),
    )
}
