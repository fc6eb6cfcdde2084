//! Ranks over a [`World`] and a transport of numbers on the host.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use riverrun::{Neighbours, StateTransport};
use riverrun_world::{Fingerprint, Transport, World};

use super::Ranks;
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
    let neighbours = Neighbours::new(Group {
        first: world.rank() / group.max(1) * group,
        rank: world.rank() % group.max(1),
        size: group,
        transport: transport.clone(),
    });
    (Box::new(Joined { world, transport }), neighbours)
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

    fn sum(&mut self, numbers: &mut [f32]) -> Result<(), Error> {
        Ok(lock(&self.transport).all_reduce(numbers)?)
    }

    fn broadcast(&mut self, numbers: &mut [f32]) -> Result<(), Error> {
        Ok(lock(&self.transport).broadcast(numbers, 0)?)
    }

    fn gather(&mut self, own: &[f32], all: &mut [f32]) -> Result<(), Error> {
        Ok(lock(&self.transport).all_gather(own, all)?)
    }

    fn agree(&mut self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        Ok(self.world.agree(name, Fingerprint::of(bytes))?)
    }
}
