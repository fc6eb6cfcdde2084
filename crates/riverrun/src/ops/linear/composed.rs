//! The linear layer and the MLP, composed of products by either route.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::Shape;
use riverrun_kernels::activation::Nonlinearity;
use riverrun_kernels::gemm::Epilogue;

use super::product::{Factor, product_with, serves, vendor, weight_gradient_with};
use super::{
    LinearGradients, LinearOps, LinearOutput, LinearSpec, MlpGradients, MlpOutput, ProductOutput,
    ProductSpec, WeightOrder, Weights, route,
};
use crate::ops::support::Maybe;

/// `[.., N]` as `[R, N]`.
pub(super) fn rows<B: Backend>(tensor: FloatTensor<B>) -> FloatTensor<B> {
    let shape = tensor.shape();
    let (last, all) = (shape[shape.num_dims() - 1], shape.num_elements());
    match shape.num_dims() {
        2 => tensor,
        _ => B::float_reshape(tensor, Shape::new([all / last, last])),
    }
}

/// The shape with another last dimension.
fn with_last(shape: &Shape, last: usize) -> Shape {
    let mut shape = shape.clone();
    let dims = shape.num_dims();
    shape[dims - 1] = last;
    shape
}

fn shaped<B: Backend>(tensor: FloatTensor<B>, shape: &Shape) -> FloatTensor<B> {
    match tensor.shape() == *shape {
        true => tensor,
        false => B::float_reshape(tensor, shape.clone()),
    }
}

/// The weight as a factor `[I, O]`.
fn forward_factor<B: Backend>(weight: FloatTensor<B>, order: WeightOrder) -> Factor<B> {
    Factor {
        matrix: weight,
        transposed: order == WeightOrder::OutputsFirst,
    }
}

/// The weight as a factor `[O, I]`.
fn backward_factor<B: Backend>(weight: FloatTensor<B>, order: WeightOrder) -> Factor<B> {
    Factor {
        matrix: weight,
        transposed: order == WeightOrder::InputsFirst,
    }
}

fn zeros<B: Backend>(like: &FloatTensor<B>, shape: Shape) -> FloatTensor<B> {
    B::float_zeros(shape, &like.device(), like.dtype().into())
}

pub(super) fn linear_forward<B: LinearOps>(
    x: FloatTensor<B>,
    weights: Weights<B>,
    spec: LinearSpec,
    save: bool,
) -> LinearOutput<B> {
    let weight = weights.weight.shape();
    let [_, outputs] = spec.features([weight[0], weight[1]]);
    let shape = with_last(&x.shape(), outputs);
    let save = save && spec.gelu;
    if shape.num_elements() == 0 {
        let y = zeros::<B>(&x, shape);
        return LinearOutput {
            pre: Maybe::from_option(save.then(|| y.clone())),
            y,
        };
    }
    let dtype = x.dtype();
    let bias = weights.bias.into_option();
    let factor = forward_factor::<B>(weights.weight, spec.weight);
    let x_rows = Factor::new(rows::<B>(x));
    if serves(&x_rows, &factor, &spec) {
        let within = spec.gelu && route::gelu_within::<B>(dtype, outputs, &spec);
        let epilogue = match (within, bias.is_some()) {
            (true, bias) => Epilogue::Gelu { bias, save },
            (false, true) => Epilogue::Bias,
            (false, false) => Epilogue::Plain,
        };
        let output = vendor(x_rows, factor, [bias, None], epilogue, &spec);
        let (d, second) = (shaped::<B>(output.d, &shape), output.second);
        return match spec.gelu && !within {
            true => activated(d, save),
            false => LinearOutput {
                y: d,
                pre: second.map(|pre| shaped::<B>(pre, &shape)),
            },
        };
    }
    let pre = shaped::<B>(product_with(x_rows, factor, bias, &spec), &shape);
    match spec.gelu {
        true => activated(pre, save),
        false => LinearOutput {
            y: pre,
            pre: Maybe::None,
        },
    }
}

/// GELU as an operation of its own.
fn activated<B: LinearOps>(pre: FloatTensor<B>, save: bool) -> LinearOutput<B> {
    LinearOutput {
        y: B::activate(pre.clone(), Nonlinearity::Gelu),
        pre: Maybe::from_option(save.then_some(pre)),
    }
}

pub(super) fn linear_backward<B: LinearOps>(
    x: FloatTensor<B>,
    weights: Weights<B>,
    [pre, other]: [Maybe<B>; 2],
    d_y: FloatTensor<B>,
    spec: LinearSpec,
    want_x: bool,
) -> LinearGradients<B> {
    let with_bias = weights.bias.into_option().is_some();
    let d_pre = match pre.into_option() {
        Some(pre) if d_y.shape().num_elements() > 0 => {
            B::activate_backward(pre, d_y, Nonlinearity::Gelu)
        }
        _ => d_y,
    };
    let d_weights = weight_gradients::<B>(&x, &weights.weight, &d_pre, &spec, with_bias);
    let other = other.into_option();
    let d_x = want_x.then(|| input_gradient::<B>(&x.shape(), weights.weight, d_pre, other, &spec));
    LinearGradients {
        x: Maybe::from_option(d_x),
        weights: d_weights,
    }
}

/// `∂L/∂W` and, if wanted, `∂L/∂b`, from the layer's input and `∂L/∂(x W + b)`.
fn weight_gradients<B: LinearOps>(
    x: &FloatTensor<B>,
    weight: &FloatTensor<B>,
    d_pre: &FloatTensor<B>,
    spec: &LinearSpec,
    with_bias: bool,
) -> Weights<B> {
    let shape = d_pre.shape();
    let outputs = shape[shape.num_dims() - 1];
    if shape.num_elements() == 0 {
        let bias = with_bias.then(|| zeros::<B>(d_pre, Shape::new([outputs])));
        return Weights {
            weight: zeros::<B>(weight, weight.shape()),
            bias: Maybe::from_option(bias),
        };
    }
    let (x_rows, d_rows) = (rows::<B>(x.clone()), rows::<B>(d_pre.clone()));
    let (weight, bias) = weight_gradient_with::<B>(d_rows, x_rows, spec.weight, with_bias, spec);
    Weights {
        weight,
        bias: Maybe::from_option(bias),
    }
}

/// `∂L/∂x`, of this shape, from `∂L/∂(x W + b)`, and a gradient of `x` from elsewhere, to which it is added.
fn input_gradient<B: LinearOps>(
    shape: &Shape,
    weight: FloatTensor<B>,
    d_pre: FloatTensor<B>,
    other: Option<FloatTensor<B>>,
    spec: &LinearSpec,
) -> FloatTensor<B> {
    if shape.num_elements() == 0 {
        return zeros::<B>(&d_pre, shape.clone());
    }
    let factor = backward_factor::<B>(weight, spec.weight);
    let d_rows = Factor::new(rows::<B>(d_pre));
    let d_x = match other.map(rows::<B>) {
        Some(other) if serves(&d_rows, &factor, spec) => {
            vendor(d_rows, factor, [None, Some(other)], Epilogue::Add, spec).d
        }
        Some(other) => B::float_add(product_with(d_rows, factor, None, spec), other),
        None => product_with(d_rows, factor, None, spec),
    };
    shaped::<B>(d_x, shape)
}

pub(super) fn mlp_forward<B: LinearOps>(
    x: FloatTensor<B>,
    up: Weights<B>,
    down: Weights<B>,
    spec: LinearSpec,
    save: bool,
) -> MlpOutput<B> {
    let first = linear_forward::<B>(x, up, spec.with_gelu(), save);
    let second = LinearSpec {
        gelu: false,
        ..spec
    };
    let hidden = save.then(|| first.y.clone());
    MlpOutput {
        y: linear_forward::<B>(first.y, down, second, false).y,
        pre: first.pre,
        hidden: Maybe::from_option(hidden),
    }
}

pub(super) fn mlp_backward<B: LinearOps>(
    x: FloatTensor<B>,
    up: Weights<B>,
    down: Weights<B>,
    [pre, hidden]: [FloatTensor<B>; 2],
    d_y: FloatTensor<B>,
    spec: LinearSpec,
    want_x: bool,
) -> MlpGradients<B> {
    let [up_bias, down_bias] = [up.bias, down.bias].map(|bias| bias.into_option().is_some());
    let shape = pre.shape();
    let d_down = weight_gradients::<B>(&hidden, &down.weight, &d_y, &spec, down_bias);
    let factor = backward_factor::<B>(down.weight.clone(), spec.weight);
    let d_rows = Factor::new(rows::<B>(d_y.clone()));
    let width = shape[shape.num_dims() - 1];
    let within =
        shape.num_elements() > 0 && route::derivative_within::<B>(pre.dtype(), width, &spec);
    let d_pre = if within && serves(&d_rows, &factor, &spec) {
        // Without the bias sums, which make this product four times as slow; the product of the weights' gradient includes them
        // at no cost.
        let epilogue = Epilogue::GeluBackward { sums: false };
        let pre = Some(rows::<B>(pre));
        shaped::<B>(
            vendor(d_rows, factor, [None, pre], epilogue, &spec).d,
            &shape,
        )
    } else {
        let d_hidden = input_gradient::<B>(&shape, down.weight, d_y, None, &spec);
        match shape.num_elements() {
            0 => d_hidden,
            _ => B::activate_backward(pre, d_hidden, Nonlinearity::Gelu),
        }
    };
    let d_up = weight_gradients::<B>(&x, &up.weight, &d_pre, &spec, up_bias);
    let d_x = want_x.then(|| input_gradient::<B>(&x.shape(), up.weight, d_pre, None, &spec));
    MlpGradients {
        x: Maybe::from_option(d_x),
        up: d_up,
        down: d_down,
    }
}

/// A product of [`LinearOps::vendor_product`]'s kind by the backend's own operations.
pub(super) fn vendor_product<B: LinearOps>(
    a: FloatTensor<B>,
    b: FloatTensor<B>,
    [vector, pre]: [Option<FloatTensor<B>>; 2],
    spec: ProductSpec,
) -> ProductOutput<B> {
    let factor = |matrix: &FloatTensor<B>, transposed| Factor::<B> {
        matrix: matrix.clone(),
        transposed,
    };
    let own = LinearSpec::default()
        .with_route(super::Route::Backend)
        .with_arithmetic(spec.arithmetic);
    let (left, right) = (factor(&a, spec.a_transposed), factor(&b, spec.b_transposed));
    let product = product_with(left, right, None, &own);
    follow::<B>(product, [a, b], [vector, pre], &spec)
}

/// The epilogue of a product, by the backend's own operations.
pub(super) fn follow<B: LinearOps>(
    product: FloatTensor<B>,
    [a, b]: [FloatTensor<B>; 2],
    [vector, pre]: [Option<FloatTensor<B>>; 2],
    spec: &ProductSpec,
) -> ProductOutput<B> {
    let sums = |tensor: FloatTensor<B>, dim: usize| {
        let rest = Shape::new([tensor.shape()[1 - dim]]);
        B::float_reshape(B::float_sum_dim(tensor, dim), rest)
    };
    let biased = |product: FloatTensor<B>| match vector {
        Some(bias) => {
            let row = Shape::new([1, bias.shape()[0]]);
            B::float_add(product, B::float_reshape(bias, row))
        }
        None => product,
    };
    let (d, second) = match spec.epilogue {
        Epilogue::Plain => (product, None),
        Epilogue::Bias => (biased(product), None),
        Epilogue::Add => {
            let other = pre.expect("what is added comes with the product");
            (B::float_add(product, other), None)
        }
        Epilogue::Gelu { save, .. } => {
            let pre = biased(product);
            (
                B::activate(pre.clone(), Nonlinearity::Gelu),
                save.then_some(pre),
            )
        }
        Epilogue::GeluBackward { sums: wanted } => {
            let pre = pre.expect("the input of GELU comes with its derivative");
            let d = B::activate_backward(pre, product, Nonlinearity::Gelu);
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
