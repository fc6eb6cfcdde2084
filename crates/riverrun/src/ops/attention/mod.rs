//! Scaled dot-product attention, in memory proportional to the steps but for the scratch memory of cuDNN's backward pass.

#[cfg(feature = "autodiff")]
mod autodiff;
#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "flex")]
mod flex;
mod packed;
#[cfg(all(feature = "cuda", unix))]
mod route;

#[cfg(all(feature = "cuda", unix))]
use burn::backend::DispatchDevice;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, ExtensionType, backend_extension};
use burn::tensor::{Bool, DType, Device, Tensor};
use riverrun_kernels::attention::{Problem, Shape};

use super::support::map::map_tensors;
use super::support::{Maybe, checks};
use crate::Error;

/// The mask and the scaling of an [`attention`].
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct AttentionOptions {
    /// Whether a query sees no later key.
    pub causal: bool,
    /// A query sees only keys less than this many positions away; at least 1. All when absent.
    pub window: Option<usize>,
    /// The factor of the scores; `1 / √D` when absent.
    pub scale: Option<f64>,
    /// With a cap `c`, `c tanh(s / c)` takes the place of the score `s`; above 0.
    pub softcap: Option<f64>,
    /// Whether two backward passes give the same bits, as all other operations' do; true by default. Without it, cuDNN takes long
    /// sequences too, whose gradients it adds up in any order.
    pub deterministic: bool,
}

impl Default for AttentionOptions {
    fn default() -> Self {
        Self {
            causal: false,
            window: None,
            scale: None,
            softcap: None,
            deterministic: true,
        }
    }
}

impl AttentionOptions {
    /// Every query sees every key.
    pub fn new() -> Self {
        Self::default()
    }

    /// Every query sees the keys up to its own position.
    pub fn causal() -> Self {
        Self::new().with_causal(true)
    }

    /// With or without a causal mask.
    pub fn with_causal(mut self, causal: bool) -> Self {
        self.causal = causal;
        self
    }

    /// With a window.
    pub fn with_window(mut self, window: Option<usize>) -> Self {
        self.window = window;
        self
    }

    /// With another scale.
    pub fn with_scale(mut self, scale: f64) -> Self {
        self.scale = Some(scale);
        self
    }

    /// With a cap.
    pub fn with_softcap(mut self, softcap: Option<f64>) -> Self {
        self.softcap = softcap;
        self
    }

    /// With the same bits from each backward pass, or not necessarily.
    pub fn with_deterministic(mut self, deterministic: bool) -> Self {
        self.deterministic = deterministic;
        self
    }

    /// The problem of these options.
    pub(crate) fn problem(&self, shape: Shape) -> Problem {
        let mut problem = Problem::new(shape);
        problem.scale = self.scale.unwrap_or(problem.scale);
        problem.causal = self.causal;
        problem.window = self.window;
        problem.softcap = self.softcap;
        problem.deterministic = self.deterministic;
        problem
    }
}

/// Scaled dot-product attention, `softmax(scale · q kᵀ) v` for each head, without the matrix of scores in memory: tiles of
/// it are made, used and, in the backward pass, made again. See [`riverrun_kernels::attention`] for the mathematics.
///
/// # Arguments
/// - `q`: `[B, T, H, D]`, any float dtype, `D` up to 256; sums are in `f32` or wider.
/// - `k`, `v`: `[B, S, Hk, D]`, of the same dtype. `Hk` divides `H`: query head `h` reads key head `h / (H / Hk)`.
/// - `reset`: `[B, S]`: true at a key with which a document starts. Documents never see each other.
/// - `options`: masks, scale and cap. Queries have the last `T` of the `S` positions, so a chunk continues a cache of keys.
///
/// # Returns
/// `[B, T, H, D]`; 0 for a query that sees no key. What a query does not see, NaN included, has no influence on it, but for
/// cuDNN's tiles below. The backward pass saves the inputs, the result and the log-sum-exp of the scores, `[B, H, T]`.
///
/// # Routines
/// On an NVIDIA GPU where cuDNN 9.10.2 or later is installed, it computes `f16` and `bf16` with as many queries as keys, at least
/// 128 and a multiple of 64, without `reset` and cap; the kernels of this crate compute everything else. A sequence's NaN in `k`
/// or `v` may reach queries of that sequence before it there. `RIVERRUN_CUDNN=off` in the environment leaves cuDNN out, and a path
/// names its library.
///
/// # Scratch memory
/// cuDNN's backward pass takes `2 B H T²` bytes for gradients with the same bits each time ([`attention_scratch`]). Where that is
/// more than a sixteenth of the device's memory, the kernels of this crate compute them, slower and in memory proportional to `T`,
/// and a warning says so; [without](AttentionOptions::deterministic) the same bits cuDNN adds them up in any order, in `4 B H T D`
/// bytes.
///
/// Source: Dao, *FlashAttention-2* (2023), algorithms 1 and 2; grouped heads: Ainslie et al., *GQA* (2023), section 2.2.
///
/// ```
/// # #[cfg(feature = "flex")] {
/// use burn::tensor::{Device, Distribution, Tensor};
/// use riverrun::ops::{AttentionOptions, attention};
///
/// let device = Device::flex();
/// let random = |heads| Tensor::<4>::random([2, 100, heads, 16], Distribution::Default, &device);
/// let options = AttentionOptions::causal().with_window(Some(32));
/// let o = attention(random(4), random(1), random(1), None, options)?;
/// assert_eq!(o.dims(), [2, 100, 4, 16]);
/// # }
/// # Ok::<(), riverrun::Error>(())
/// ```
///
/// # Errors
/// Shapes, dtypes or devices that do not fit, a dtype that the device lacks; heads that are no multiple of the key heads, more
/// than 256 channels a head, a window of 0, a cap that is not above 0, fewer keys than queries with a mask. Nothing has been
/// launched then.
pub fn attention(
    q: Tensor<4>,
    k: Tensor<4>,
    v: Tensor<4>,
    reset: Option<Tensor<2, Bool>>,
    options: AttentionOptions,
) -> Result<Tensor<4>, Error> {
    let [batch, queries, heads, dim] = q.dims();
    let [_, keys, key_heads, _] = k.dims();
    checks::supported("q", &q.device(), q.dtype())?;
    let expected = [batch, keys, key_heads, dim];
    checks::fits("k", &q, &k, &expected)?;
    checks::fits("v", &q, &v, &expected)?;
    checks::reset(&q, reset.as_ref(), [batch, keys])?;
    let shape = Shape {
        batch,
        queries,
        keys,
        heads,
        key_heads,
        dim,
    };
    let problem = options.problem(shape);
    problem.check(reset.is_some())?;
    let dtype = q.dtype();
    let reset = reset.map(|reset| reset.float().cast(dtype).into_dispatch());
    let (o, _lse) = <Dispatch as AttentionOps>::attention_forward(
        q.into_dispatch(),
        k.into_dispatch(),
        v.into_dispatch(),
        Maybe::from_option(reset),
        problem,
    );
    Ok(Tensor::from_dispatch(o))
}

/// [`attention`] of as many queries as keys that come from one projection: `qkv`, `[B, T, H + 2 Hk, D]`, holds queries beside keys
/// beside values. cuDNN reads them where they are and writes their gradients beside each other; the kernels of this crate copy them.
///
/// # Errors
/// As [`attention`]; fewer heads than twice the key heads and one.
pub fn packed_attention(
    qkv: Tensor<4>,
    key_heads: usize,
    reset: Option<Tensor<2, Bool>>,
    options: AttentionOptions,
) -> Result<Tensor<4>, Error> {
    let [batch, steps, heads, dim] = qkv.dims();
    checks::supported("qkv", &qkv.device(), qkv.dtype())?;
    checks::reset(&qkv, reset.as_ref(), [batch, steps])?;
    // No heads are left for queries, or too few: the check of the problem says so.
    let heads = heads.saturating_sub(key_heads.saturating_mul(2));
    let shape = Shape {
        key_heads,
        ..Shape::same(batch, steps, heads, dim)
    };
    let problem = options.problem(shape);
    problem.check(reset.is_some())?;
    let dtype = qkv.dtype();
    let reset = reset.map(|reset| reset.float().cast(dtype).into_dispatch());
    let reset = Maybe::from_option(reset);
    let (o, _lse) =
        <Dispatch as AttentionOps>::packed_attention_forward(qkv.into_dispatch(), reset, problem);
    Ok(Tensor::from_dispatch(o))
}

/// Bytes of scratch memory that the backward pass of an attention of `q`, `k` and `v`, `[B, T, H, D]` in `dtype`, takes on a
/// device, besides its gradients: cuDNN's, and 0 where the kernels of this crate compute it.
#[allow(unused_variables)]
pub fn attention_scratch(
    device: &Device,
    dtype: DType,
    [batch, steps, heads, dim]: [usize; 4],
    options: AttentionOptions,
) -> usize {
    #[cfg(all(feature = "cuda", unix))]
    if let DispatchDevice::Cube(cube) = device.clone().without_autodiff().as_dispatch()
        && let Some(dtype) = super::support::cube::known(dtype)
    {
        let problem = options.problem(Shape::same(batch, steps, heads, dim));
        let vendor = route::vendor(&cube.client(), cube, &problem, dtype, false);
        return vendor.map_or(0, |vendor| vendor.scratch(&problem, dtype));
    }
    0
}

/// Gradients of an attention.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "cube"))]
pub struct AttentionGradients<B: Backend> {
    /// `[B, T, H, D]`.
    pub q: FloatTensor<B>,
    /// `[B, S, Hk, D]`.
    pub k: FloatTensor<B>,
    /// `[B, S, Hk, D]`.
    pub v: FloatTensor<B>,
}

map_tensors!(AttentionGradients {
    tensors: [q, k, v],
    nested: [],
    integers: []
});

#[cfg(feature = "cube")]
mod fused {
    //! The shapes of the outputs, which fusion needs before an operation runs.

    use super::{AttentionGradientsMetadata, Problem};
    use burn::backend::fusion::custom::TensorSpec;
    use burn::tensor::{DType, Shape};

    pub(super) fn output(q: &TensorSpec) -> (TensorSpec, TensorSpec) {
        let rows = Shape::new([q.shape[0], q.shape[2], q.shape[1]]);
        (q.clone(), TensorSpec::new(rows, DType::F32))
    }

    pub(super) fn packed(qkv: &TensorSpec, problem: &Problem) -> (TensorSpec, TensorSpec) {
        let [batch, steps, dim] = [qkv.shape[0], qkv.shape[1], qkv.shape[3]];
        let o = Shape::new([batch, steps, problem.shape.heads, dim]);
        output(&TensorSpec::new(o, qkv.dtype))
    }

    pub(super) fn gradients(q: &TensorSpec, k: &TensorSpec) -> AttentionGradientsMetadata {
        AttentionGradientsMetadata {
            q: q.clone(),
            k: k.clone(),
            v: k.clone(),
        }
    }
}

/// [`attention`] on a backend. Shapes, dtypes and options have been checked by [`attention`].
#[backend_extension(
    Flex: cfg(feature = "flex"),
    Cube: cfg(feature = "cube"),
    Fusion: cfg(feature = "cube"),
    Autodiff: cfg(feature = "autodiff"),
)]
pub trait AttentionOps: Backend {
    /// `o`, `[B, T, H, D]`, and the log-sum-exp of each query's scores, `[B, H, T]`, in `f32` (`f64` for `f64`), through which no
    /// gradient flows.
    #[fusion(meta = |q, _k, _v, _reset, _problem| fused::output(q))]
    fn attention_forward(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        #[extension_type] reset: Maybe<Self>,
        problem: Problem,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// The gradients from `∂L/∂o` and what the forward pass returned.
    #[fusion(meta = |q, k, _v, _reset, _o, _lse, _d_o, _problem| fused::gradients(q, k))]
    fn attention_backward(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        #[extension_type] reset: Maybe<Self>,
        o: FloatTensor<Self>,
        lse: FloatTensor<Self>,
        d_o: FloatTensor<Self>,
        problem: Problem,
    ) -> AttentionGradients<Self>;

    /// [`attention_forward`](Self::attention_forward) of packed inputs.
    #[fusion(meta = |qkv, _reset, problem| fused::packed(qkv, problem))]
    fn packed_attention_forward(
        qkv: FloatTensor<Self>,
        #[extension_type] reset: Maybe<Self>,
        problem: Problem,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// The gradient of the packed inputs.
    #[fusion(meta = |qkv, _reset, _o, _lse, _d_o, _problem| qkv.clone())]
    fn packed_attention_backward(
        qkv: FloatTensor<Self>,
        #[extension_type] reset: Maybe<Self>,
        o: FloatTensor<Self>,
        lse: FloatTensor<Self>,
        d_o: FloatTensor<Self>,
        problem: Problem,
    ) -> FloatTensor<Self>;
}
