//! Ranks over a [`World`] and a transport of numbers on the host.

use std::sync::Arc;

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

    fn sum(&mut self, numbers: &mut [f32]) -> Result<(), Error> {
        Ok(self.transport.all_reduce(numbers)?)
    }

    fn broadcast(&mut self, numbers: &mut [f32]) -> Result<(), Error> {
        Ok(self.transport.broadcast(numbers, 0)?)
    }

    fn gather(&mut self, own: &[f32], all: &mut [f32]) -> Result<(), Error> {
        Ok(self.transport.all_gather(own, all)?)
    }

    fn agree(&mut self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        Ok(self.world.agree(name, Fingerprint::of(bytes))?)
    }
}
