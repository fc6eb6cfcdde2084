//! The element-by-element parts of an RSSM's step, one launch each way on a GPU: see [`riverrun_kernels::rssm`].

#[cfg(feature = "autodiff")]
mod autodiff;
#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "flex")]
mod flex;
pub(crate) mod sequence;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Dispatch, TensorMetadata, backend_extension};
use burn::tensor::Tensor;
#[cfg(any(feature = "flex", feature = "cube"))]
use riverrun_kernels::rssm::{Blocks, Draw};

use super::norm::{NormKind, NormOps, NormSpec};
use super::support::Maybe;

/// `x σ(x)` of every number.
pub(crate) fn silu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    let shape = x.dims();
    // Nothing to do, and a 0 in a shape would have another meaning to `reshape`.
    if shape.contains(&0) {
        return x;
    }
    let width = shape[D - 1];
    let rows = shape[..D - 1].iter().product::<usize>();
    let y = <Dispatch as RssmOps>::activate_blocks(x.reshape([rows, width]).into_dispatch(), 1);
    Tensor::<3>::from_dispatch(y).reshape(shape)
}

/// `x σ(x)` of every number, `[B, D]` to `[G, B, D / G]`.
pub(crate) fn silu_blocks(x: Tensor<2>, blocks: usize) -> Tensor<3> {
    Tensor::from_dispatch(<Dispatch as RssmOps>::activate_blocks(
        x.into_dispatch(),
        blocks,
    ))
}

/// The next states `[B, D]` from gates `[G, B, 3D / G]`, to which a bias `[G, 1, 3D / G]` is added, and states `[B, D]`.
pub(crate) fn gated_step(
    gates: Tensor<3>,
    bias: Option<Tensor<3>>,
    before: Tensor<2>,
) -> Tensor<2> {
    Tensor::from_dispatch(<Dispatch as RssmOps>::biased_step(
        gates.into_dispatch(),
        Maybe::from_option(bias.map(Tensor::into_dispatch)),
        before.into_dispatch(),
    ))
}

/// `silu(RMSNorm(x + z))` of rows `[R, D]`, with the weights `[D]` and the epsilon of the norm.
pub(crate) fn norm_silu(x: Tensor<2>, z: Option<Tensor<2>>, norm: (Tensor<1>, f64)) -> Tensor<2> {
    if x.dims().contains(&0) {
        return x;
    }
    Tensor::from_dispatch(<Dispatch as RssmOps>::norm_silu(
        x.into_dispatch(),
        Maybe::from_option(z.map(Tensor::into_dispatch)),
        norm.0.into_dispatch(),
        norm.1,
    ))
}

/// `[n(x) ; n(z) ; rest]` of rows `[R, D]`, with `n` as in [`norm_silu`], each with a norm of its own: `[R, 3 D]`.
pub(crate) fn step_inputs(
    [x, z, rest]: [Tensor<2>; 3],
    [of_x, of_z]: [(Tensor<1>, f64); 2],
) -> Tensor<2> {
    Tensor::from_dispatch(<Dispatch as RssmOps>::step_inputs(
        x.into_dispatch(),
        z.into_dispatch(),
        rest.into_dispatch(),
        of_x.0.into_dispatch(),
        of_z.0.into_dispatch(),
        of_x.1,
        of_z.1,
    ))
}

/// One-hot samples of logits `[B, S·C]`, in their dtype, with the noise of step `step` of `[T, B, S, C]`. Their gradient is that of
/// the probabilities.
pub(crate) fn draw_one_hot(
    logits: Tensor<2>,
    noise: Tensor<4>,
    step: usize,
    unimix: f64,
) -> Tensor<2> {
    let classes = noise.dims()[3];
    Tensor::from_dispatch(<Dispatch as RssmOps>::draw_one_hot(
        logits.into_dispatch(),
        noise.into_dispatch(),
        step,
        classes,
        unimix,
    ))
}

/// The sizes of states `[B, D]` in blocks.
#[cfg(any(feature = "flex", feature = "cube"))]
fn blocks_of(states: &[usize], blocks: usize) -> Blocks {
    Blocks {
        batch: states[0],
        blocks,
        width: states[1] / blocks,
    }
}

/// The draw of logits of this shape.
#[cfg(any(feature = "flex", feature = "cube"))]
fn draw_of(logits: &[usize], classes: usize, unimix: f64) -> Draw {
    Draw {
        rows: logits.iter().product::<usize>() / classes,
        classes,
        unimix: unimix as f32,
    }
}

#[cfg(feature = "cube")]
mod fused {
    //! The shapes of the outputs, which fusion needs before an operation runs.

    use burn::backend::fusion::custom::TensorSpec;
    use burn::tensor::Shape;

    pub(super) fn blocks(x: &TensorSpec, blocks: usize) -> TensorSpec {
        let [batch, width] = [x.shape[0], x.shape[1] / blocks];
        TensorSpec::new(Shape::new([blocks, batch, width]), x.dtype)
    }

    pub(super) fn three(x: &TensorSpec) -> TensorSpec {
        TensorSpec::new(Shape::new([x.shape[0], 3 * x.shape[1]]), x.dtype)
    }
}

/// The operations on a backend. Shapes and dtypes have been checked.
#[backend_extension(
    Flex: cfg(feature = "flex"),
    Cube: cfg(feature = "cube"),
    Fusion: cfg(feature = "cube"),
    Autodiff: cfg(feature = "autodiff"),
)]
pub trait RssmOps: NormOps {
    /// See [`norm_silu`].
    #[fusion(meta = |x, _z, _gamma, _epsilon| x.clone())]
    fn norm_silu(
        x: FloatTensor<Self>,
        #[extension_type] z: Maybe<Self>,
        gamma: FloatTensor<Self>,
        epsilon: f64,
    ) -> FloatTensor<Self> {
        let x = match z.into_option() {
            Some(z) => Self::float_add(x, z),
            None => x,
        };
        let kind = NormKind::Rms;
        let (shape, spec) = (x.shape(), NormSpec { kind, epsilon });
        let y = Self::activate_blocks(Self::norm(x, gamma, Maybe::None, spec), 1);
        Self::float_reshape(y, shape)
    }

    /// See [`step_inputs`].
    #[fusion(meta = |x, _z, _rest, _gamma_x, _gamma_z, _epsilon_x, _epsilon_z| fused::three(x))]
    fn step_inputs(
        x: FloatTensor<Self>,
        z: FloatTensor<Self>,
        rest: FloatTensor<Self>,
        gamma_x: FloatTensor<Self>,
        gamma_z: FloatTensor<Self>,
        epsilon_x: f64,
        epsilon_z: f64,
    ) -> FloatTensor<Self> {
        let x = Self::norm_silu(x, Maybe::None, gamma_x, epsilon_x);
        let z = Self::norm_silu(z, Maybe::None, gamma_z, epsilon_z);
        Self::float_cat(vec![x, z, rest], 1)
    }

    /// See [`gated_step`](gated_step()).
    #[fusion(meta = |_gates, _bias, before| before.clone())]
    fn biased_step(
        gates: FloatTensor<Self>,
        #[extension_type] bias: Maybe<Self>,
        before: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        let gates = match bias.into_option() {
            Some(bias) => Self::float_add(gates, bias),
            None => gates,
        };
        Self::gated_step(gates, before)
    }

    /// `x σ(x)`, `[B, D]` to `[G, B, D / G]`.
    #[fusion(meta = |x, blocks| fused::blocks(x, *blocks))]
    fn activate_blocks(x: FloatTensor<Self>, blocks: usize) -> FloatTensor<Self>;

    /// `∂L/∂x`, `[B, D]`, from `∂L/∂y`, `[G, B, D / G]`.
    #[fusion(meta = |x, _d_y| x.clone())]
    fn activate_blocks_backward(x: FloatTensor<Self>, d_y: FloatTensor<Self>) -> FloatTensor<Self>;

    /// The next states from the gates `[G, B, 3D / G]` and the states `[B, D]`.
    #[fusion(meta = |_gates, before| before.clone())]
    fn gated_step(gates: FloatTensor<Self>, before: FloatTensor<Self>) -> FloatTensor<Self>;

    /// The gradients of the gates and of the states.
    #[fusion(meta = |gates, before, _d_next| (gates.clone(), before.clone()))]
    fn gated_step_backward(
        gates: FloatTensor<Self>,
        before: FloatTensor<Self>,
        d_next: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// One-hot samples of logits `[B, S·C]` with the noise of a step of `[T, B, S, C]`, in `f32`.
    #[fusion(meta = |logits, _noise, _step, _classes, _unimix| logits.clone())]
    fn draw_one_hot(
        logits: FloatTensor<Self>,
        noise: FloatTensor<Self>,
        step: usize,
        classes: usize,
        unimix: f64,
    ) -> FloatTensor<Self>;

    /// `∂L/∂logits` from `∂L/∂sample`.
    #[fusion(meta = |logits, _d_sample, _classes, _unimix| logits.clone())]
    fn draw_one_hot_backward(
        logits: FloatTensor<Self>,
        d_sample: FloatTensor<Self>,
        classes: usize,
        unimix: f64,
    ) -> FloatTensor<Self>;
}
