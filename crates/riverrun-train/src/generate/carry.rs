//! The state of recorded steps: in the same memory from step to step.

use std::any::Any;
use std::collections::HashMap;

use burn::tensor::Tensor;
use riverrun::Error;
use riverrun::training::overwrite;
use riverrun_models::{AnyHeadLayer, AnyLanguageModel, AnyLmState, AnyRecurrent, StateParts};

/// Why the steps of a model cannot be recorded, if they cannot.
pub(super) fn unrecordable(model: &AnyLanguageModel) -> Option<&'static str> {
    let ret_net =
        |layer: &&AnyRecurrent| matches!(layer, AnyRecurrent::Heads(AnyHeadLayer::RetNet(_)));
    let counted = model.mixers().iter().any(ret_net);
    let layers = model.attentions();
    let turns = layers
        .windows(2)
        .any(|pair| pair[0].rotary != pair[1].rotary);
    match (counted, turns) {
        (true, _) => Some("the positions of a RetNet"),
        (_, true) => Some("layers of attention with several kinds of positions"),
        _ => None,
    }
}

/// The tensors of a state that a step does not update in place, to be overwritten with those of the next state.
pub(super) struct Kept {
    /// By their names.
    tensors: HashMap<String, Box<dyn Any>>,
    /// Whether the step of each block, first to last, updates its state in place.
    in_place: Vec<bool>,
}

impl Kept {
    /// The tensors of the state before a step.
    pub fn of(model: &AnyLanguageModel, state: &AnyLmState, samples: usize) -> Result<Self, Error> {
        let mut kept = Self {
            tensors: HashMap::new(),
            in_place: model.steps_in_place(samples),
        };
        state.clone().with_parts(&mut Keep(&mut kept))?;
        Ok(kept)
    }

    /// Whether a step updates a part in place, by its name, such as `blocks.3.keys`: a ring of keys and values always.
    fn updated(&self, name: &str) -> bool {
        let block = name.split('.').nth(1).and_then(|block| block.parse().ok());
        let block = block.and_then(|block: usize| self.in_place.get(block));
        name.ends_with(".keys") || name.ends_with(".values") || block == Some(&true)
    }

    /// The state after the step, in the memory of that before.
    pub fn overwritten(self, after: AnyLmState) -> Result<AnyLmState, Error> {
        after.with_parts(&mut Overwrite(self))
    }
}

struct Keep<'a>(&'a mut Kept);

impl StateParts for Keep<'_> {
    fn tensor<const D: usize>(
        &mut self,
        name: String,
        part: Tensor<D>,
    ) -> Result<Tensor<D>, Error> {
        if !self.0.updated(&name) {
            self.0.tensors.insert(name, Box::new(part.clone()));
        }
        Ok(part)
    }

    fn position(&mut self, _: String, part: usize) -> Result<usize, Error> {
        Ok(part)
    }
}

struct Overwrite(Kept);

impl StateParts for Overwrite {
    fn tensor<const D: usize>(
        &mut self,
        name: String,
        part: Tensor<D>,
    ) -> Result<Tensor<D>, Error> {
        let before = self.0.tensors.remove(&name).map(|before| before.downcast());
        match before {
            Some(Ok(before)) if !part.dims().contains(&0) => overwrite::<D>(*before, part),
            _ => Ok(part),
        }
    }

    fn position(&mut self, _: String, part: usize) -> Result<usize, Error> {
        Ok(part)
    }
}

struct Copy;

impl StateParts for Copy {
    fn tensor<const D: usize>(&mut self, _: String, part: Tensor<D>) -> Result<Tensor<D>, Error> {
        Ok(match part.dims().contains(&0) {
            true => part,
            false => part.mul_scalar(1.0),
        })
    }

    fn position(&mut self, _: String, part: usize) -> Result<usize, Error> {
        Ok(part)
    }
}

/// The state in memory of its own.
pub(super) fn copied(state: AnyLmState) -> Result<AnyLmState, Error> {
    state.with_parts(&mut Copy)
}
