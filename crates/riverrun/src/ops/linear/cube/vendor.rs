//! A product by cuBLASLt; one without an algorithm there is composed.

use burn::backend::TensorMetadata;
use burn::backend::ops::FloatTensorOps;
use burn::tensor::Shape;
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use riverrun_kernels::gemm::vendor::{Batch, Buffers, Problem, Vendor};
use riverrun_kernels::gemm::{Arithmetic, Epilogue, Layout, Order};

use crate::ops::linear::{ProductOutput, ProductSpec, composed};
use crate::ops::support::Maybe;
use crate::ops::support::cube::{dtype, empty_like, into_contiguous, known};

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

/// A tensor of three dimensions as matrices with one dimension contiguous: their layout, and the elements from one to the next.
/// Others are copied.
fn matrices(tensor: &CubeTensor) -> (CubeTensor, Layout, usize) {
    let layout = |tensor: &CubeTensor| {
        let (shape, strides) = (tensor.meta.shape(), tensor.meta.strides());
        let layout = (shape.num_dims() == 3)
            .then(|| Layout::of([shape[1], shape[2]], [strides[1], strides[2]]))??;
        // A tensor that is expanded along its batch has one matrix, which the library reads again and again.
        Some((layout, strides[0]))
    };
    let contiguous = || into_contiguous(tensor.clone());
    let (tensor, found) = match layout(tensor) {
        Some(found) => (tensor.clone(), found),
        None => {
            let tensor = contiguous();
            let found = layout(&tensor).expect("contiguous matrices have contiguous rows");
            (tensor, found)
        }
    };
    (tensor, found.0, found.1)
}

/// The product of two batches `[G, m, k]` and `[G, k, n]`; `None` without the library, for other numbers of dimensions, and for
/// types that it does not have.
///
/// A batch that lies between the rows of `a`, as blocks of features do, lies between the rows of the product too, so that
/// joining the blocks again moves nothing.
pub(super) fn batched(
    a: &CubeTensor,
    b: &CubeTensor,
    arithmetic: Arithmetic,
) -> Option<CubeTensor> {
    if a.shape().num_dims() != 3 {
        return None;
    }
    let dtype = known(a.dtype)?;
    let vendor = Vendor::of(&a.client).ok()?;
    let ([count, m, k], n) = ([a.shape()[0], a.shape()[1], a.shape()[2]], b.shape()[2]);
    let ((a, a_layout, a_next), (b, b_layout, b_next)) = (matrices(a), matrices(b));
    let between = a_layout.order == Order::Rows && a_next < a_layout.stride && m > 1;
    let (row, next) = if between { (count * n, n) } else { (n, m * n) };
    let problem = Problem {
        a: a_layout,
        b: b_layout,
        d: row,
        batch: Some(Batch {
            count,
            a: a_next,
            b: b_next,
            d: next,
        }),
        arithmetic,
        ..Problem::new([m, k, n], dtype, Epilogue::Plain)
    };
    if let Err(reason) = vendor.supports(&problem) {
        tracing::debug!(?problem, "no batch of products by cuBLASLt: {reason}");
        return None;
    }
    let d = match between {
        true => CubeBackend::float_swap_dims(empty_like(&a, Shape::new([m, count, n])), 0, 1),
        false => empty_like(&a, Shape::new([count, m, n])),
    };
    let buffers = Buffers {
        a: a.handle.clone(),
        b: b.handle.clone(),
        d: d.handle.clone(),
        vector: None,
        pre: None,
    };
    let launched = vendor.launch(&a.client, &problem, buffers);
    launched
        .map_err(|reason| tracing::warn!("a batch of products by CubeK: {reason}"))
        .ok()?;
    Some(d)
}

/// The product `a b`; `vector` is the bias, `pre` the input of GELU.
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
    let dtype = dtype(&a);
    let problem = Problem {
        a: turned(a_layout, spec.a_transposed),
        b: turned(b_layout, spec.b_transposed),
        arithmetic: spec.arithmetic,
        ..Problem::new([m, k, n], dtype, spec.epilogue)
    };
    let (vector, pre) = (vector.map(into_contiguous), pre.map(into_contiguous));
    let Ok(vendor) = Vendor::of(&a.client) else {
        return composed::vendor_product::<CubeBackend>(a, b, [vector, pre], spec);
    };
    if let Ok(output) = launch(&vendor, &problem, &a, &b, &vector, &pre) {
        return output;
    }
    tracing::debug!(
        ?problem,
        "cuBLASLt has no algorithm with this epilogue: composed"
    );
    // It has a bias epilogue for every type; GELU then follows on its own.
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
        return composed::follow::<CubeBackend>(output.d, [a, b], [None, pre], &spec);
    }
    composed::vendor_product::<CubeBackend>(a, b, [vector, pre], spec)
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
    let d = empty_like(a, Shape::new([m, n]));
    let sums = epilogue
        .writes_vector()
        .then(|| empty_like(a, Shape::new([epilogue.vector(m, n)])));
    let saved = matches!(epilogue, Epilogue::Gelu { save: true, .. })
        .then(|| empty_like(a, Shape::new([m, n])));
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
