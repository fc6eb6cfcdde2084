//! The state of a run, from rank 0 to all others.

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Device, Tensor};

use super::{Spread, tensor};
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
    let device = learner.device().clone().without_autodiff();
    broadcast_progress(&mut spread, progress, &device)?;
    let model = learner.model().clone();
    let (first, second, _) = learner.optimizer().moments(&model);
    let model = received(&mut spread, model, &device)?;
    let (first, second) = match progress.updates {
        0 => (first, second),
        _ => {
            let first = received(&mut spread, first, &device)?;
            (first, received(&mut spread, second, &device)?)
        }
    };
    if spread.rank() > 0 {
        let (updates, scale) = (progress.updates, progress.scale);
        learner.restore(model, [&first, &second], updates, scale, progress.step);
    }
    learner.spread = Some(spread);
    Ok(())
}

/// The numbers of rank 0, as many as there are here.
fn broadcast(spread: &mut Spread, numbers: Vec<f32>, device: &Device) -> Result<Vec<f32>, Error> {
    let count = numbers.len();
    let vector = spread.ranks.broadcast(tensor(numbers, [count], device))?;
    spread.read(vector)
}

fn broadcast_progress(
    spread: &mut Spread,
    progress: &mut Progress,
    device: &Device,
) -> Result<(), Error> {
    let wrong = |error| Error::Unsupported(format!("the progress of the run: {error}"));
    let text = serde_json::to_string(progress).map_err(wrong)?;
    // A character a number: as bits of a float, some transport might change them.
    let length = broadcast(spread, vec![text.len() as f32], device)?[0];
    let mut text: Vec<f32> = text.bytes().map(f32::from).collect();
    text.resize(length as usize, 0.0);
    let text = broadcast(spread, text, device)?;
    if spread.rank() > 0 {
        let text: Vec<u8> = text.into_iter().map(|byte| byte as u8).collect();
        *progress = serde_json::from_slice(&text).map_err(wrong)?;
    }
    Ok(())
}

/// A module with the weights that it has on rank 0.
fn received<M: Module>(spread: &mut Spread, module: M, device: &Device) -> Result<M, Error> {
    let numbers = broadcast(spread, weights(&module), device)?;
    Ok(match spread.rank() {
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
