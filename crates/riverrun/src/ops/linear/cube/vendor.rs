//! A product by cuBLASLt; what it has no algorithm for is composed.

use burn::backend::TensorMetadata;
use burn::backend::ops::FloatTensorOps;
use burn::tensor::{DType, Shape};
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use riverrun_kernels::gemm::vendor::{Buffers, Problem, Vendor};
use riverrun_kernels::gemm::{Epilogue, Layout};
use riverrun_kernels::gpu::Dtype;

use crate::ops::gelu::ElementwiseOps;
use crate::ops::linear::{ProductOutput, ProductSpec};
use crate::ops::support::Maybe;

/// The matrix with one dimension contiguous, and its layout; others are copied.
fn matrix(tensor: CubeTensor) -> (CubeTensor, Layout) {
    let layout = |tensor: &CubeTensor| {
        let (shape, strides) = (tensor.meta.shape(), tensor.meta.strides());
        // A tiled matrix has more than two.
        (shape.num_dims() == 2)
            .then(|| Layout::of([shape[0], shape[1]], [strides[0], strides[1]]))?
    };
    match layout(&tensor) {
        Some(layout) => (tensor, layout),
        None => {
            let tensor = into_contiguous(tensor);
            let layout = layout(&tensor).expect("a contiguous matrix has contiguous rows");
            (tensor, layout)
        }
    }
}

fn empty(like: &CubeTensor, shape: Shape) -> CubeTensor {
    let (client, device) = (like.client.clone(), like.device.clone());
    empty_device_contiguous_dtype(client, device, shape, like.dtype)
}

/// A product: what is read besides the factors is the bias and what GELU took.
pub(super) fn product(
    a: CubeTensor,
    b: CubeTensor,
    [vector, pre]: [Option<CubeTensor>; 2],
    spec: ProductSpec,
) -> ProductOutput<CubeBackend> {
    let shape = |tensor: &CubeTensor| {
        let shape = tensor.shape();
        [shape[0], shape[1]]
    };
    let [m, k, n] = spec.sizes(shape(&a), shape(&b));
    let ((a, a_layout), (b, b_layout)) = (matrix(a), matrix(b));
    let turned = |layout: Layout, turn| if turn { layout.transposed() } else { layout };
    let dtype = match a.dtype {
        DType::F32 => Dtype::F32,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::Bf16,
        other => unreachable!("no route leads {other:?} here"),
    };
    let problem = Problem {
        a: turned(a_layout, spec.a_transposed),
        b: turned(b_layout, spec.b_transposed),
        arithmetic: spec.arithmetic,
        ..Problem::new([m, k, n], dtype, spec.epilogue)
    };
    let vendor = Vendor::of(&a.client)
        .unwrap_or_else(|reason| unreachable!("no route leads here: {reason}"));
    let (vector, pre) = (vector.map(into_contiguous), pre.map(into_contiguous));
    if let Ok(output) = launch(&vendor, &problem, &a, &b, &vector, &pre) {
        return output;
    }
    tracing::debug!(
        ?problem,
        "cuBLASLt has no algorithm with this epilogue: composed"
    );
    // A bias it has for every type; what is left to follow is then GELU alone.
    let (epilogue, left) = match spec.epilogue {
        Epilogue::Gelu { bias: true, save } => {
            (Epilogue::Bias, Epilogue::Gelu { bias: false, save })
        }
        other => (Epilogue::Plain, other),
    };
    let bias = vector.clone().filter(|_| epilogue == Epilogue::Bias);
    let shorter = Problem {
        epilogue,
        ..problem
    };
    if let Ok(output) = launch(&vendor, &shorter, &a, &b, &bias, &None) {
        let spec = ProductSpec {
            epilogue: left,
            ..spec
        };
        return follow(output.d, [a, b], [None, pre], &spec);
    }
    let turned = |tensor, turn| match turn {
        true => CubeBackend::float_transpose(tensor),
        false => tensor,
    };
    let product = CubeBackend::float_matmul(
        turned(a.clone(), spec.a_transposed),
        turned(b.clone(), spec.b_transposed),
    );
    follow(product, [a, b], [vector, pre], &spec)
}

fn launch(
    vendor: &std::sync::Arc<Vendor>,
    problem: &Problem,
    a: &CubeTensor,
    b: &CubeTensor,
    vector: &Option<CubeTensor>,
    pre: &Option<CubeTensor>,
) -> Result<ProductOutput<CubeBackend>, String> {
    let (m, n, epilogue) = (problem.m, problem.n, problem.epilogue);
    vendor.supports(problem)?;
    let d = empty(a, Shape::new([m, n]));
    let sums = epilogue
        .writes_vector()
        .then(|| empty(a, Shape::new([epilogue.vector(m, n)])));
    let saved =
        matches!(epilogue, Epilogue::Gelu { save: true, .. }).then(|| empty(a, Shape::new([m, n])));
    let handle = |tensor: &CubeTensor| tensor.handle.clone();
    let buffers = Buffers {
        a: handle(a),
        b: handle(b),
        d: handle(&d),
        vector: sums.as_ref().or(vector.as_ref()).map(handle),
        pre: saved.as_ref().or(pre.as_ref()).map(handle),
    };
    vendor.launch(&a.client, problem, buffers)?;
    Ok(ProductOutput {
        d,
        second: Maybe::from_option(sums.or(saved)),
    })
}

/// What follows a product, by operations of the backend.
fn follow(
    product: CubeTensor,
    [a, b]: [CubeTensor; 2],
    [vector, pre]: [Option<CubeTensor>; 2],
    spec: &ProductSpec,
) -> ProductOutput<CubeBackend> {
    let sums = |tensor: CubeTensor, dim: usize| {
        let kept = Shape::new([tensor.shape()[1 - dim]]);
        CubeBackend::float_reshape(CubeBackend::float_sum_dim(tensor, dim), kept)
    };
    let biased = |product: CubeTensor| match vector {
        Some(bias) => {
            let row = Shape::new([1, bias.shape()[0]]);
            CubeBackend::float_add(product, CubeBackend::float_reshape(bias, row))
        }
        None => product,
    };
    let (d, second) = match spec.epilogue {
        Epilogue::Plain => (product, None),
        Epilogue::Bias => (biased(product), None),
        Epilogue::Gelu { save, .. } => {
            let pre = biased(product);
            (CubeBackend::gelu_tanh(pre.clone()), save.then_some(pre))
        }
        Epilogue::GeluBackward { sums: wanted } => {
            let pre = pre.expect("what GELU took comes with its derivative");
            let d = CubeBackend::gelu_tanh_backward(pre, product);
            (d.clone(), wanted.then(|| sums(d, 0)))
        }
        // Along k: the second dimension of A, the first of B.
        Epilogue::SumsOfA => (product, Some(sums(a, usize::from(!spec.a_transposed)))),
        Epilogue::SumsOfB => (product, Some(sums(b, usize::from(spec.b_transposed)))),
    };
    ProductOutput {
        d,
        second: Maybe::from_option(second),
    }
}
