//! Ranks over a [`World`] and a transport of numbers on the host.

use std::sync::Arc;

use burn::tensor::{DType, Tensor};
use riverrun::training::{FlatTensor, from_flat, to_flat};
use riverrun_world::{Fingerprint, Transport, World};

use super::{Ranks, numbers, tensor};
use crate::Error;

/// The ranks of a world, over a transport among them such as [`Ring`](riverrun_world::Ring).
///
/// The world stays the caller's, to [finish](World::finish) or to [fail](World::fail) after the run.
pub fn over_world<T>(world: Arc<World>, transport: T) -> Box<dyn Ranks>
where
    T: for<'a> Transport<Input<'a> = &'a [f32], Output<'a> = &'a mut [f32]> + Send + 'static,
{
    Box::new(Joined { world, transport })
}

struct Joined<T> {
    world: Arc<World>,
    transport: T,
}

impl From<riverrun_world::Error> for Error {
    fn from(error: riverrun_world::Error) -> Self {
        Self::World(error.to_string())
    }
}

impl<T> Ranks for Joined<T>
where
    T: for<'a> Transport<Input<'a> = &'a [f32], Output<'a> = &'a mut [f32]> + Send,
{
    fn rank(&self) -> usize {
        self.world.rank()
    }

    fn size(&self) -> usize {
        self.world.size()
    }

    fn on_device(&self) -> bool {
        false
    }

    /// All vectors go through the host in one piece, so that a step has one exchange.
    fn sum(&mut self, vectors: Vec<Tensor<1>>) -> Result<Vec<Tensor<1>>, Error> {
        let Some(first) = vectors.first() else {
            return Ok(vectors);
        };
        let (device, mut len) = (first.device(), 0);
        let mut flat = Vec::with_capacity(vectors.len());
        for vector in vectors {
            let [own] = vector.dims();
            flat.push(FlatTensor::new(vector, len, 0)?);
            len += own;
        }
        let whole = to_flat(&flat, Tensor::empty([len], (&device, DType::F32)))?;
        let mut sums = numbers(whole)?;
        self.transport.all_reduce(&mut sums)?;
        let sums = from_flat(flat, &tensor(sums, [len], &device))?;
        Ok(sums.into_iter().map(FlatTensor::into_tensor).collect())
    }

    fn scatter(&mut self, whole: Tensor<1>) -> Result<Tensor<1>, Error> {
        let device = whole.device();
        let whole = numbers(whole)?;
        let len = whole.len() / self.size();
        let mut part = vec![0.0; len];
        self.transport.reduce_scatter(&whole, &mut part)?;
        Ok(tensor(part, [len], &device))
    }

    fn gather(&mut self, part: Tensor<1>) -> Result<Tensor<1>, Error> {
        let device = part.device();
        let part = numbers(part)?;
        let len = part.len() * self.size();
        let mut whole = vec![0.0; len];
        self.transport.all_gather(&part, &mut whole)?;
        Ok(tensor(whole, [len], &device))
    }

    fn broadcast(&mut self, vector: Tensor<1>) -> Result<Tensor<1>, Error> {
        let device = vector.device();
        let mut vector = numbers(vector)?;
        self.transport.broadcast(&mut vector, 0)?;
        let len = vector.len();
        Ok(tensor(vector, [len], &device))
    }

    fn agree(&mut self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        Ok(self.world.agree(name, Fingerprint::of(bytes))?)
    }

    /// What depends on other ranks was waited for in the methods above.
    fn waiting(&mut self, wait: &mut dyn FnMut() -> Result<(), Error>) -> Result<(), Error> {
        wait()
    }
}
