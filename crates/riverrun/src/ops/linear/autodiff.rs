//! Differentiation: one node each for the layer and the MLP.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, AutodiffBackend, Backend};
use burn_autodiff::NodeId;
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, Ops, OpsKind};

use super::{
    LinearGradients, LinearOps, LinearOutput, LinearSpec, MlpGradients, MlpOutput, ProductOutput,
    ProductSpec, Weights,
};
use crate::ops::support::Maybe;
use crate::ops::support::autodiff::{inner, outer};

/// Parents: x, weight, bias; `x` again stands for an absent one.
#[derive(Debug)]
struct Linear;

#[derive(Debug, Clone)]
struct LinearSaved<B: Backend> {
    /// Checkpointed: x, weight.
    inputs: [NodeId; 2],
    bias: Maybe<B>,
    pre: Maybe<B>,
    spec: LinearSpec,
}

fn register<B: Backend, const N: usize>(
    parents: [Option<NodeId>; N],
    gradients: [Option<FloatTensor<B>>; N],
    grads: &mut Gradients,
) {
    for (parent, gradient) in parents.into_iter().zip(gradients) {
        if let (Some(parent), Some(gradient)) = (parent, gradient) {
            grads.register::<B>(parent, gradient);
        }
    }
}

impl<B: LinearOps> Backward<B, 3> for Linear {
    type State = LinearSaved<B>;

    fn backward(
        self,
        ops: Ops<Self::State, 3>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let saved = ops.state;
        let d_y = grads.consume::<B>(&ops.node);
        let [x, weight] = saved
            .inputs
            .map(|id| checkpointer.retrieve_node_output::<FloatTensor<B>>(id));
        let weights = Weights {
            weight,
            bias: saved.bias,
        };
        let want_x = ops.parents[0].is_some();
        let d = B::linear_backward(x, weights, saved.pre, d_y, saved.spec, want_x);
        let gradients = [
            d.x.into_option(),
            Some(d.weights.weight),
            d.weights.bias.into_option(),
        ];
        let parents = ops.parents.map(|parent| parent.map(|parent| parent.id));
        register::<B, 3>(parents, gradients, grads);
    }
}

/// Parents: x, weight and bias of the first layer, of the second; `x` again stands for an absent one.
#[derive(Debug)]
struct Mlp;

#[derive(Debug, Clone)]
struct MlpSaved<B: Backend> {
    /// Checkpointed: x, the first weight, the second.
    inputs: [NodeId; 3],
    up_bias: Maybe<B>,
    down_bias: Maybe<B>,
    pre: FloatTensor<B>,
    hidden: FloatTensor<B>,
    spec: LinearSpec,
}

impl<B: LinearOps> Backward<B, 5> for Mlp {
    type State = MlpSaved<B>;

    fn backward(
        self,
        ops: Ops<Self::State, 5>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let saved = ops.state;
        let d_y = grads.consume::<B>(&ops.node);
        let [x, up, down] = saved
            .inputs
            .map(|id| checkpointer.retrieve_node_output::<FloatTensor<B>>(id));
        let up = Weights {
            weight: up,
            bias: saved.up_bias,
        };
        let down = Weights {
            weight: down,
            bias: saved.down_bias,
        };
        let want_x = ops.parents[0].is_some();
        let d = B::mlp_backward(
            x,
            up,
            down,
            saved.pre,
            saved.hidden,
            d_y,
            saved.spec,
            want_x,
        );
        let gradients = [
            d.x.into_option(),
            Some(d.up.weight),
            d.up.bias.into_option(),
            Some(d.down.weight),
            d.down.bias.into_option(),
        ];
        let parents = ops.parents.map(|parent| parent.map(|parent| parent.id));
        register::<B, 5>(parents, gradients, grads);
    }
}

fn inner_weights<B: Backend, C: CheckpointStrategy>(
    weights: Weights<Autodiff<B, C>>,
) -> Weights<B> {
    Weights {
        weight: weights.weight.into_primitive(),
        bias: inner(weights.bias),
    }
}

fn outer_weights<B: Backend, C: CheckpointStrategy>(
    weights: Weights<B>,
) -> Weights<Autodiff<B, C>> {
    Weights {
        weight: Autodiff::<B, C>::from_inner(weights.weight),
        bias: outer(weights.bias),
    }
}

impl<B: LinearOps, C: CheckpointStrategy> LinearOps for Autodiff<B, C> {
    fn vendor_product(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        vector: Maybe<Self>,
        pre: Maybe<Self>,
        spec: ProductSpec,
    ) -> ProductOutput<Self> {
        let (a, b) = (a.into_primitive(), b.into_primitive());
        let output = B::vendor_product(a, b, inner(vector), inner(pre), spec);
        ProductOutput {
            d: Self::from_inner(output.d),
            second: outer(output.second),
        }
    }

    fn linear_layer(
        x: FloatTensor<Self>,
        weights: Weights<Self>,
        spec: LinearSpec,
    ) -> FloatTensor<Self> {
        let bias = match &weights.bias {
            Maybe::Some(bias) => bias.node(),
            Maybe::None => x.node(),
        };
        let nodes = [x.node(), weights.weight.node(), bias];
        let prep = Backward::<B, 3>::prepare::<C>(Linear, nodes).compute_bound();
        match prep.stateful() {
            OpsKind::Tracked(mut prep) => {
                let inputs = [&x, &weights.weight].map(|input| prep.checkpoint(input));
                let weights = inner_weights(weights);
                let bias = weights.bias.clone();
                let output = B::linear_forward(x.into_primitive(), weights, spec, true);
                let saved = LinearSaved {
                    inputs,
                    bias,
                    pre: output.pre,
                    spec,
                };
                prep.finish(saved, output.y)
            }
            OpsKind::UnTracked(prep) => prep.finish(B::linear_layer(
                x.into_primitive(),
                inner_weights(weights),
                spec,
            )),
        }
    }

    fn linear_forward(
        x: FloatTensor<Self>,
        weights: Weights<Self>,
        spec: LinearSpec,
        save: bool,
    ) -> LinearOutput<Self> {
        let output = B::linear_forward(x.into_primitive(), inner_weights(weights), spec, save);
        LinearOutput {
            y: Self::from_inner(output.y),
            pre: outer(output.pre),
        }
    }

    fn linear_backward(
        x: FloatTensor<Self>,
        weights: Weights<Self>,
        pre: Maybe<Self>,
        d_y: FloatTensor<Self>,
        spec: LinearSpec,
        want_x: bool,
    ) -> LinearGradients<Self> {
        let (x, d_y) = (x.into_primitive(), d_y.into_primitive());
        let d = B::linear_backward(x, inner_weights(weights), inner(pre), d_y, spec, want_x);
        LinearGradients {
            x: outer(d.x),
            weights: outer_weights(d.weights),
        }
    }

    fn mlp(
        x: FloatTensor<Self>,
        up: Weights<Self>,
        down: Weights<Self>,
        spec: LinearSpec,
    ) -> FloatTensor<Self> {
        let node = |bias: &Maybe<Self>| match bias {
            Maybe::Some(bias) => bias.node(),
            Maybe::None => x.node(),
        };
        let nodes = [
            x.node(),
            up.weight.node(),
            node(&up.bias),
            down.weight.node(),
            node(&down.bias),
        ];
        let prep = Backward::<B, 5>::prepare::<C>(Mlp, nodes).compute_bound();
        match prep.stateful() {
            OpsKind::Tracked(mut prep) => {
                let inputs = [&x, &up.weight, &down.weight].map(|input| prep.checkpoint(input));
                let (up, down) = (inner_weights(up), inner_weights(down));
                let (up_bias, down_bias) = (up.bias.clone(), down.bias.clone());
                let output = B::mlp_forward(x.into_primitive(), up, down, spec, true);
                let kept = |tensor: Maybe<B>| tensor.into_option().expect("it was to be saved");
                let saved = MlpSaved {
                    inputs,
                    up_bias,
                    down_bias,
                    pre: kept(output.pre),
                    hidden: kept(output.hidden),
                    spec,
                };
                prep.finish(saved, output.y)
            }
            OpsKind::UnTracked(prep) => {
                let (up, down) = (inner_weights(up), inner_weights(down));
                prep.finish(B::mlp(x.into_primitive(), up, down, spec))
            }
        }
    }

    fn mlp_forward(
        x: FloatTensor<Self>,
        up: Weights<Self>,
        down: Weights<Self>,
        spec: LinearSpec,
        save: bool,
    ) -> MlpOutput<Self> {
        let (up, down) = (inner_weights(up), inner_weights(down));
        let output = B::mlp_forward(x.into_primitive(), up, down, spec, save);
        MlpOutput {
            y: Self::from_inner(output.y),
            pre: outer(output.pre),
            hidden: outer(output.hidden),
        }
    }

    fn mlp_backward(
        x: FloatTensor<Self>,
        up: Weights<Self>,
        down: Weights<Self>,
        pre: FloatTensor<Self>,
        hidden: FloatTensor<Self>,
        d_y: FloatTensor<Self>,
        spec: LinearSpec,
        want_x: bool,
    ) -> MlpGradients<Self> {
        let d = B::mlp_backward(
            x.into_primitive(),
            inner_weights(up),
            inner_weights(down),
            pre.into_primitive(),
            hidden.into_primitive(),
            d_y.into_primitive(),
            spec,
            want_x,
        );
        MlpGradients {
            x: outer(d.x),
            up: outer_weights(d.up),
            down: outer_weights(d.down),
        }
    }
}
