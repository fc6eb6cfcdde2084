//! Objectives: a model and the loss of a batch.

mod digits;
mod dynamics;
mod inputs;
mod language;
mod loss;

use std::ops::Range;

use burn::module::Module;
use burn::tensor::{Device, Int, Tensor, TensorData};

pub use digits::{DigitsModel, DigitsNet, DigitsObjective};
pub use dynamics::Dynamics;
pub(crate) use inputs::Draw;
pub use inputs::Inputs;
use inputs::split;
pub use language::Language;
pub(crate) use language::check_along_time;
pub use loss::{count_correct, cross_entropy, mean_squared_error};

use crate::Error;

/// A model and the loss of a batch: everything that a [`Learner`](crate::Learner) needs to train it.
///
/// The loss is a function of the model and of the batch's tensors alone. So training can be resumed to the same numbers,
/// accumulated over parts of a batch, and recorded on a GPU.
///
/// ```
/// use burn::module::Module;
/// use burn::nn::{Linear, LinearConfig};
/// use burn::tensor::{Device, Tensor, TensorData};
/// use riverrun_train::{Inputs, Objective, mean_squared_error};
///
/// /// Fits a line to points.
/// struct Line;
///
/// impl Objective for Line {
///     type Model = Linear;
///     type Batch = Vec<[f32; 2]>;
///
///     fn init(&self, device: &Device) -> Linear {
///         LinearConfig::new(1, 1).init(device)
///     }
///
///     fn tensors(&self, points: &Self::Batch) -> Vec<TensorData> {
///         let column = |i: usize| {
///             let numbers: Vec<f32> = points.iter().map(|point| point[i]).collect();
///             TensorData::new(numbers, [points.len(), 1])
///         };
///         vec![column(0), column(1)]
///     }
///
///     fn loss(&self, model: &Linear, inputs: &Inputs) -> Tensor<1> {
///         mean_squared_error(model.forward(inputs.float::<2>(0)), inputs.float(1))
///     }
///
///     fn draws(&self) -> bool {
///         false
///     }
/// }
/// ```
pub trait Objective: Send + Sync {
    /// The model that learns.
    type Model: Module;
    /// A batch on the host.
    type Batch;

    /// A model with fresh weights. The device's generator has been seeded.
    fn init(&self, device: &Device) -> Self::Model;

    /// The model that a new run starts from. By default [`init`](Self::init).
    ///
    /// # Errors
    /// Weights that cannot be read.
    fn start(&self, device: &Device) -> Result<Self::Model, Error> {
        Ok(self.init(device))
    }

    /// The tensors of a batch, in the order in which [`loss`](Self::loss) asks for them: floats or integers of rank 1 to 6.
    /// Where batches are split into parts, the first dimension of each tensor is that of the batch's rows.
    fn tensors(&self, batch: &Self::Batch) -> Vec<TensorData>;

    /// The tensors of some parts of a batch that is split into `of`, in the order of its rows. By default cut out of
    /// [`tensors`](Self::tensors).
    ///
    /// # Errors
    /// [`Error::Parts`] for rows that cannot be split so.
    fn parts(
        &self,
        batch: &Self::Batch,
        parts: Range<usize>,
        of: usize,
    ) -> Result<Vec<Vec<TensorData>>, Error> {
        split(self.tensors(batch), parts, of)
    }

    /// The mean loss over the rows of a batch, `[1]`, in any float dtype.
    fn loss(&self, model: &Self::Model, inputs: &Inputs) -> Tensor<1>;

    /// The scores of a validation batch. By default the loss alone.
    fn score(&self, model: &Self::Model, inputs: &Inputs) -> Score {
        Score {
            loss: self.loss(model, inputs),
            correct: None,
        }
    }

    /// The number of items in the mean of a batch's loss: its weight in the mean over a validation set.
    fn scored(&self, batch: &Self::Batch) -> usize {
        let _ = batch;
        1
    }

    /// The number of items in a batch, in the unit that the run's speed is given in: tokens, rows, frames.
    fn items(&self, batch: &Self::Batch) -> usize {
        self.scored(batch)
    }

    /// Piece `index` of `of` along time of a batch, on steps `index · T / of` and on of all sequences, for runs that are
    /// [divided along time](crate::Setup::spread_over_time). Its model takes the states before it from
    /// [`Inputs::neighbours`], and its mean loss weighs as much as it has [scored](Self::scored) items; one without any has a loss
    /// of 0 that depends on the model's output all the same.
    ///
    /// # Errors
    /// [`Error::AlongTime`] where the sequences cannot be divided, as by default.
    fn piece(&self, batch: &Self::Batch, index: usize, of: usize) -> Result<Self::Batch, Error> {
        let _ = (batch, index, of);
        Err(Error::AlongTime("this objective".into()))
    }

    /// Whether [`loss`](Self::loss) draws from the device's own generator, as Burn's `Dropout` does. The generator is then
    /// seeded at each step, so that a resumed run draws the same numbers, and steps cannot be recorded. Numbers from
    /// [`Inputs::key`] are no such draws.
    fn draws(&self) -> bool {
        true
    }

    /// Whether [`loss`](Self::loss) changes buffers of the model, as Burn's `BatchNorm` changes its running statistics. Such a model
    /// learns in `f32` and on one rank, and its steps are not recorded.
    fn keeps_statistics(&self) -> bool {
        false
    }

    /// Whether a part of the parameters stays as it is. Each rank of several keeps all moments then.
    fn freezes(&self) -> bool {
        false
    }

    /// The bytes that weights, moments and the activations of one batch take at least, if known; a step is refused where
    /// the machine has less.
    fn bytes(&self) -> Option<u128> {
        None
    }
}

/// A model's scores on one batch.
#[derive(Debug, Clone)]
pub struct Score {
    /// The mean loss, `[1]`.
    pub loss: Tensor<1>,
    /// The number of correct items, `[1]`, for tasks with an accuracy.
    pub correct: Option<Tensor<1, Int>>,
}
