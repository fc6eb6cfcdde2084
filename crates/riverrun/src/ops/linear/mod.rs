//! The linear layer with its activation, `y = act(x W + b)`, and two of them as an MLP: one operation each, with its own
//! backward pass.

#[cfg(feature = "autodiff")]
mod autodiff;
pub(crate) mod backend;
mod composed;
#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "flex")]
mod flex;
mod product;
mod route;

use burn::backend::Dispatch;
use burn::tensor::Tensor;

use super::support::{Maybe, checks};
use crate::Error;

pub(crate) use backend::{
    LinearGradients, LinearOps, LinearOutput, MlpGradients, MlpOutput, ProductOutput, ProductSpec,
    Weights,
};
pub use backend::{LinearSpec, WeightOrder};
pub(crate) use product::{Factor, batched, product, weight_gradient};
pub use riverrun_kernels::gemm::Arithmetic;
pub(crate) use route::ProductRoutes;
pub use route::{ProductLibrary, Route, product_libraries};

/// `y = act(x W + b)` along the last dimension.
///
/// On CUDA, cuBLASLt computes the products if it is installed: bias, GELU, GELU's derivative and the sums of a bias's gradient
/// are part of the product and cost no pass over memory. Elsewhere the backend computes them by one kernel that is known
/// without a measurement, followed by [`gelu`](super::gelu). Sums are in `f32` or wider, and `f32` factors are not rounded unless [TF32](Arithmetic::Tf32) is
/// asked for; [`product_libraries`] lists the library that computes the products of each dtype.
///
/// # Arguments
/// - `x`: `[.., I]`, any float dtype.
/// - `weight`: `[I, O]`, as `burn::nn::Linear` stores it, or `[O, I]`, as PyTorch does: see [`LinearSpec::weight`].
/// - `bias`: `[O]`.
/// - `spec`: the activation, nothing or GELU in its tanh form; the order of the weight; how `f32` is multiplied.
///
/// # Returns
/// `[.., O]`. The backward pass saves `x`, the weight and, with GELU, `x W + b`.
///
/// # Errors
/// Shapes or dtypes that do not fit; a route that does not exist on the device.
pub fn linear<const D: usize>(
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

/// [`linear`] without an activation, and `x` for other layers on it: the gradient of that `x` is added within the product that makes
/// this layer's own, and costs no pass over memory.
///
/// # Errors
/// Those of [`linear`].
pub(crate) fn linear_beside<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
) -> Result<(Tensor<D>, Tensor<D>), Error> {
    let spec = LinearSpec::default();
    check(&x, x.dims()[D - 1], &weight, &bias, &spec)?;
    let weights = weights(weight, bias);
    let (y, x) = <Dispatch as LinearOps>::linear_beside(x.into_dispatch(), weights, spec);
    Ok((Tensor::from_dispatch(y), Tensor::from_dispatch(x)))
}

/// `a b`: the product of two matrices, or of two batches of matrices.
///
/// As `Tensor::matmul`, but `f32` factors are not rounded to TF32, nor in the backward pass.
///
/// # Arguments
/// - `a`: `[.., m, k]`, any float dtype.
/// - `b`: `[.., k, n]`, of the same dtype, with the same dimensions before the last two.
///
/// # Returns
/// `[.., m, n]`. The backward pass saves `a` and `b`.
///
/// # Errors
/// Shapes, dtypes or devices that do not fit; a dtype that the device lacks.
pub fn matmul<const D: usize>(a: Tensor<D>, b: Tensor<D>) -> Result<Tensor<D>, Error> {
    let mut expected = a.dims();
    if D < 2 {
        return Err(Error::Shape {
            what: "a, of at least two dimensions",
            expected: vec![1, 1],
            found: expected.to_vec(),
        });
    }
    expected[D - 2] = expected[D - 1];
    expected[D - 1] = b.dims()[D - 1];
    checks::supported("a", &a.device(), a.dtype())?;
    checks::fits("b", &a, &b, &expected)?;
    let product = <Dispatch as LinearOps>::matmul(a.into_dispatch(), b.into_dispatch());
    Ok(Tensor::from_dispatch(product))
}

/// `y = gelu(x W₁ + b₁) W₂ + b₂` along the last dimension: the MLP of a residual block.
///
/// # Arguments
/// - `x`: `[.., I]`, any float dtype.
/// - `up`: the first weight, `I` to `H` features, and its bias `[H]`.
/// - `down`: the second, `H` to `O` features, and its bias `[O]`.
/// - `spec`: as for [`linear`]; the activation is always GELU.
///
/// # Returns
/// `[.., O]`. The backward pass saves `x`, the weights, `x W₁ + b₁` and its GELU.
///
/// # Errors
/// Shapes or dtypes that do not fit; a route that does not exist on the device.
pub fn mlp<const D: usize>(
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

/// `[N]` as `[batch, steps, N]`, for every step, without a copy. The gradient is the sum over the steps, in `f32` or wider, by the
/// kernel for the gradient of a bias: the backend's own for a broadcast adds up a column in one thread.
pub(crate) fn every_step(x: Tensor<1>, steps: [usize; 2]) -> Tensor<3> {
    Tensor::from_dispatch(<Dispatch as LinearOps>::every_step(
        x.into_dispatch(),
        steps,
    ))
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
    checks::supported("x", &x.device(), x.dtype())?;
    checks::fits("weight", x, weight, &weight.dims())?;
    checks::optional("bias", x, bias.as_ref(), &[outputs])
}
