//! Steps that are recorded once and then run again by one call each.
//!
//! What a step needs from the host, its tokens and the optimizer's numbers, lies in tensors that stay where they are and are
//! refilled before each run. What a step changes, weights, moments and the loss's scale, is updated in place. So the recorded launches find
//! everything where it was, and do the next step.

use burn::tensor::{Device, Tensor};
use riverrun::Recording;

use crate::learner::{Learner, Part};
use crate::tasks::Batch;
use crate::tokens::Tokens;
use crate::{Error, RunConfig};

/// Steps that run as usual before one is recorded: compiling and tuning happen in the first, and from the second on a
/// backend that fuses takes the way that it will keep.
const WARM_UP: usize = 3;

/// The way from steps as usual to recorded ones.
pub(crate) struct Recorder {
    /// The first batch's tokens, refilled with each later one's.
    tokens: Option<Tokens>,
    /// Steps done as usual.
    warm: usize,
    /// The recorded step, and where each run of it leaves its loss.
    recorded: Option<(Recording, Tensor<1>)>,
}

impl Recorder {
    /// # Errors
    /// A run or a device whose steps cannot be recorded.
    pub(crate) fn new(config: &RunConfig, device: &Device) -> Result<Self, Error> {
        let because = |reason: &str| Err(Error::Invalid(format!("--graph: {reason}")));
        if riverrun::device::name(device) == "cpu" {
            return because("there are no launches to record on the CPU");
        }
        if config.model.dropout > 0.0 {
            return because("a recorded step would drop the same elements every time");
        }
        Ok(Self {
            tokens: None,
            warm: 0,
            recorded: None,
        })
    }

    /// One step of `learner`: what [`Learner::step`] says.
    pub(crate) fn step(
        &mut self,
        learner: &mut Learner,
        batch: &Batch,
        lr: f64,
        done: &mut dyn FnMut(Part),
    ) -> Result<Tensor<1>, Error> {
        let device = learner.device().clone().without_autodiff();
        if self.warm == 0 {
            Recording::prepare(&device)?;
        }
        let tokens = match self.tokens.take() {
            Some(tokens) => tokens.refilled(batch)?,
            None => Tokens::new(batch, &device),
        };
        learner.optimizer.announce(lr, &device)?;
        let loss = match &self.recorded {
            None if self.warm < WARM_UP => {
                self.warm += 1;
                let loss = learner.run(tokens.clone(), lr, done);
                device.sync().map_err(Error::device)?;
                loss
            }
            None => {
                let run = || learner.run(tokens.clone(), lr, done);
                let (recording, loss) = Recording::record(&device, run)?;
                replay(&recording)?;
                let kept = loss.clone();
                self.recorded = Some((recording, loss));
                kept
            }
            Some((recording, loss)) => {
                learner.optimizer.count_replay();
                replay(recording)?;
                [Part::Forward, Part::Backward, Part::Update]
                    .into_iter()
                    .for_each(done);
                loss.clone()
            }
        };
        self.tokens = Some(tokens);
        // The next run overwrites its loss.
        Ok(loss.mul_scalar(1.0))
    }
}

fn replay(recording: &Recording) -> Result<(), Error> {
    // SAFETY: the recorded step reads and writes the learner's weights, moments and loss scale, which the recorded update and
    // no other changes, and in place, or it would have panicked; the tokens and the optimizer's numbers, which are refilled
    // in place or panic; and the loss. All live in the learner and in its recorder, which gives up its recording when
    // weights are put in the place of others.
    Ok(unsafe { recording.replay() }?)
}
