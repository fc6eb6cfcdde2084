//! The CPU, which has no such stream.

use burn::backend::Flex;

use super::{EnqueueOps, StreamWork};
use crate::ops::support::members::Many;

impl EnqueueOps for Flex {
    fn enqueue(_reads: Many<Self>, _writes: Many<Self>, _work: StreamWork) -> Many<Self> {
        unreachable!("other devices than CUDA devices are refused before")
    }
}
