//! A run's kernels, compiled before its first step.

use std::any::type_name;

use burn::module::Module;
use burn::tensor::{Device, TensorData};
use riverrun::device::cache;

use super::core::{Core, Share};
use super::{check_memory, draw_model};
use crate::objective::{Draw, Inputs, Objective};
use crate::{Error, Optimizer, TrainingConfig};

/// Steps of a rehearsal: kernels are fused otherwise from the second on.
const STEPS: u64 = 2;

/// Compiles the kernels of a run's first steps and of its validation on several cores, as
/// [`compile_ahead`](cache::compile_ahead) does, which says what it asks for. `batch` has the shapes of the run's batches, and
/// `model` stands for the sizes of the model. Returns the number of kernels compiled: none for a step that would be refused.
pub fn compile_ahead<O: Objective>(
    objective: &O,
    config: &TrainingConfig,
    batch: &O::Batch,
    model: &str,
    device: &Device,
) -> usize {
    let count = config.accumulate.max(1);
    let fits = check_memory(objective, None, device);
    let Ok(parts) = fits.and_then(|()| objective.parts(batch, 0..count, count)) else {
        return 0;
    };
    let shapes: Vec<_> = parts.iter().flatten().map(|data| data.shape()).collect();
    let (objective_name, optimizer, dtype) = (type_name::<O>(), &config.optimizer, config.dtype);
    let name = format!("training {objective_name} {model} {shapes:?} {optimizer:?} {dtype}");
    cache::compile_ahead(device, &name, |device| {
        if let Err(error) = rehearse(objective, config, &parts, device) {
            tracing::debug!(%error, "a run that is not rehearsed");
        }
    })
}

fn rehearse<O: Objective>(
    objective: &O,
    config: &TrainingConfig,
    parts: &[Vec<TensorData>],
    device: &Device,
) -> Result<(), Error> {
    let model = draw_model(objective.init(&device.clone().autodiff()))?;
    let optimizer = Optimizer::new(&config.optimizer);
    let mut core = Core::new(model, optimizer, config.dtype, device);
    let share = Share::of(parts.len());
    let draw = |step, part| Draw {
        seed: config.seed,
        step,
        part,
    };
    for step in 0..STEPS {
        let parts = (0..).zip(parts);
        let parts = parts.map(|(part, tensors)| (tensors.clone(), draw(step, part)));
        let inputs = core.inputs(parts.collect());
        core.run(objective, &inputs, share, None, 1e-3, &mut |_| ())?;
    }
    let model = config.dtype.working_copy(&core.model().valid());
    if let Some(tensors) = parts.first() {
        let draw = draw(0, Draw::VALIDATION);
        let inputs = Inputs::new(tensors.clone(), draw, config.dtype.dtype(), device);
        objective.score(&model, &inputs);
    }
    Ok(())
}
