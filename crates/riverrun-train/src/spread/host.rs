//! Ranks over a [`World`] and a transport of numbers on the host.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn::tensor::{DType, Tensor};
use riverrun::training::{FlatTensor, from_flat, to_flat};
use riverrun::{Neighbours, StateTransport};
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
    let transport = Arc::new(Mutex::new(transport));
    Box::new(Joined { world, transport })
}

/// As [`over_world`], with the neighbours of this rank where sequences are divided along time among groups of `group` ranks: see
/// [`Setup::spread_over_time`](crate::Setup::spread_over_time). Both use the one transport, in turns.
pub fn over_world_along_time<T>(
    world: Arc<World>,
    transport: T,
    group: usize,
) -> (Box<dyn Ranks>, Neighbours)
where
    T: for<'a> Transport<Input<'a> = &'a [f32], Output<'a> = &'a mut [f32]> + Send + 'static,
{
    let transport = Arc::new(Mutex::new(transport));
    let neighbours = neighbours(&world, transport.clone(), group);
    (Box::new(Joined { world, transport }), neighbours)
}

/// The neighbours of this rank in groups of `group` ranks, over a transport among all of them.
pub(super) fn neighbours<T>(world: &World, transport: Arc<Mutex<T>>, group: usize) -> Neighbours
where
    T: for<'a> Transport<Input<'a> = &'a [f32], Output<'a> = &'a mut [f32]> + Send + 'static,
{
    Neighbours::new(Group {
        first: world.rank() / group.max(1) * group,
        rank: world.rank() % group.max(1),
        size: group,
        transport,
    })
}

struct Joined<T> {
    world: Arc<World>,
    transport: Arc<Mutex<T>>,
}

fn lock<T>(transport: &Mutex<T>) -> MutexGuard<'_, T> {
    transport.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A group of ranks of a world, which follow each other.
struct Group<T> {
    /// The rank of the world that is the group's first.
    first: usize,
    rank: usize,
    size: usize,
    transport: Arc<Mutex<T>>,
}

impl<T> StateTransport for Group<T>
where
    T: for<'a> Transport<Input<'a> = &'a [f32], Output<'a> = &'a mut [f32]> + Send,
{
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn send(&mut self, numbers: &[f32], to: usize) -> Result<(), riverrun::Error> {
        let sent = lock(&self.transport).send(numbers, self.first + to);
        sent.map_err(lost)
    }

    fn receive(&mut self, numbers: &mut [f32], from: usize) -> Result<(), riverrun::Error> {
        let received = lock(&self.transport).recv(numbers, self.first + from);
        received.map_err(lost)
    }
}

fn lost(error: riverrun_world::Error) -> riverrun::Error {
    riverrun::Error::HandOver(error.to_string())
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
        lock(&self.transport).all_reduce(&mut sums)?;
        let sums = from_flat(flat, &tensor(sums, [len], &device))?;
        Ok(sums.into_iter().map(FlatTensor::into_tensor).collect())
    }

    fn scatter(&mut self, whole: Tensor<1>) -> Result<Tensor<1>, Error> {
        let device = whole.device();
        let whole = numbers(whole)?;
        let len = whole.len() / self.size();
        let mut part = vec![0.0; len];
        lock(&self.transport).reduce_scatter(&whole, &mut part)?;
        Ok(tensor(part, [len], &device))
    }

    fn gather(&mut self, part: Tensor<1>) -> Result<Tensor<1>, Error> {
        let device = part.device();
        let part = numbers(part)?;
        let len = part.len() * self.size();
        let mut whole = vec![0.0; len];
        lock(&self.transport).all_gather(&part, &mut whole)?;
        Ok(tensor(whole, [len], &device))
    }

    fn broadcast(&mut self, vector: Tensor<1>) -> Result<Tensor<1>, Error> {
        let device = vector.device();
        let mut vector = numbers(vector)?;
        lock(&self.transport).broadcast(&mut vector, 0)?;
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
