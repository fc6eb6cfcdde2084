//! The parts of a model's state, one after the other.

use burn::tensor::Tensor;
use riverrun::Error;
use riverrun::nn::{AttentionState, MatrixLayerState, SLstmState};

use super::{AnyLmState, GriffinBlockState, RecurrentState, VectorState};

/// Takes each part of a state and gives one in its place: the same, to write it down, or another, to read it. Names are unique in
/// a state.
pub trait StateParts {
    /// A tensor.
    ///
    /// # Errors
    /// A part that cannot be given.
    fn tensor<const D: usize>(&mut self, name: String, part: Tensor<D>)
    -> Result<Tensor<D>, Error>;

    /// The position of a step.
    ///
    /// # Errors
    /// As for a tensor.
    fn position(&mut self, name: String, part: usize) -> Result<usize, Error>;
}

impl AnyLmState {
    /// The state with each of its parts exchanged, in order.
    ///
    /// # Errors
    /// What `parts` refuses; marks of where documents start, in the cache of attention.
    pub fn with_parts(self, parts: &mut impl StateParts) -> Result<Self, Error> {
        Ok(match self {
            Self::Recurrent(mut state) => {
                state.blocks = each(state.blocks, parts, recurrent)?;
                Self::Recurrent(state)
            }
            Self::Griffin(mut state) => {
                state.blocks = each(state.blocks, parts, griffin)?;
                Self::Griffin(state)
            }
            Self::Gpt2(mut state) => {
                state.blocks = each(state.blocks, parts, attention)?;
                Self::Gpt2(state)
            }
            Self::Rwkv(mut state) => {
                state.blocks = each(state.blocks, parts, |mut block, name, parts| {
                    block.time = matrix(block.time, name, parts)?;
                    block.channels = parts.tensor(format!("{name}.channels"), block.channels)?;
                    Ok(block)
                })?;
                Self::Rwkv(state)
            }
        })
    }
}

/// Each block with its name.
fn each<B, P: StateParts>(
    blocks: Vec<B>,
    parts: &mut P,
    exchange: impl Fn(B, &str, &mut P) -> Result<B, Error>,
) -> Result<Vec<B>, Error> {
    let numbered = blocks.into_iter().enumerate();
    let blocks = numbered.map(|(n, block)| exchange(block, &format!("blocks.{n}"), parts));
    blocks.collect()
}

fn recurrent<P: StateParts>(
    state: RecurrentState,
    name: &str,
    parts: &mut P,
) -> Result<RecurrentState, Error> {
    Ok(match state {
        RecurrentState::Vector(VectorState { h, c }) => {
            let h = parts.tensor(format!("{name}.h"), h)?;
            let c = c.map(|c| parts.tensor(format!("{name}.c"), c));
            RecurrentState::vector(h, c.transpose()?)
        }
        RecurrentState::Matrix(state) => RecurrentState::Matrix(matrix(state, name, parts)?),
        RecurrentState::SLstm(state) => {
            let [h, c, n, m] = state.into_tensors();
            let mut part = |of: &str, tensor| parts.tensor(format!("{name}.{of}"), tensor);
            RecurrentState::SLstm(SLstmState::new([
                part("h", h)?,
                part("c", c)?,
                part("n", n)?,
                part("m", m)?,
            ]))
        }
        RecurrentState::Attention(state) => {
            RecurrentState::Attention(attention(state, name, parts)?)
        }
    })
}

fn matrix<P: StateParts>(
    mut state: MatrixLayerState,
    name: &str,
    parts: &mut P,
) -> Result<MatrixLayerState, Error> {
    state.inputs = parts.tensor(format!("{name}.inputs"), state.inputs)?;
    state.matrix = parts.tensor(format!("{name}.matrix"), state.matrix)?;
    let scale = state
        .scale
        .map(|scale| parts.tensor(format!("{name}.scale"), scale));
    state.scale = scale.transpose()?;
    for (n, position) in state.positions.iter_mut().enumerate() {
        *position = parts.position(format!("{name}.positions.{n}"), *position)?;
    }
    Ok(state)
}

fn attention<P: StateParts>(
    mut state: AttentionState,
    name: &str,
    parts: &mut P,
) -> Result<AttentionState, Error> {
    if state.reset.is_some() {
        let refusal = "a state of attention over several documents is not exchanged";
        return Err(Error::Unsupported(refusal.into()));
    }
    state.keys = parts.tensor(format!("{name}.keys"), state.keys)?;
    state.values = parts.tensor(format!("{name}.values"), state.values)?;
    state.position = parts.position(format!("{name}.position"), state.position)?;
    state.place = None;
    Ok(state)
}

fn griffin<P: StateParts>(
    state: GriffinBlockState,
    name: &str,
    parts: &mut P,
) -> Result<GriffinBlockState, Error> {
    Ok(match state {
        GriffinBlockState::Recurrence { inputs, h } => GriffinBlockState::Recurrence {
            inputs: parts.tensor(format!("{name}.inputs"), inputs)?,
            h: parts.tensor(format!("{name}.h"), h)?,
        },
        GriffinBlockState::Attention(state) => {
            GriffinBlockState::Attention(attention(state, name, parts)?)
        }
    })
}
