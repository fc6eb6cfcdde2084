//! Tensors of a differentiating backend are constants here.

use burn::backend::Autodiff;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;

use super::{EnqueueOps, StreamWork};
use crate::ops::support::autodiff::{inner, outer};
use crate::ops::support::members::Many;

impl<B: EnqueueOps, C: CheckpointStrategy> EnqueueOps for Autodiff<B, C> {
    fn enqueue(reads: Many<Self>, writes: Many<Self>, work: StreamWork) -> Many<Self> {
        let plain = |tensors: Many<Self>| {
            let tensors = tensors.into_tensors().into_iter();
            Many::from_tensors(tensors.map(inner::<B, C>).collect())
        };
        let written = B::enqueue(plain(reads), plain(writes), work).into_tensors();
        Many::from_tensors(written.into_iter().map(outer::<B, C>).collect())
    }
}
