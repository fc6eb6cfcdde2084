//! The backend extension trait of the linear layer. Default bodies are composed of the backend's own operations.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, ExtensionType, TensorMetadata, backend_extension};
use burn::tensor::Shape;
use riverrun_kernels::gemm::{Arithmetic, Epilogue};

use super::product::batched;
use super::{ProductRoutes, Route, composed};
use crate::ops::activation::ActivationOps;
use crate::ops::enqueue::EnqueueOps;
use crate::ops::support::Maybe;
use crate::ops::support::dtype::{narrow, wide};
use crate::ops::support::map::map_tensors;

/// Which dimension of a weight comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum WeightOrder {
    /// `[I, O]`, as in `burn::nn::Linear`.
    #[default]
    InputsFirst,
    /// `[O, I]`, as in PyTorch.
    OutputsFirst,
}

/// The parameters of the operation that are not tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LinearSpec {
    /// GELU in its tanh form after the product; nothing otherwise.
    pub gelu: bool,
    /// Which dimension of the weight comes first.
    pub weight: WeightOrder,
    /// How `f32` is multiplied: in `f32`, or rounded to TF32 where a device has it.
    pub arithmetic: Arithmetic,
    /// A route instead of the measured choice.
    pub route: Option<Route>,
}

impl LinearSpec {
    /// With GELU after the product.
    pub fn with_gelu(mut self) -> Self {
        self.gelu = true;
        self
    }

    /// For a weight of this order.
    pub fn with_weight(mut self, order: WeightOrder) -> Self {
        self.weight = order;
        self
    }

    /// With this arithmetic for `f32`.
    pub fn with_arithmetic(mut self, arithmetic: Arithmetic) -> Self {
        self.arithmetic = arithmetic;
        self
    }

    /// By this route.
    pub fn with_route(mut self, route: Route) -> Self {
        self.route = Some(route);
        self
    }

    /// A weight's two dimensions as inputs and outputs, or the reverse.
    pub(crate) fn features<T: Copy>(&self, [first, second]: [T; 2]) -> [T; 2] {
        match self.weight {
            WeightOrder::InputsFirst => [first, second],
            WeightOrder::OutputsFirst => [second, first],
        }
    }
}

/// A product, apart from the tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProductSpec {
    /// Whether the first factor is the transpose of the tensor.
    pub a_transposed: bool,
    /// Whether the second factor is the transpose of the tensor.
    pub b_transposed: bool,
    /// The operation fused after the product.
    pub epilogue: Epilogue,
    /// How `f32` is multiplied.
    pub arithmetic: Arithmetic,
}

impl ProductSpec {
    /// `m`, `k`, `n` of two matrices of these shapes.
    pub(crate) fn sizes(&self, a: [usize; 2], b: [usize; 2]) -> [usize; 3] {
        let turned = |[rows, columns]: [usize; 2], turn| match turn {
            true => [columns, rows],
            false => [rows, columns],
        };
        let ([m, k], [_, n]) = (turned(a, self.a_transposed), turned(b, self.b_transposed));
        [m, k, n]
    }
}

/// A weight and its bias, or the gradients of both.
#[derive(Debug, Clone, ExtensionType)]
#[extension_type(fusion: cfg(feature = "cube"))]
pub struct Weights<B: Backend> {
    /// `[I, O]` or `[O, I]`.
    pub weight: FloatTensor<B>,
    /// `[O]`.
    #[extension_type]
    pub bias: Maybe<B>,
}

/// Outputs of a product.
#[derive(Debug, Clone, ExtensionType)]
#[extension_type(fusion: cfg(feature = "cube"))]
pub struct ProductOutput<B: Backend> {
    /// `[m, n]`.
    pub d: FloatTensor<B>,
    /// The second output of the epilogue: the input of GELU, `[m, n]`, or sums, `[n]` or `[m]`.
    #[extension_type]
    pub second: Maybe<B>,
}

/// Outputs of [`LinearOps::linear_forward`].
#[derive(Debug, Clone, ExtensionType)]
#[extension_type(fusion: cfg(feature = "cube"))]
pub struct LinearOutput<B: Backend> {
    /// `[.., O]`.
    pub y: FloatTensor<B>,
    /// `[.., O]`: the input of GELU, if requested.
    #[extension_type]
    pub pre: Maybe<B>,
}

/// The gradients of a linear layer's inputs.
#[derive(Debug, Clone, ExtensionType)]
#[extension_type(fusion: cfg(feature = "cube"))]
pub struct LinearGradients<B: Backend> {
    /// `[.., I]`, if requested.
    #[extension_type]
    pub x: Maybe<B>,
    /// The gradients of the weight and, if present, the bias.
    #[extension_type]
    pub weights: Weights<B>,
}

/// Outputs of [`LinearOps::mlp_forward`].
#[derive(Debug, Clone, ExtensionType)]
#[extension_type(fusion: cfg(feature = "cube"))]
pub struct MlpOutput<B: Backend> {
    /// `[.., O]`.
    pub y: FloatTensor<B>,
    /// `[.., H]`: the input of GELU, if requested.
    #[extension_type]
    pub pre: Maybe<B>,
    /// `[.., H]`: the output of GELU, if requested.
    #[extension_type]
    pub hidden: Maybe<B>,
}

/// The gradients of an MLP's inputs.
#[derive(Debug, Clone, ExtensionType)]
#[extension_type(fusion: cfg(feature = "cube"))]
pub struct MlpGradients<B: Backend> {
    /// `[.., I]`, if requested.
    #[extension_type]
    pub x: Maybe<B>,
    /// The gradients of the first layer.
    #[extension_type]
    pub up: Weights<B>,
    /// The gradients of the second layer.
    #[extension_type]
    pub down: Weights<B>,
}

map_tensors!(Weights {
    tensors: [weight],
    nested: [bias],
    integers: []
});

#[cfg(feature = "cube")]
mod fused {
    //! The shapes of the outputs, which fusion needs before an operation runs.

    use super::*;
    use burn::backend::fusion::custom::TensorSpec;

    use super::super::product::product_shape;
    use crate::ops::support::MaybeMetadata;

    pub(super) fn matmul(a: &TensorSpec, b: &TensorSpec) -> TensorSpec {
        let mut product = a.clone();
        product.shape = product_shape(&a.shape, &b.shape);
        product
    }

    pub(super) fn column_sums(x: &TensorSpec) -> TensorSpec {
        let mut sums = x.clone();
        sums.shape = Shape::new([x.shape[1]]);
        sums
    }

    pub(super) fn product(
        a: &TensorSpec,
        b: &TensorSpec,
        spec: &ProductSpec,
    ) -> ProductOutputMetadata {
        let matrix = |tensor: &TensorSpec| [tensor.shape[0], tensor.shape[1]];
        let [m, _, n] = spec.sizes(matrix(a), matrix(b));
        let like = |shape| {
            let mut like = a.clone();
            like.shape = shape;
            like
        };
        let epilogue = spec.epilogue;
        let second = if epilogue.writes_vector() {
            MaybeMetadata::Some(like(Shape::new([epilogue.vector(m, n)])))
        } else if matches!(epilogue, Epilogue::Gelu { save: true, .. }) {
            MaybeMetadata::Some(like(Shape::new([m, n])))
        } else {
            MaybeMetadata::None
        };
        ProductOutputMetadata {
            d: like(Shape::new([m, n])),
            second,
        }
    }
}

/// The linear layer on a backend. Shapes and dtypes have been checked by the functions of [`linear`](super::linear()).
#[backend_extension(
    Flex: cfg(feature = "flex"),
    Cube: cfg(feature = "cube"),
    Fusion: cfg(feature = "cube"),
    Autodiff: cfg(feature = "autodiff"),
)]
pub trait LinearOps: ActivationOps + ProductRoutes + EnqueueOps {
    /// A product of matrices by the vendor's library where `ProductRoutes::vendor_missing` gives no reason
    /// against it, else by the backend. `vector` is the bias, `pre` the input of GELU, where the epilogue reads one.
    #[fusion(meta = |a, b, _vector, _pre, spec| fused::product(a, b, spec))]
    fn vendor_product(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        #[extension_type] vector: Maybe<Self>,
        #[extension_type] pre: Maybe<Self>,
        spec: ProductSpec,
    ) -> ProductOutput<Self> {
        composed::vendor_product::<Self>(a, b, [vector.into_option(), pre.into_option()], spec)
    }

    /// `[.., m, k]` by `[.., k, n]`, by the library that the route chooses.
    #[fusion(default)]
    fn matmul(a: FloatTensor<Self>, b: FloatTensor<Self>) -> FloatTensor<Self> {
        batched::<Self>(a, b)
    }

    /// `[.., m, k]` by `[.., k, n]` with the same dimensions before them, by a kernel that is known without a measurement:
    /// a batch by the vendor's library where there is one, anything else by the backend's own.
    #[fusion(meta = |a, b, _arithmetic| fused::matmul(a, b))]
    fn fixed_matmul(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        arithmetic: Arithmetic,
    ) -> FloatTensor<Self> {
        let _ = arithmetic;
        Self::float_matmul(a, b)
    }

    /// The sums of the columns of a matrix, `[R, N]` to `[N]`: in `f32` or wider, rounded once.
    #[fusion(meta = |x| fused::column_sums(x))]
    fn column_sums(x: FloatTensor<Self>) -> FloatTensor<Self> {
        let (columns, dtype) = (Shape::new([x.shape()[1]]), x.dtype());
        let sums = Self::float_sum_dim(wide::<Self>(x), 0);
        narrow::<Self>(Self::float_reshape(sums, columns), dtype)
    }

    /// `[N]` as `[batch, steps, N]`, without a copy. The gradient is by [`column_sums`](Self::column_sums).
    #[fusion(default)]
    fn every_step(x: FloatTensor<Self>, steps: [usize; 2]) -> FloatTensor<Self> {
        let [batch, steps] = steps;
        let columns = x.shape()[0];
        let row = Self::float_reshape(x, Shape::new([1, 1, columns]));
        Self::float_expand(row, Shape::new([batch, steps, columns]))
    }

    /// `[.., I]` to `[.., O]`.
    #[fusion(default)]
    fn linear_layer(
        x: FloatTensor<Self>,
        #[extension_type] weights: Weights<Self>,
        spec: LinearSpec,
    ) -> FloatTensor<Self> {
        Self::linear_forward(x, weights, spec, false).y
    }

    /// Forward pass; with `save`, also the tensors that backward needs.
    #[fusion(default)]
    fn linear_forward(
        x: FloatTensor<Self>,
        #[extension_type] weights: Weights<Self>,
        spec: LinearSpec,
        save: bool,
    ) -> LinearOutput<Self> {
        composed::linear_forward(x, weights, spec, save)
    }

    /// The layer's result, and `x` for other layers on it: a gradient of that `x` is added within the product that makes the
    /// layer's own.
    #[fusion(default)]
    fn linear_beside(
        x: FloatTensor<Self>,
        #[extension_type] weights: Weights<Self>,
        spec: LinearSpec,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        (Self::linear_layer(x.clone(), weights, spec), x)
    }

    /// The gradients; that of `x` only with `want_x`, and with `other` added to it. Of the bias, only its presence is read.
    #[fusion(default)]
    fn linear_backward(
        x: FloatTensor<Self>,
        #[extension_type] weights: Weights<Self>,
        #[extension_type] pre: Maybe<Self>,
        d_y: FloatTensor<Self>,
        #[extension_type] other: Maybe<Self>,
        spec: LinearSpec,
        want_x: bool,
    ) -> LinearGradients<Self> {
        composed::linear_backward(x, weights, [pre, other], d_y, spec, want_x)
    }

    /// `[.., I]` to `[.., O]` by way of `[.., H]`.
    #[fusion(default)]
    fn mlp(
        x: FloatTensor<Self>,
        #[extension_type] up: Weights<Self>,
        #[extension_type] down: Weights<Self>,
        spec: LinearSpec,
    ) -> FloatTensor<Self> {
        Self::mlp_forward(x, up, down, spec, false).y
    }

    /// Forward pass; with `save`, also the tensors that backward needs.
    #[fusion(default)]
    fn mlp_forward(
        x: FloatTensor<Self>,
        #[extension_type] up: Weights<Self>,
        #[extension_type] down: Weights<Self>,
        spec: LinearSpec,
        save: bool,
    ) -> MlpOutput<Self> {
        composed::mlp_forward(x, up, down, spec, save)
    }

    /// The gradients; that of `x` only with `want_x`. `pre` and `hidden` are as forward saved them; of the biases, only
    /// their presence is read.
    #[fusion(default)]
    fn mlp_backward(
        x: FloatTensor<Self>,
        #[extension_type] up: Weights<Self>,
        #[extension_type] down: Weights<Self>,
        pre: FloatTensor<Self>,
        hidden: FloatTensor<Self>,
        d_y: FloatTensor<Self>,
        spec: LinearSpec,
        want_x: bool,
    ) -> MlpGradients<Self> {
        composed::mlp_backward(x, up, down, [pre, hidden], d_y, spec, want_x)
    }
}
