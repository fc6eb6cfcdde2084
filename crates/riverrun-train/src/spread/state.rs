//! The state of a run, from rank 0 to all others.

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::Tensor;

use super::{Ranks, tensor};
use crate::run_dir::Progress;
use crate::{Error, Learner, Objective, weights};

/// Gives all ranks of a spread learner the weights, moments and progress of rank 0, of a fresh run or of a checkpoint.
pub(crate) fn share<O: Objective>(
    learner: &mut Learner<O>,
    progress: &mut Progress,
) -> Result<(), Error> {
    let Some(mut spread) = learner.spread.take() else {
        return Ok(());
    };
    let ranks = &mut *spread.ranks;
    broadcast_progress(ranks, progress)?;
    let model = learner.model().clone();
    let (first, second, _) = learner.optimizer().moments(&model);
    let model = received(ranks, model)?;
    let (first, second) = match progress.updates {
        0 => (first, second),
        _ => (received(ranks, first)?, received(ranks, second)?),
    };
    if ranks.rank() > 0 {
        let (updates, scale) = (progress.updates, progress.scale);
        learner.restore(model, [&first, &second], updates, scale, progress.step);
    }
    learner.spread = Some(spread);
    Ok(())
}

fn broadcast_progress(ranks: &mut dyn Ranks, progress: &mut Progress) -> Result<(), Error> {
    let wrong = |error| Error::Unsupported(format!("the progress of the run: {error}"));
    let text = serde_json::to_string(progress).map_err(wrong)?;
    // A character a number: as bits of a float, some transport might change them.
    let mut length = [text.len() as f32];
    ranks.broadcast(&mut length)?;
    let mut text: Vec<f32> = text.bytes().map(f32::from).collect();
    text.resize(length[0] as usize, 0.0);
    ranks.broadcast(&mut text)?;
    if ranks.rank() > 0 {
        let text: Vec<u8> = text.into_iter().map(|byte| byte as u8).collect();
        *progress = serde_json::from_slice(&text).map_err(wrong)?;
    }
    Ok(())
}

/// A module with the weights that it has on rank 0.
fn received<M: Module>(ranks: &mut dyn Ranks, module: M) -> Result<M, Error> {
    let mut numbers = weights(&module);
    ranks.broadcast(&mut numbers)?;
    Ok(match ranks.rank() {
        0 => module,
        _ => module.map(&mut Fill(numbers.into_iter())),
    })
}

/// Replaces weights by numbers, in the order of the parameters.
struct Fill(std::vec::IntoIter<f32>);

impl ModuleMapper for Fill {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, old, mapper) = param.consume();
        let (autodiff, tracked) = (old.is_autodiff(), old.is_require_grad());
        let shape = old.dims();
        let numbers = self.0.by_ref().take(shape.iter().product()).collect();
        let new = tensor(numbers, shape, &old.device().without_autodiff());
        let new = match autodiff {
            true => Tensor::from_inner(new).set_require_grad(tracked),
            false => new,
        };
        Param::from_mapped_value(id, new, mapper)
    }
}
