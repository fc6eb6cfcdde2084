//! A run spread over several ranks: each computes the gradients of its rows of every batch, all add them up, and so all take
//! the same step.
//!
//! A batch is cut into as many parts as there are ranks, times [`accumulate`](crate::TrainingConfig::accumulate); a rank takes
//! those of its number. The batch, its parts and their random numbers are those of a single process that accumulates as many
//! parts, and so are the gradients: to the bit where each rank has one part, and within rounding otherwise.

mod state;
pub(crate) mod time;
#[cfg(unix)]
mod world;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};
use riverrun::Neighbours;
use riverrun::training::{FlatTensor, from_flat, to_flat};

use crate::Error;
pub(crate) use state::share;
#[cfg(unix)]
pub use world::{over_world, over_world_along_time};

/// The ranks of a run, as training uses them: over TCP, or any other transport of numbers on the host.
///
/// All ranks call the same methods in the same order with the same lengths.
///
/// # Errors
/// Of every method: [`Error::World`] once a rank has failed.
pub trait Ranks: Send {
    /// The number of this process.
    fn rank(&self) -> usize;

    /// The number of processes.
    fn size(&self) -> usize;

    /// Replaces every number by its sum over the ranks, the same bits on all of them.
    fn sum(&mut self, numbers: &mut [f32]) -> Result<(), Error>;

    /// Copies the numbers of rank 0 to all others.
    fn broadcast(&mut self, numbers: &mut [f32]) -> Result<(), Error>;

    /// Puts the ranks' `own` numbers one after another, in the order of the ranks, into `all`.
    fn gather(&mut self, own: &[f32], all: &mut [f32]) -> Result<(), Error>;

    /// Fails on all ranks where the bytes under this name are not the same on all of them.
    fn agree(&mut self, name: &str, bytes: &[u8]) -> Result<(), Error>;
}

/// The ranks of a learner, and what they tell each other in a step.
pub(crate) struct Spread {
    ranks: Box<dyn Ranks>,
    /// Whether this rank is asked to stop.
    pub asked: bool,
    /// Whether any rank was asked to stop before the last step.
    pub stopping: bool,
    /// Where sequences are divided along time.
    neighbours: Option<Neighbours>,
}

impl Spread {
    pub fn new(ranks: Box<dyn Ranks>) -> Self {
        Self {
            ranks,
            asked: false,
            stopping: false,
            neighbours: None,
        }
    }

    pub fn rank(&self) -> usize {
        self.ranks.rank()
    }

    pub fn size(&self) -> usize {
        self.ranks.size()
    }

    pub fn agree(&mut self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        self.ranks.agree(name, bytes)
    }

    /// Refuses to go on where the ranks' weights are not the same bits.
    pub fn agree_on<M: Module>(&mut self, model: &M, step: u64) -> Result<(), Error> {
        let weights = crate::weights(model).into_iter();
        let bytes: Vec<u8> = weights.flat_map(f32::to_le_bytes).collect();
        self.agree(&format!("the weights after step {step}"), &bytes)
    }

    /// Adds up the ranks' gradients, in f32, and losses, `[1]`.
    ///
    /// They go through the host in one piece, so that a step has one exchange.
    pub fn add_up<M: Module>(
        &mut self,
        model: &M,
        gradients: GradientsParams,
        loss: Tensor<1>,
    ) -> Result<(GradientsParams, Tensor<1>), Error> {
        let device = loss.device();
        let mut take = Take {
            gradients,
            ids: Vec::new(),
            flat: Vec::new(),
            len: 0,
        };
        model.visit(&mut take);
        take.push(loss);
        let Take { ids, flat, len, .. } = take;
        let vector = to_flat(&flat, Tensor::empty([len], (&device, DType::F32)))?;
        let mut numbers = numbers(vector)?;
        numbers.push(f32::from(u8::from(self.asked)));
        self.ranks.sum(&mut numbers)?;
        self.stopping = numbers.pop().is_some_and(|asked| asked > 0.0);
        let mut flat = from_flat(flat, &tensor(numbers, [len], &device))?;
        let loss = flat.pop().expect("the loss was last").into_tensor();
        let mut put = Put {
            flat: ids.into_iter().zip(flat).collect(),
            gradients: GradientsParams::new(),
        };
        model.visit(&mut put);
        Ok((put.gradients, loss))
    }

    /// Replaces every number by its sum over the ranks, taken in f64 and in their order.
    pub fn total(&mut self, numbers: &mut [f64]) -> Result<(), Error> {
        let own: Vec<f32> = numbers.iter().flat_map(|number| pieces(*number)).collect();
        let mut all = vec![0.0; own.len() * self.size()];
        self.ranks.gather(&own, &mut all)?;
        for (i, number) in numbers.iter_mut().enumerate() {
            let ranks = all.chunks_exact(own.len());
            let ranks = ranks.map(|pieces| pieces[3 * i..][..3].iter().map(|x| f64::from(*x)));
            *number = ranks.map(Iterator::sum::<f64>).sum();
        }
        Ok(())
    }
}

/// A number as three of f32 that add up to it, with all its bits where they are in the range of f32.
fn pieces(number: f64) -> [f32; 3] {
    let high = number as f32;
    let rest = number - f64::from(high);
    let middle = rest as f32;
    [high, middle, (rest - f64::from(middle)) as f32]
}

/// The numbers of a vector in f32, read from the device.
fn numbers(vector: Tensor<1>) -> Result<Vec<f32>, Error> {
    let data = riverrun::device::read(vector)?;
    let wrong = |error| Error::Unsupported(format!("numbers of the device: {error:?}"));
    data.try_into_vec().map_err(wrong)
}

fn tensor<const D: usize>(numbers: Vec<f32>, shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::from_data(TensorData::new(numbers, shape), (device, DType::F32))
}

/// Takes a model's gradients out, in the order of its parameters.
struct Take {
    gradients: GradientsParams,
    ids: Vec<ParamId>,
    flat: Vec<FlatTensor>,
    /// Numbers so far.
    len: usize,
}

impl Take {
    fn push<const D: usize>(&mut self, tensor: Tensor<D>) {
        let tensor = tensor.cast(FloatDType::F32);
        let len = tensor.dims().iter().product::<usize>();
        let flat = FlatTensor::new(tensor, self.len, 0).unwrap_or_else(riverrun::Error::raise);
        self.flat.push(flat);
        self.len += len;
    }
}

impl ModuleVisitor for Take {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(gradient) = self.gradients.remove::<D>(param.id) {
            self.ids.push(param.id);
            self.push(gradient);
        }
    }
}

/// Puts gradients back.
struct Put {
    flat: std::collections::HashMap<ParamId, FlatTensor>,
    gradients: GradientsParams,
}

impl ModuleVisitor for Put {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(flat) = self.flat.remove(&param.id) {
            self.gradients.register(param.id, flat.into_tensor::<D>());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_pieces_have_all_bits() {
        for number in [
            0.0,
            1.0 / 3.0,
            -1e9 / 7.0,
            1e-20 / 3.0,
            (1u64 << 53) as f64 - 1.0,
        ] {
            let sum: f64 = pieces(number).iter().map(|piece| f64::from(*piece)).sum();
            assert_eq!(sum, number);
        }
        let sum: f64 = pieces(f64::INFINITY).iter().map(|x| f64::from(*x)).sum();
        assert!(!sum.is_finite());
    }
}
