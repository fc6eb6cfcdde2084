//! A run spread over several ranks: each computes the gradients of its rows of every batch, all add them up, and so all take
//! the same step.
//!
//! A batch is cut into as many parts as there are ranks, times [`accumulate`](crate::TrainingConfig::accumulate); a rank takes
//! those of its number. The batch, its parts and their random numbers are those of a single process that accumulates as many
//! parts, and so are the gradients: to the bit where each rank has one part and sums are in the order of the ranks, and within
//! rounding otherwise.

#[cfg(any(test, all(unix, feature = "cuda")))]
mod bucket;
#[cfg(unix)]
mod connect;
#[cfg(unix)]
mod host;
#[cfg(all(unix, feature = "cuda"))]
mod nccl;
mod signals;
mod state;
pub(crate) mod time;
mod vectors;

use std::time::Instant;

use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::{Device, FloatDType, Tensor, TensorData};
use riverrun::training::{Early, EarlySums};
use riverrun::{Neighbours, Recording};

use crate::Error;
#[cfg(unix)]
pub use connect::connect;
#[cfg(unix)]
pub use host::{over_world, over_world_along_time};
use signals::Signals;
pub(crate) use state::share;
use vectors::Vectors;

/// The ranks of a run, as training uses them: over the memory of the hosts, or of the devices.
///
/// All ranks call the same methods in the same order with vectors of the same lengths and dtypes, each on its device and without
/// autodiff. Over the memory of the hosts, vectors are in f32.
///
/// # Errors
/// Of every method: [`Error::World`] once a rank has failed.
pub trait Ranks: Send {
    /// The number of this process.
    fn rank(&self) -> usize;

    /// The number of processes.
    fn size(&self) -> usize;

    /// Whether [`sum`](Self::sum), [`scatter`](Self::scatter) and [`gather`](Self::gather) are work of the device like its
    /// launches: they return before it is done, and can be recorded.
    fn on_device(&self) -> bool;

    /// How gradients are summed while the backward pass goes on, `wide` in f32; `None` where that is no work of the device.
    fn early_sums(&self, wide: bool) -> Option<EarlySums> {
        let _ = wide;
        None
    }

    /// Vectors with every number replaced by its sum over the ranks, the same bits on all of them. Sums that have begun
    /// [early](Self::early_sums) are done before.
    fn sum(&mut self, vectors: Vec<Tensor<1>>) -> Result<Vec<Tensor<1>>, Error>;

    /// The part of this rank of a vector's sum over the ranks. The vector has a part for every rank, all of one length.
    fn scatter(&mut self, whole: Tensor<1>) -> Result<Tensor<1>, Error>;

    /// The ranks' parts one after another, in the order of the ranks.
    fn gather(&mut self, part: Tensor<1>) -> Result<Tensor<1>, Error>;

    /// The vector of rank 0.
    fn broadcast(&mut self, vector: Tensor<1>) -> Result<Tensor<1>, Error>;

    /// Fails on all ranks where the bytes under this name are not the same on all of them.
    fn agree(&mut self, name: &str, bytes: &[u8]) -> Result<(), Error>;

    /// Waits for what depends on other ranks: for a bounded time, and with the error of [`Ranks`] if a rank has failed.
    fn waiting(&mut self, wait: &mut dyn FnMut() -> Result<(), Error>) -> Result<(), Error>;
}

/// Ranks that are connected.
pub struct Connected {
    /// The ranks.
    pub ranks: Box<dyn Ranks>,
    /// The way from rank to rank, in words; of TCP with the reason.
    pub way: String,
}

/// The ranks of a learner, and what they tell each other in a step.
pub(crate) struct Spread {
    ranks: Box<dyn Ranks>,
    pub signals: Signals,
    /// Whether each rank has a part of the moments, and not all of them.
    pub shards: bool,
    /// Where sequences are divided along time.
    neighbours: Option<Neighbours>,
}

impl Spread {
    pub fn new(ranks: Box<dyn Ranks>) -> Self {
        let signals = Signals::new(ranks.rank() == 0);
        Self {
            ranks,
            signals,
            shards: false,
            neighbours: None,
        }
    }

    pub fn rank(&self) -> usize {
        self.ranks.rank()
    }

    pub fn size(&self) -> usize {
        self.ranks.size()
    }

    /// Whether steps can be recorded.
    pub fn on_device(&self) -> bool {
        self.ranks.on_device()
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

    /// Waits until the device has done its work, which depends on other ranks.
    pub fn wait(&mut self, device: &Device) -> Result<(), Error> {
        self.ranks.waiting(&mut || synced(device))
    }

    /// How gradients are summed while a backward pass goes on, if they are: not where each rank needs a part of the sums alone, nor
    /// where the pass waits for gradients of states, which would wait for sums.
    pub fn early_sums(&self) -> Option<EarlySums> {
        match self.shards || self.neighbours.is_some() {
            true => None,
            false => self.ranks.early_sums(self.sums_are_wide()),
        }
    }

    /// Adds up the ranks' gradients, losses, `[1]`, and signals. Nothing is read from the device here.
    ///
    /// Sums are in f32. Those of two numbers in 16 bits are the same if they are rounded at once, so that two ranks whose devices
    /// add up send half as much.
    pub fn add_up<M: Module>(
        &mut self,
        model: &M,
        gradients: GradientsParams,
        early: Option<&Early>,
        loss: Tensor<1>,
    ) -> Result<(GradientsParams, Tensor<1>), Error> {
        let wide = self.sums_are_wide();
        let (places, mut vectors) = Vectors::take(model, gradients, wide);
        vectors.push(loss);
        let mut sums = self.with_signals(vectors)?;
        let loss = sums.pop().expect("the loss was last");
        Ok((places.put(model, sums, early), loss))
    }

    /// Adds up the ranks' losses and other numbers, `[1]` each, and signals.
    pub fn add_up_numbers(
        &mut self,
        loss: Tensor<1>,
        other: Tensor<1>,
    ) -> Result<(Tensor<1>, Tensor<1>), Error> {
        let mut sums = self.with_signals(vec![other, loss])?;
        let loss = sums.pop().expect("the loss was last");
        Ok((loss, sums.pop().expect("the other was before it")))
    }

    /// Sums of vectors, the last of which may be in use elsewhere, and of the signals.
    fn with_signals(&mut self, mut vectors: Vec<Tensor<1>>) -> Result<Vec<Tensor<1>>, Error> {
        // Sums take the memory of what they add up.
        let last = vectors.pop().expect("there is a loss");
        let device = last.device();
        vectors.push(last.mul_scalar(1.0));
        vectors.push(self.signals.sent(&device));
        let mut sums = self.ranks.sum(vectors)?;
        let signals = sums.pop().expect("the signals were last");
        self.signals.received(signals);
        Ok(sums)
    }

    pub fn ranks(&mut self) -> &mut dyn Ranks {
        &mut *self.ranks
    }

    fn sums_are_wide(&self) -> bool {
        !(self.ranks.on_device() && self.size() == 2)
    }

    /// The seconds of a step's sums in this format by themselves: of some in a row, with one wait, and recorded where they can be.
    pub fn time_sums<M: Module>(
        &mut self,
        model: &M,
        dtype: FloatDType,
        device: &Device,
    ) -> Result<f64, Error> {
        const TIMES: usize = 8;
        let dtype = match self.sums_are_wide() {
            true => FloatDType::F32,
            false => dtype,
        };
        let mut vectors = Vectors::zeros(model, dtype, device);
        vectors.push(Tensor::zeros([3], device));
        let mut vectors = Some(vectors);
        let mut sums = |ranks: &mut dyn Ranks| -> Result<(), Error> {
            for _ in 0..TIMES {
                let before = vectors.take().expect("no sum has failed");
                vectors = Some(ranks.sum(before)?);
            }
            Ok(())
        };
        let mut recording = None;
        if self.on_device() {
            let prepared = Recording::prepare(device)?;
            for _ in 0..2 {
                sums(&mut *self.ranks)?;
                self.wait(device)?;
            }
            let (recorded, done) = prepared.record(|| sums(&mut *self.ranks))?;
            done?;
            recording = Some(recorded);
        }
        let mut run = |ranks: &mut dyn Ranks| match &recording {
            // SAFETY: the vectors are where they were.
            Some(recording) => Ok(unsafe { recording.replay() }?),
            None => sums(ranks),
        };
        run(&mut *self.ranks)?;
        self.ranks.waiting(&mut || synced(device))?;
        self.ranks.agree("a measurement", &[])?;
        let start = Instant::now();
        run(&mut *self.ranks)?;
        self.ranks.waiting(&mut || synced(device))?;
        Ok(start.elapsed().as_secs_f64() / TIMES as f64)
    }

    pub fn into_ranks(self) -> Box<dyn Ranks> {
        self.ranks
    }

    /// After a step: hears the signals, if it is time to.
    pub fn hear(&mut self) -> Result<(), Error> {
        let Self { ranks, signals, .. } = self;
        match signals.due() {
            Some(sums) => {
                let mut heard = Vec::new();
                ranks.waiting(&mut || {
                    heard = numbers(sums.clone())?;
                    Ok(())
                })?;
                signals.hear(&heard);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Replaces every number by its sum over the ranks, taken in f64 and in their order.
    pub fn total(&mut self, sums: &mut [f64], device: &Device) -> Result<(), Error> {
        let own: Vec<f32> = sums.iter().flat_map(|number| pieces(*number)).collect();
        let count = own.len();
        let all = self.ranks.gather(tensor(own, [count], device))?;
        let all = self.read(all)?;
        for (i, sum) in sums.iter_mut().enumerate() {
            let ranks = all.chunks_exact(count);
            let ranks = ranks.map(|pieces| pieces[3 * i..][..3].iter().map(|x| f64::from(*x)));
            *sum = ranks.map(Iterator::sum::<f64>).sum();
        }
        Ok(())
    }

    /// The numbers of a vector that other ranks have a part in.
    fn read(&mut self, vector: Tensor<1>) -> Result<Vec<f32>, Error> {
        let mut found = Vec::new();
        self.ranks.waiting(&mut || {
            found = numbers(vector.clone())?;
            Ok(())
        })?;
        Ok(found)
    }
}

/// Waits for the device.
pub(crate) fn synced(device: &Device) -> Result<(), Error> {
    Ok(device
        .sync()
        .map_err(|error| riverrun::training::execution_error(device, &error))?)
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
    let place = (device, burn::tensor::DType::F32);
    Tensor::from_data(TensorData::new(numbers, shape), place)
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
