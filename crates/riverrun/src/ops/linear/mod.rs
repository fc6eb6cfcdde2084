//! The linear layer with what follows it, `y = act(x W + b)`, and two of them as an MLP: one operation each, with its own
//! backward pass.
//!
//! On CUDA the products are cuBLASLt's, where that is installed: bias, GELU, GELU's derivative and the sums of a bias's
//! gradient are part of the product that makes them, and cost no pass over memory. Elsewhere, and for products too small
//! for it to matter, they are the backend's own, with [`gelu`](super::gelu) after them. Sums are in `f32` or wider.

mod autodiff;
mod backend;
mod composed;
#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "flex")]
mod flex;
mod route;

use burn::backend::Dispatch;
use burn::tensor::Tensor;

use super::support::Maybe;
use crate::Error;

pub use backend::{
    LinearGradients, LinearOps, LinearOutput, LinearSpec, MlpGradients, MlpOutput, ProductOutput,
    ProductSpec, WeightOrder, Weights,
};
pub(crate) use composed::{Factor, product};
pub use riverrun_kernels::gemm::Arithmetic;
pub use route::Route;

/// `y = act(x W + b)` along the last dimension.
///
/// # Arguments
/// - `x`: `[.., I]`, any float dtype.
/// - `weight`: `[I, O]`, as `burn::nn::Linear` keeps it, or `[O, I]`, as PyTorch does: see [`LinearSpec::weight`].
/// - `bias`: `[O]`.
/// - `spec`: the activation, nothing or GELU in its tanh form; the order of the weight; how `f32` is multiplied.
///
/// # Returns
/// `[.., O]`. The backward pass keeps `x`, the weight and, with GELU, `x W + b`.
///
/// # Panics
/// Where [`try_linear`] returns an error.
pub fn linear<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
    spec: LinearSpec,
) -> Tensor<D> {
    try_linear(x, weight, bias, spec).unwrap_or_else(|error| panic!("linear: {error}"))
}

/// [`linear`].
///
/// # Errors
/// Where a shape or dtype does not fit, or the route asked for does not exist.
pub fn try_linear<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
    spec: LinearSpec,
) -> Result<Tensor<D>, Error> {
    check(&x, x.dims()[D - 1], &weight, &bias, &spec)?;
    route::check(&x, &spec)?;
    let weights = weights(weight, bias);
    let y = <Dispatch as LinearOps>::linear_layer(x.into_dispatch(), weights, spec);
    Ok(Tensor::from_dispatch(y))
}

/// `y = gelu(x W₁ + b₁) W₂ + b₂` along the last dimension: the MLP of a residual block.
///
/// # Arguments
/// - `x`: `[.., I]`, any float dtype.
/// - `up`: the first weight, `I` to `H` features, and its bias `[H]`.
/// - `down`: the second, `H` to `O` features, and its bias `[O]`.
/// - `spec`: as for [`linear`]; the activation is GELU whatever it says.
///
/// # Returns
/// `[.., O]`. The backward pass keeps `x`, the weights, `x W₁ + b₁` and its GELU.
///
/// # Panics
/// Where [`try_mlp`] returns an error.
pub fn mlp<const D: usize>(
    x: Tensor<D>,
    up: (Tensor<2>, Option<Tensor<1>>),
    down: (Tensor<2>, Option<Tensor<1>>),
    spec: LinearSpec,
) -> Tensor<D> {
    try_mlp(x, up, down, spec).unwrap_or_else(|error| panic!("mlp: {error}"))
}

/// [`mlp`].
///
/// # Errors
/// Where a shape or dtype does not fit, or the route asked for does not exist.
pub fn try_mlp<const D: usize>(
    x: Tensor<D>,
    up: (Tensor<2>, Option<Tensor<1>>),
    down: (Tensor<2>, Option<Tensor<1>>),
    spec: LinearSpec,
) -> Result<Tensor<D>, Error> {
    check(&x, x.dims()[D - 1], &up.0, &up.1, &spec)?;
    let [_, hidden] = spec.features(up.0.dims());
    check(&x, hidden, &down.0, &down.1, &spec)?;
    route::check(&x, &spec)?;
    let (up, down) = (weights(up.0, up.1), weights(down.0, down.1));
    let y = <Dispatch as LinearOps>::mlp(x.into_dispatch(), up, down, spec);
    Ok(Tensor::from_dispatch(y))
}

fn weights(weight: Tensor<2>, bias: Option<Tensor<1>>) -> Weights<Dispatch> {
    Weights {
        weight: weight.into_dispatch(),
        bias: Maybe::from_option(bias.map(Tensor::into_dispatch)),
    }
}

fn check<const D: usize>(
    x: &Tensor<D>,
    inputs: usize,
    weight: &Tensor<2>,
    bias: &Option<Tensor<1>>,
    spec: &LinearSpec,
) -> Result<(), Error> {
    let [found, outputs] = spec.features(weight.dims());
    if found != inputs || inputs == 0 || outputs == 0 {
        let expected = [inputs.max(1), outputs.max(1)];
        return Err(Error::Shape {
            what: "weight",
            expected: spec.features(expected).to_vec(),
            found: weight.dims().to_vec(),
        });
    }
    let dtypes = [
        ("weight", Some(weight.dtype())),
        ("bias", bias.as_ref().map(Tensor::dtype)),
    ];
    for (what, found) in dtypes {
        if let Some(found) = found.filter(|found| *found != x.dtype()) {
            return Err(Error::Dtype {
                what,
                expected: format!("{:?}", x.dtype()),
                found: format!("{found:?}"),
            });
        }
    }
    match bias {
        Some(bias) if bias.dims() != [outputs] => Err(Error::Shape {
            what: "bias",
            expected: vec![outputs],
            found: bias.dims().to_vec(),
        }),
        _ => Ok(()),
    }
}
