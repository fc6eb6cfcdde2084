//! The state of a recorded step: in the same memory from step to step.

use burn::tensor::{DType, Device, Tensor};
use riverrun::nn::{AttentionState, LocalAttention, Rotary};
use riverrun::training::{Turn, overwrite};
use riverrun_models::{
    AnyHeadLayer, AnyLanguageModel, AnyLmState, AnyRecurrent, Griffin, GriffinBlockState,
    GriffinState, RecurrentState, TemporalMixing, TensorPair,
};

/// Why the steps of a model cannot be recorded, if they cannot.
pub(super) fn unrecordable(model: &AnyLanguageModel) -> Option<&'static str> {
    let reason = "a cache of keys without a window changes its size from step to step";
    match model {
        AnyLanguageModel::Gpt2(_) => Some(reason),
        AnyLanguageModel::Recurrent(model) => {
            model.blocks.iter().find_map(|block| of_layer(&block.cell))
        }
        AnyLanguageModel::Decoder(model) => {
            model.blocks.iter().find_map(|block| of_layer(&block.mixer))
        }
        _ => None,
    }
}

/// Why the steps of a layer cannot be recorded, if they cannot.
fn of_layer(layer: &AnyRecurrent) -> Option<&'static str> {
    match layer {
        AnyRecurrent::Attention(_) => Some("the positions of attention between recurrent layers"),
        AnyRecurrent::Heads(AnyHeadLayer::RetNet(_)) => Some("the positions of a RetNet"),
        _ => None,
    }
}

/// Whether a step leaves the next state in the memory of this one by itself.
pub(super) fn in_place(model: &AnyLanguageModel, state: &AnyLmState) -> bool {
    match (model, state) {
        (AnyLanguageModel::Recurrent(model), AnyLmState::Recurrent(state)) => {
            model.steps_in_place(state)
        }
        _ => false,
    }
}

/// Whether the state has the same shapes after each further step: that of local attention has them once its window is full.
pub(super) fn settled(model: &AnyLanguageModel, state: &AnyLmState) -> bool {
    match (model, state) {
        (AnyLanguageModel::Recurrent(_), _)
        | (AnyLanguageModel::Decoder(_), _)
        | (AnyLanguageModel::Rwkv(_), _) => true,
        (AnyLanguageModel::Griffin(model), AnyLmState::Griffin(state)) => {
            let mut pairs = attentions(model).zip(caches(state));
            pairs.all(|(layer, cache)| {
                let window = layer.attention.options.window;
                window.is_some_and(|window| cache.keys.dims()[1] + 1 == window)
            })
        }
        _ => false,
    }
}

fn attentions(model: &Griffin) -> impl Iterator<Item = &LocalAttention> {
    model
        .blocks
        .iter()
        .filter_map(|block| match &block.temporal {
            TemporalMixing::Attention(layer) => Some(layer),
            TemporalMixing::Recurrence(_) => None,
        })
}

fn caches(state: &GriffinState) -> impl Iterator<Item = &AttentionState> {
    state.blocks.iter().filter_map(|block| match block {
        GriffinBlockState::Attention(cache) => Some(cache),
        _ => None,
    })
}

/// The position of a stream of a model with attention, and its angles in memory of their own.
pub(super) struct Place {
    rotary: Rotary,
    position: usize,
    turn: Option<Turn>,
    device: Device,
    dtype: DType,
}

impl Place {
    /// The place of the next step; `None` for a model without attention. All layers of a model have the same angles.
    pub fn of(model: &AnyLanguageModel, state: &AnyLmState) -> Option<Self> {
        let (AnyLanguageModel::Griffin(model), AnyLmState::Griffin(state)) = (model, state) else {
            return None;
        };
        let rotary = attentions(model).next()?.attention.rotary?;
        let cache = caches(state).next()?;
        Some(Self {
            rotary,
            position: cache.position,
            turn: None,
            device: cache.keys.device(),
            dtype: cache.keys.dtype(),
        })
    }

    /// The angles of this step; the next call gives those of the next one.
    pub fn next(&mut self) -> Turn {
        let position = self.position;
        self.position += 1;
        let turn = match self.turn.take() {
            Some(turn) => self.rotary.refill(turn, position),
            None => self.rotary.turn(position, &self.device, self.dtype),
        };
        self.turn = Some(turn.clone());
        turn
    }
}

/// The state with the angles of its next step.
pub(super) fn at(state: AnyLmState, turn: Option<Turn>) -> AnyLmState {
    match state {
        AnyLmState::Griffin(mut state) => {
            for block in &mut state.blocks {
                if let GriffinBlockState::Attention(cache) = block {
                    cache.turn = turn.clone();
                }
            }
            AnyLmState::Griffin(state)
        }
        state => state,
    }
}

/// The second in the memory of the first.
struct Carry;

impl TensorPair for Carry {
    fn of<const D: usize>(&self, state: Tensor<D>, with: Tensor<D>) -> Tensor<D> {
        // The cache of a window of one step.
        match with.dims().contains(&0) {
            true => with,
            false => overwrite(state, with).unwrap_or_else(riverrun::Error::raise),
        }
    }
}

/// A copy.
struct Copy;

impl TensorPair for Copy {
    fn of<const D: usize>(&self, state: Tensor<D>, _: Tensor<D>) -> Tensor<D> {
        match state.dims().contains(&0) {
            true => state,
            false => state.mul_scalar(1.0),
        }
    }
}

/// The states of all blocks, each made of its two.
fn zip(state: AnyLmState, with: AnyLmState, pair: &impl TensorPair) -> AnyLmState {
    match (state, with) {
        (AnyLmState::Recurrent(state), AnyLmState::Recurrent(mut with)) => {
            let blocks = state.blocks.into_iter().zip(with.blocks);
            let blocks = blocks.map(|(state, with)| state.zip(with, pair));
            with.blocks = blocks.collect();
            AnyLmState::Recurrent(with)
        }
        (AnyLmState::Griffin(state), AnyLmState::Griffin(mut with)) => {
            let blocks = state.blocks.into_iter().zip(with.blocks);
            let blocks = blocks.map(|(state, with)| griffin_block(state, with, pair));
            with.blocks = blocks.collect();
            AnyLmState::Griffin(with)
        }
        (AnyLmState::Rwkv(state), AnyLmState::Rwkv(mut with)) => {
            for (state, with) in state.blocks.into_iter().zip(&mut with.blocks) {
                let time = RecurrentState::Matrix(with.time.clone());
                if let RecurrentState::Matrix(time) =
                    RecurrentState::Matrix(state.time).zip(time, pair)
                {
                    with.time = time;
                }
                with.channels = pair.of(state.channels, with.channels.clone());
            }
            AnyLmState::Rwkv(with)
        }
        (_, with) => with,
    }
}

fn griffin_block(
    state: GriffinBlockState,
    with: GriffinBlockState,
    pair: &impl TensorPair,
) -> GriffinBlockState {
    use GriffinBlockState::{Attention, Recurrence};
    match (state, with) {
        (
            Recurrence { inputs, h },
            Recurrence {
                inputs: to,
                h: next,
            },
        ) => Recurrence {
            inputs: pair.of(inputs, to),
            h: pair.of(h, next),
        },
        (Attention(state), Attention(mut with)) => {
            with.keys = pair.of(state.keys, with.keys);
            with.values = pair.of(state.values, with.values);
            Attention(with)
        }
        (_, with) => with,
    }
}

/// `after` in the memory of `state`.
pub(super) fn carried(state: AnyLmState, after: AnyLmState) -> AnyLmState {
    zip(state, after, &Carry)
}

/// The state in memory of its own.
pub(super) fn copied(state: AnyLmState) -> AnyLmState {
    zip(state.clone(), state, &Copy)
}
