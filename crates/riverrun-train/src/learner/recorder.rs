//! Steps that are recorded once and then replayed by one call each.
//!
//! The inputs of a step from the host, its batch and the optimizer's numbers, lie in tensors that stay at their addresses and
//! are refilled before each run. Weights, moments and the loss scale are updated in place. So the recorded launches find
//! everything at its address and compute the next step.

use burn::module::Module;
use burn::tensor::{Device, Tensor, TensorData};
use riverrun::{Neighbours, Preparation, Recording};

use super::core::{Core, Part, Share};
use crate::Error;
use crate::objective::{Draw, Inputs, Objective};
use crate::spread::{Spread, synced};

/// Steps that run normally before one is recorded: the first compiles, and from the second on a fusing backend has chosen its
/// kernels.
const WARM_UP: usize = 3;

/// The state of recording: normal steps first, then the recorded one.
pub(super) struct Recorder {
    /// The first batch's tensors by part, refilled with those of each later batch.
    inputs: Vec<Inputs>,
    /// Where sequences are divided along time.
    neighbours: Option<Neighbours>,
    /// The share of the first batch's parts, which recorded steps repeat.
    share: Option<Share>,
    /// Until a step is recorded.
    prepared: Option<Preparation>,
    /// Steps done since the preparation.
    warm: usize,
    /// The recorded step, and the tensor that each replay writes its loss to.
    recorded: Option<(Recording, Tensor<1>)>,
}

impl Recorder {
    /// # Errors
    /// If the steps of the objective or the device cannot be recorded.
    pub fn new<O: Objective>(
        objective: &O,
        neighbours: Option<Neighbours>,
        device: &Device,
    ) -> Result<Self, Error> {
        let because = |reason: &str| Err(Error::Recording(reason.into()));
        if riverrun::device::is_cpu(device) {
            return because("there are no launches to record on the CPU");
        }
        if objective.draws() {
            return because(
                "the loss draws from the device's generator, whose numbers a recorded step would repeat",
            );
        }
        if objective.keeps_statistics() {
            return because("the loss changes statistics that the model keeps");
        }
        Ok(Self {
            inputs: Vec::new(),
            neighbours,
            share: None,
            prepared: None,
            warm: 0,
            recorded: None,
        })
    }

    /// Starts again, with inputs in memory of their own.
    fn restart<M: Module>(
        &mut self,
        core: &Core<M>,
        parts: Vec<(Vec<TensorData>, Draw)>,
    ) -> Result<(), Error> {
        (self.recorded, self.prepared, self.warm) = (None, None, 0);
        self.prepared = Some(Recording::prepare(&core.plain_device())?);
        let inputs = core.inputs(parts).into_iter();
        let inputs = inputs.map(|inputs| inputs.with_neighbours(self.neighbours.clone()));
        self.inputs = inputs.collect();
        Ok(())
    }

    /// Puts the parts of a batch into the memory of those before, or starts again if that memory is shared.
    ///
    /// # Errors
    /// For a batch of another shape or dtype, which changes nothing. Any other error ends the recording: the next step starts a
    /// new one.
    fn refill<M: Module>(
        &mut self,
        core: &Core<M>,
        parts: Vec<(Vec<TensorData>, Draw)>,
    ) -> Result<(), Error> {
        if parts.len() != self.inputs.len() {
            return Err(Error::Recording(format!(
                "a batch in {} parts follows batches in {}",
                parts.len(),
                self.inputs.len()
            )));
        }
        for (inputs, (tensors, _)) in self.inputs.iter().zip(&parts) {
            inputs.fit(tensors)?;
        }
        if !self.inputs.iter().all(Inputs::can_mut) {
            tracing::warn!("a clone of a batch is alive: steps are recorded again");
            return self.restart(core, parts);
        }
        // The recorded launches read the inputs where they are: without them there is nothing to replay.
        let (recorded, warm) = (self.recorded.take(), std::mem::take(&mut self.warm));
        let inputs = std::mem::take(&mut self.inputs).into_iter().zip(parts);
        self.inputs = inputs
            .map(|(inputs, (tensors, draw))| inputs.refilled(tensors, draw))
            .collect::<Result<_, _>>()?;
        (self.recorded, self.warm) = (recorded, warm);
        Ok(())
    }

    /// One step on the parts of a batch: see [`Learner::step`](super::Learner::step).
    ///
    /// # Errors
    /// As there; parts with another share of the loss than those of the first batch.
    pub fn step<O: Objective>(
        &mut self,
        core: &mut Core<O::Model>,
        objective: &O,
        parts: Vec<(Vec<TensorData>, Draw)>,
        share: Share,
        mut spread: Option<&mut Spread>,
        lr: f64,
        done: &mut dyn FnMut(Part),
    ) -> Result<Tensor<1>, Error> {
        if *self.share.get_or_insert(share) != share {
            let reason =
                "the pieces of a batch have other shares of its loss than those of the first";
            return Err(Error::Recording(reason.into()));
        }
        let device = core.plain_device();
        match self.warm {
            0 => self.restart(core, parts)?,
            _ => self.refill(core, parts)?,
        }
        core.optimizer.announce(lr, &device)?;
        if let Some(spread) = &mut spread {
            spread.signals.announce(&device, true)?;
        }
        let loss = match &self.recorded {
            None if self.warm < WARM_UP => {
                self.warm += 1;
                let ranks = spread.as_deref_mut();
                let loss = core.run(objective, &self.inputs, share, ranks, lr, done)?;
                match spread {
                    Some(spread) => spread.wait(&device)?,
                    None => synced(&device)?,
                }
                tracing::debug!("step {} before the recording is done", self.warm);
                loss
            }
            None if !core.optimizer.have_one_time() => {
                return Err(Error::Recording(
                    "some parameters have had fewer gradients than others, and need other numbers in each step".into(),
                ));
            }
            None => {
                // What was refilled above is written now: a recording takes no writes.
                synced(&device)?;
                let run = || core.run(objective, &self.inputs, share, spread, lr, done);
                // After an error the next step starts again.
                let warm = std::mem::take(&mut self.warm);
                let prepared = self.prepared.take().expect("a step is recorded once");
                let (recording, loss) = prepared.record(run)?;
                let loss = loss?;
                tracing::debug!("a step is recorded");
                replay(&recording)?;
                let saved = loss.clone();
                if recording.repeats() {
                    (self.recorded, self.warm) = (Some((recording, loss)), warm);
                } else {
                    tracing::warn!(
                        "a clone of a weight or moment is alive: steps are recorded again"
                    );
                }
                saved
            }
            Some((recording, loss)) => {
                core.optimizer.count_replay();
                replay(recording)?;
                [Part::Forward, Part::Backward, Part::Update]
                    .into_iter()
                    .for_each(done);
                loss.clone()
            }
        };
        // The next replay overwrites its loss.
        Ok(loss.mul_scalar(1.0))
    }
}

fn replay(recording: &Recording) -> Result<(), Error> {
    // SAFETY: the recorded step reads and writes the core's weights, moments and loss scale, which the recorded update and
    // no other changes, and in place, or the recording is not kept; the batch's tensors and the optimizer's numbers, which are
    // refilled in place or refused; and the loss. All live in the learner and in its recorder, and no weights are put in the
    // place of others while there is a recorder.
    Ok(unsafe { recording.replay() }?)
}
