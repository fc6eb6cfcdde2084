//! Differentiation: one node each for the layer and the MLP.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, TensorMetadata};
use burn::tensor::Shape;
use burn_autodiff::NodeId;
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, Ops, OpsKind};

use super::{LinearOps, LinearSpec, Weights};
use crate::ops::early_sum::autodiff::{early, leaf_id};
use crate::ops::support::Maybe;
use crate::ops::support::autodiff::{Slot, inner, node_or, output, register};

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
        let (pre, spec) = (saved.pre, saved.spec);
        let d = B::linear_backward(x, weights, pre, d_y, Maybe::None, spec, want_x);
        let leaf = leaf_id!(ops.parents[1]);
        let gradients = [
            d.x.into_option(),
            early::<B>(leaf, d.weights.weight),
            d.weights.bias.into_option(),
        ];
        let parents = ops.parents.map(|parent| parent.map(|parent| parent.id));
        register::<B, 3>(parents, gradients, grads);
    }
}

/// Parents: those of [`Linear`]. Outputs: the layer's, and `x`.
#[derive(Debug)]
struct Beside;

#[derive(Debug, Clone)]
struct BesideSaved<B: Backend> {
    /// Checkpointed: x, weight.
    inputs: [NodeId; 2],
    bias: Maybe<B>,
    d_y: Slot<B>,
    d_x: Slot<B>,
    spec: LinearSpec,
}

impl<B: LinearOps> Backward<B, 3> for Beside {
    type State = BesideSaved<B>;

    fn backward(
        self,
        ops: Ops<Self::State, 3>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let BesideSaved {
            inputs,
            bias,
            d_y,
            d_x: other,
            spec,
        } = ops.state;
        let [x, weight] = inputs.map(|id| checkpointer.retrieve_node_output::<FloatTensor<B>>(id));
        let other = other.take();
        let leaf = leaf_id!(ops.parents[1]);
        let parents = ops.parents.map(|parent| parent.map(|parent| parent.id));
        let gradients = match d_y.take() {
            Some(d_y) => {
                let (weights, other) = (Weights { weight, bias }, Maybe::from_option(other));
                let want_x = parents[0].is_some();
                let d = B::linear_backward(x, weights, Maybe::None, d_y, other, spec, want_x);
                [
                    d.x.into_option(),
                    early::<B>(leaf, d.weights.weight),
                    d.weights.bias.into_option(),
                ]
            }
            None => [other, None, None],
        };
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
        let [up, down] = [leaf_id!(ops.parents[1]), leaf_id!(ops.parents[3])];
        let gradients = [
            d.x.into_option(),
            early::<B>(up, d.up.weight),
            d.up.bias.into_option(),
            early::<B>(down, d.down.weight),
            d.down.bias.into_option(),
        ];
        let parents = ops.parents.map(|parent| parent.map(|parent| parent.id));
        register::<B, 5>(parents, gradients, grads);
    }
}

/// Parents: the factors.
#[derive(Debug)]
struct Matmul;

impl<B: LinearOps> Backward<B, 2> for Matmul {
    /// Checkpointed: the factors.
    type State = [NodeId; 2];

    fn backward(
        self,
        ops: Ops<Self::State, 2>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let d = grads.consume::<B>(&ops.node);
        let [a, b] = ops
            .state
            .map(|id| checkpointer.retrieve_node_output::<FloatTensor<B>>(id));
        let turned = |x: FloatTensor<B>| {
            let last = x.shape().num_dims() - 1;
            B::float_swap_dims(x, last - 1, last)
        };
        let parents = ops.parents.map(|parent| parent.map(|parent| parent.id));
        let d_a = parents[0].map(|_| B::matmul(d.clone(), turned(b)));
        let d_b = parents[1].map(|_| B::matmul(turned(a), d));
        register::<B, 2>(parents, [d_a, d_b], grads);
    }
}

/// Parent: the vector.
#[derive(Debug)]
struct EveryStep;

impl<B: LinearOps> Backward<B, 1> for EveryStep {
    type State = ();

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let d = grads.consume::<B>(&ops.node);
        if let [Some(parent)] = ops.parents {
            let (dtype, [batch, steps, columns]) = (d.dtype(), d.shape().dims());
            let sums = match batch * steps {
                0 => B::float_zeros(Shape::new([columns]), &d.device(), dtype.into()),
                rows => B::column_sums(B::float_reshape(d, Shape::new([rows, columns]))),
            };
            grads.register::<B>(parent.id, sums);
        }
    }
}

impl<B: LinearOps, C: CheckpointStrategy> LinearOps for Autodiff<B, C> {
    fn every_step(x: FloatTensor<Self>, steps: [usize; 2]) -> FloatTensor<Self> {
        let prep = Backward::<B, 1>::prepare::<C>(EveryStep, [x.node()]).compute_bound();
        let y = B::every_step(x.into_primitive(), steps);
        match prep.stateful() {
            OpsKind::Tracked(prep) => prep.finish((), y),
            OpsKind::UnTracked(prep) => prep.finish(y),
        }
    }

    fn matmul(a: FloatTensor<Self>, b: FloatTensor<Self>) -> FloatTensor<Self> {
        let nodes = [a.node(), b.node()];
        let prep = Backward::<B, 2>::prepare::<C>(Matmul, nodes).compute_bound();
        match prep.stateful() {
            OpsKind::Tracked(mut prep) => {
                let saved = [&a, &b].map(|factor| prep.checkpoint(factor));
                prep.finish(saved, B::matmul(a.into_primitive(), b.into_primitive()))
            }
            OpsKind::UnTracked(prep) => {
                prep.finish(B::matmul(a.into_primitive(), b.into_primitive()))
            }
        }
    }

    fn linear_layer(
        x: FloatTensor<Self>,
        weights: Weights<Self>,
        spec: LinearSpec,
    ) -> FloatTensor<Self> {
        let nodes = [x.node(), weights.weight.node(), node_or(&weights.bias, &x)];
        let prep = Backward::<B, 3>::prepare::<C>(Linear, nodes).compute_bound();
        match prep.stateful() {
            OpsKind::Tracked(mut prep) => {
                let inputs = [&x, &weights.weight].map(|input| prep.checkpoint(input));
                let weights: Weights<B> = weights.map(inner::<B, C>);
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
                weights.map(inner::<B, C>),
                spec,
            )),
        }
    }

    fn linear_beside(
        x: FloatTensor<Self>,
        weights: Weights<Self>,
        spec: LinearSpec,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let nodes = [x.node(), weights.weight.node(), node_or(&weights.bias, &x)];
        let prep = Backward::<B, 3>::prepare::<C>(Beside, nodes).compute_bound();
        let (d_y, d_x) = (Slot::<B>::default(), Slot::<B>::default());
        let forward = |x: &FloatTensor<Self>, weights: Weights<B>| {
            B::linear_layer(x.primitive().clone(), weights, spec)
        };
        let (core, y) = match prep.stateful() {
            OpsKind::Tracked(mut prep) => {
                let inputs = [&x, &weights.weight].map(|input| prep.checkpoint(input));
                let weights: Weights<B> = weights.map(inner::<B, C>);
                let saved = BesideSaved {
                    inputs,
                    bias: weights.bias.clone(),
                    d_y: d_y.clone(),
                    d_x: d_x.clone(),
                    spec,
                };
                let y = forward(&x, weights);
                (prep.finish(saved, y.clone()), y)
            }
            OpsKind::UnTracked(prep) => {
                let y = forward(&x, weights.map(inner::<B, C>));
                (prep.finish(y.clone()), y)
            }
        };
        let y = output::<B, C>(&core, y, d_y);
        (y, output::<B, C>(&core, x.into_primitive(), d_x))
    }

    fn mlp(
        x: FloatTensor<Self>,
        up: Weights<Self>,
        down: Weights<Self>,
        spec: LinearSpec,
    ) -> FloatTensor<Self> {
        let nodes = [
            x.node(),
            up.weight.node(),
            node_or(&up.bias, &x),
            down.weight.node(),
            node_or(&down.bias, &x),
        ];
        let prep = Backward::<B, 5>::prepare::<C>(Mlp, nodes).compute_bound();
        match prep.stateful() {
            OpsKind::Tracked(mut prep) => {
                let inputs = [&x, &up.weight, &down.weight].map(|input| prep.checkpoint(input));
                let (up, down): (Weights<B>, Weights<B>) =
                    (up.map(inner::<B, C>), down.map(inner::<B, C>));
                let (up_bias, down_bias) = (up.bias.clone(), down.bias.clone());
                let output = B::mlp_forward(x.into_primitive(), up, down, spec, true);
                let saved =
                    |tensor: Maybe<B>| tensor.into_option().expect("forward was to save it");
                let saved = MlpSaved {
                    inputs,
                    up_bias,
                    down_bias,
                    pre: saved(output.pre),
                    hidden: saved(output.hidden),
                    spec,
                };
                prep.finish(saved, output.y)
            }
            OpsKind::UnTracked(prep) => {
                let (up, down): (Weights<B>, Weights<B>) =
                    (up.map(inner::<B, C>), down.map(inner::<B, C>));
                prep.finish(B::mlp(x.into_primitive(), up, down, spec))
            }
        }
    }
}
