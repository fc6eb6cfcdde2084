//! The element-by-element parts of an RSSM's step, one launch each way on a GPU: see [`riverrun_kernels::rssm`].

#[cfg(feature = "autodiff")]
mod autodiff;
#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "flex")]
mod flex;
pub(crate) mod sequence;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, backend_extension};
use burn::tensor::Tensor;
#[cfg(any(feature = "flex", feature = "cube"))]
use riverrun_kernels::rssm::{Blocks, Draw};

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

/// The next states `[B, D]` from gates `[G, B, 3D / G]` and states `[B, D]`.
pub(crate) fn gated_step(gates: Tensor<3>, before: Tensor<2>) -> Tensor<2> {
    Tensor::from_dispatch(<Dispatch as RssmOps>::gated_step(
        gates.into_dispatch(),
        before.into_dispatch(),
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
}

/// The operations on a backend. Shapes and dtypes have been checked.
#[backend_extension(
    Flex: cfg(feature = "flex"),
    Cube: cfg(feature = "cube"),
    Fusion: cfg(feature = "cube"),
    Autodiff: cfg(feature = "autodiff"),
)]
pub trait RssmOps: Backend {
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
