//! Differentiation: the gradient is turned back.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend};
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, Ops, OpsKind};

use super::{RotaryOps, Turned};

#[derive(Debug)]
struct Turn;

#[derive(Debug, Clone)]
struct Saved<B: Backend> {
    angles: [FloatTensor<B>; 2],
    turn: Turned,
}

impl<B: RotaryOps> Backward<B, 1> for Turn {
    type State = Saved<B>;

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let d_y = grads.consume::<B>(&ops.node);
        let Saved {
            angles: [cos, sin],
            turn,
        } = ops.state;
        if let [Some(parent)] = ops.parents {
            let back = Turned {
                back: !turn.back,
                ..turn
            };
            grads.register::<B>(parent.id, B::rotary(d_y, cos, sin, back));
        }
    }
}

impl<B: RotaryOps, C: CheckpointStrategy> RotaryOps for Autodiff<B, C> {
    fn rotary(
        x: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        sin: FloatTensor<Self>,
        turn: Turned,
    ) -> FloatTensor<Self> {
        let (cos, sin) = (cos.into_primitive(), sin.into_primitive());
        let prep = Backward::<B, 1>::prepare::<C>(Turn, [x.node()]).compute_bound();
        let y = B::rotary(x.into_primitive(), cos.clone(), sin.clone(), turn);
        match prep.stateful() {
            OpsKind::Tracked(prep) => {
                let angles = [cos, sin];
                prep.finish(Saved { angles, turn }, y)
            }
            OpsKind::UnTracked(prep) => prep.finish(y),
        }
    }
}
