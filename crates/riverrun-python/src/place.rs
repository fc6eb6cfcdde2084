//! Where a call runs: on threads of this machine, or on a stream of a GPU.

use pyo3::prelude::*;

/// The place.
#[derive(FromPyObject)]
pub enum Place {
    /// On the CPU, on so many threads.
    #[pyo3(transparent)]
    Cpu(usize),
    /// On a GPU.
    #[pyo3(transparent)]
    Cuda(Stream),
}

/// A stream of an NVIDIA GPU.
#[derive(FromPyObject)]
pub struct Stream(
    /// The number of the GPU, as CUDA counts.
    pub u16,
    /// The address of the stream.
    pub u64,
    /// Allocates so many bytes on the GPU for work on this stream: a function that returns an object and its address.
    pub Py<PyAny>,
);

/// The threads of a call that only CPUs run.
macro_rules! on_cpu {
    ($place:expr, $stream:ident => $otherwise:expr) => {
        match $place {
            $crate::place::Place::Cpu(threads) => threads,
            $crate::place::Place::Cuda($stream) => return $otherwise,
        }
    };
}
pub(crate) use on_cpu;
