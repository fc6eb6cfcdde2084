//! A step of attention over a ring of keys and values, on GPUs: the same launches at every step, as a recording needs them.

#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "flex")]
mod flex;

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, Dispatch, backend_extension};
use burn::tensor::{Int, Tensor};
use riverrun_kernels::attention::{Problem, Shape};

use super::support::checks;
use crate::Error;
use crate::ops::AttentionOptions;

/// The keys and values of a stream: those of the step at position `p` in place `p mod R`.
#[derive(Debug, Clone)]
pub(crate) struct Ring {
    /// `[B, R, Hk, D]`.
    pub keys: Tensor<4>,
    /// `[B, R, Hk, D]`.
    pub values: Tensor<4>,
}

/// Attention of one query, after its key and value, over the last `R` steps or, of a shorter stream, all of them; of the options the
/// scale and the cap are used. The ring keeps its memory where no other tensor shares it.
///
/// - `qkv`: `[B, H + 2 Hk, D]`, queries beside keys beside values.
/// - `position`: `[1]`, the steps before.
///
/// Returns `[B, H, D]` and the ring with the step.
///
/// # Errors
/// [`Error::Unsupported`] on the CPU and under autodiff; shapes and dtypes that do not fit.
pub(crate) fn attention_step(
    qkv: Tensor<3>,
    ring: Ring,
    position: Tensor<1, Int>,
    options: AttentionOptions,
) -> Result<(Tensor<3>, Ring), Error> {
    let ([batch, heads, dim], [_, keys, key_heads, _]) = (qkv.dims(), ring.keys.dims());
    checks::plain("qkv", &qkv.device())?;
    checks::supported("qkv", &qkv.device(), qkv.dtype())?;
    if crate::device::is_cpu(&qkv.device()) {
        let reason = "a step of attention over a ring is for GPUs";
        return Err(Error::Unsupported(reason.into()));
    }
    let expected = [batch, keys, key_heads, dim];
    checks::fits("the keys of the ring", &qkv, &ring.keys, &expected)?;
    checks::fits("the values of the ring", &qkv, &ring.values, &expected)?;
    checks::shape("position", &[1], &position.dims())?;
    let shape = Shape {
        batch,
        queries: 1,
        keys,
        // No heads are left for queries, or too few: the check of the problem says so.
        heads: heads.saturating_sub(2 * key_heads),
        key_heads,
        dim,
    };
    let problem = options.problem(shape);
    problem.check(false)?;
    let (o, keys, values) = <Dispatch as AttentionStepOps>::attention_step(
        qkv.into_dispatch(),
        ring.keys.into_dispatch(),
        ring.values.into_dispatch(),
        position.into_dispatch(),
        problem,
    );
    let ring = Ring {
        keys: Tensor::from_dispatch(keys),
        values: Tensor::from_dispatch(values),
    };
    Ok((Tensor::from_dispatch(o), ring))
}

#[cfg(feature = "cube")]
mod fused {
    //! The shape of the output, which fusion needs before an operation runs.

    use burn::backend::fusion::custom::TensorSpec;
    use burn::tensor::Shape;

    use super::Problem;

    pub(super) fn output(qkv: &TensorSpec, problem: &Problem) -> TensorSpec {
        let shape = problem.shape;
        let o = Shape::new([shape.batch, shape.heads, shape.dim]);
        TensorSpec::new(o, qkv.dtype)
    }
}

/// [`attention_step`] on a backend. Shapes, dtypes and the device have been checked.
#[backend_extension(
    Flex: cfg(feature = "flex"),
    Cube: cfg(feature = "cube"),
    Fusion: cfg(feature = "cube"),
)]
pub trait AttentionStepOps: Backend {
    /// `[B, H, D]`, the keys and the values.
    #[fusion(meta = |qkv, keys, values, _position, problem| (fused::output(qkv, problem), keys.clone(), values.clone()))]
    fn attention_step(
        qkv: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        position: IntTensor<Self>,
        problem: Problem,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);
}
