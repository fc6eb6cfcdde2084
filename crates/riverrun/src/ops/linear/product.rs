//! The products of matrices: all products of this crate's operations go through here.
//!
//! Products of `f32` are computed in `f32` on every device unless TF32 was requested. On GPUs, cuBLASLt computes products where
//! it is installed, and a kernel of CubeK with a fixed configuration elsewhere: nothing is tuned at run time, so the first step
//! starts at once and two runs take the same kernels.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::Shape;
use riverrun_kernels::gemm::{Arithmetic, Epilogue};

use super::{LinearOps, LinearSpec, ProductOutput, ProductSpec, WeightOrder, route};
use crate::ops::support::Maybe;

/// A factor of a product: a matrix, or the transpose of one.
#[derive(Clone)]
pub(crate) struct Factor<B: Backend> {
    pub(super) matrix: FloatTensor<B>,
    pub(super) transposed: bool,
}

impl<B: Backend> Factor<B> {
    /// The matrix.
    pub fn new(matrix: FloatTensor<B>) -> Self {
        Self {
            matrix,
            transposed: false,
        }
    }

    /// The transpose of the matrix; nothing is moved.
    pub fn transposed(matrix: FloatTensor<B>) -> Self {
        Self {
            matrix,
            transposed: true,
        }
    }

    fn shape(&self) -> [usize; 2] {
        let shape = self.matrix.shape();
        [shape[0], shape[1]]
    }

    pub(super) fn into_tensor(self) -> FloatTensor<B> {
        match self.transposed {
            true => B::float_transpose(self.matrix),
            false => self.matrix,
        }
    }
}

/// `a b + bias`, `[m, k]` by `[k, n]`, with sums in `f32` or wider where the dtype is narrower.
pub(crate) fn product<B: LinearOps>(
    a: Factor<B>,
    b: Factor<B>,
    bias: Option<FloatTensor<B>>,
) -> FloatTensor<B> {
    product_with(a, b, bias, &LinearSpec::default())
}

/// [`product`], with the arithmetic and the route of `spec`.
pub(super) fn product_with<B: LinearOps>(
    a: Factor<B>,
    b: Factor<B>,
    bias: Option<FloatTensor<B>>,
    spec: &LinearSpec,
) -> FloatTensor<B> {
    let epilogue = match &bias {
        Some(_) => Epilogue::Bias,
        None => Epilogue::Plain,
    };
    if serves(&a, &b, spec) {
        return vendor(a, b, [bias, None], epilogue, spec).d;
    }
    let (a, b) = (a.into_tensor(), b.into_tensor());
    let product = matmul_with::<B>(a, b, spec.arithmetic);
    match bias {
        Some(bias) => {
            let row = Shape::new([1, bias.shape()[0]]);
            B::float_add(product, B::float_reshape(bias, row))
        }
        None => product,
    }
}

/// `a b`, `[.., m, k]` by `[.., k, n]`: two matrices, or two batches of them of one size.
pub(crate) fn batched<B: LinearOps>(a: FloatTensor<B>, b: FloatTensor<B>) -> FloatTensor<B> {
    match a.shape().num_dims() {
        2 => product(Factor::<B>::new(a), Factor::new(b), None),
        _ => matmul_with::<B>(a, b, Arithmetic::Full),
    }
}

/// `dᵀ x`, `[O, I]`, the gradient of a weight from that of the outputs `d [R, O]` and the inputs `x [R, I]`; and the sums of
/// the columns of `d`, `[O]`, the gradient of a bias.
pub(crate) fn weight_gradient<B: LinearOps>(
    d: FloatTensor<B>,
    x: FloatTensor<B>,
    with_sums: bool,
) -> (FloatTensor<B>, Option<FloatTensor<B>>) {
    let spec = LinearSpec::default();
    weight_gradient_with::<B>(d, x, WeightOrder::OutputsFirst, with_sums, &spec)
}

/// [`weight_gradient`], in an order of the weight: `xᵀ d`, `[I, O]`, with [`WeightOrder::InputsFirst`].
pub(super) fn weight_gradient_with<B: LinearOps>(
    d: FloatTensor<B>,
    x: FloatTensor<B>,
    order: WeightOrder,
    with_sums: bool,
    spec: &LinearSpec,
) -> (FloatTensor<B>, Option<FloatTensor<B>>) {
    let (a, b, sums) = match order {
        WeightOrder::InputsFirst => (x, d.clone(), Epilogue::SumsOfB),
        WeightOrder::OutputsFirst => (d.clone(), x, Epilogue::SumsOfA),
    };
    let (a, b) = (Factor::<B>::transposed(a), Factor::new(b));
    if serves(&a, &b, spec) {
        let epilogue = if with_sums { sums } else { Epilogue::Plain };
        let output = vendor(a, b, [None, None], epilogue, spec);
        return (output.d, output.second.into_option());
    }
    let weight = product_with(a, b, None, spec);
    (weight, with_sums.then(|| B::column_sums(d)))
}

fn matmul_with<B: LinearOps>(
    a: FloatTensor<B>,
    b: FloatTensor<B>,
    arithmetic: Arithmetic,
) -> FloatTensor<B> {
    let shape = product_shape(&a.shape(), &b.shape());
    // Burn's matmul of the CPU reads out of bounds where a factor has no elements.
    if a.shape().num_elements() == 0 || b.shape().num_elements() == 0 {
        return B::float_zeros(shape, &a.device(), a.dtype().into());
    }
    B::fixed_matmul(a, b, arithmetic)
}

/// The shape of the product of two factors with the same batches.
pub(super) fn product_shape(a: &Shape, b: &Shape) -> Shape {
    let mut shape = a.clone();
    let last = shape.num_dims() - 1;
    shape[last] = b[last];
    shape
}

fn sizes<B: Backend>(
    a: &Factor<B>,
    b: &Factor<B>,
    spec: &LinearSpec,
    epilogue: Epilogue,
) -> ([usize; 3], ProductSpec) {
    let spec = ProductSpec {
        a_transposed: a.transposed,
        b_transposed: b.transposed,
        epilogue,
        arithmetic: spec.arithmetic,
    };
    (spec.sizes(a.shape(), b.shape()), spec)
}

/// Whether the vendor's library computes this product.
pub(super) fn serves<B: LinearOps>(a: &Factor<B>, b: &Factor<B>, spec: &LinearSpec) -> bool {
    let (sizes, _) = sizes(a, b, spec, Epilogue::Plain);
    route::vendor_serves::<B>(&a.matrix, sizes, spec.route)
}

/// The product by the vendor's library.
pub(super) fn vendor<B: LinearOps>(
    a: Factor<B>,
    b: Factor<B>,
    [vector, pre]: [Option<FloatTensor<B>>; 2],
    epilogue: Epilogue,
    spec: &LinearSpec,
) -> ProductOutput<B> {
    let (_, spec) = sizes(&a, &b, spec, epilogue);
    let (vector, pre) = (Maybe::from_option(vector), Maybe::from_option(pre));
    B::vendor_product(a.matrix, b.matrix, vector, pre, spec)
}
