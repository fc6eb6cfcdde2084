//! Launches recorded once and run again by one call, without the way to them: graphs of CUDA and ROCm, and what CubeCL does
//! in their place on WebGPU's runtimes.

use burn::backend::{Backend, BackendGraph, Dispatch, ExecutionError};
use burn::tensor::Device;

use crate::Error;

/// Recorded work of a device.
///
/// What is recorded are launches with the addresses that they had: work can be recorded if it reads nothing back, sends
/// nothing to the device (inputs are refilled between runs, see [`crate::ops::refill`]), and gets all its memory from the
/// pools that earlier runs of the same work have filled. The memory that it touches is kept until the recording goes.
pub struct Recording {
    graph: BackendGraph<Dispatch>,
    device: Device,
}

impl Recording {
    /// Tells the device that a recording is to come. The work must then be run some times as usual, each time waiting for its
    /// end, so that all is compiled, tuned and allocated.
    ///
    /// # Errors
    /// [`Error::Recording`] where another recording is under way.
    pub fn prepare(device: &Device) -> Result<(), Error> {
        Dispatch::graph_prepare(device.as_dispatch()).map_err(failed)
    }

    /// Records what `work` launches, without running it; gives what `work` gives, whose tensors will have contents after
    /// the first [`replay`](Self::replay).
    ///
    /// # Errors
    /// [`Error::Recording`] on a device without recordings, before `work` is called; or for work that cannot be recorded,
    /// after which whatever it was to write is lost.
    pub fn record<T>(device: &Device, work: impl FnOnce() -> T) -> Result<(Self, T), Error> {
        Dispatch::graph_start_capture(device.as_dispatch()).map_err(failed)?;
        let output = work();
        let graph = Dispatch::graph_stop_capture(device.as_dispatch()).map_err(failed)?;
        let device = device.clone();
        Ok((Self { graph, device }, output))
    }

    /// Runs the recorded launches once more, after all that was given to the device before. Waits for nothing.
    ///
    /// # Errors
    /// [`Error::Recording`] if the device refuses.
    ///
    /// # Safety
    /// Every tensor that the recorded work read or wrote, and that was not its own, still has the memory that it had: none
    /// has been dropped, nor replaced by another.
    pub unsafe fn replay(&self) -> Result<(), Error> {
        // SAFETY: the caller's.
        unsafe { Dispatch::graph_replay(self.device.as_dispatch(), &self.graph) }.map_err(failed)
    }
}

impl std::fmt::Debug for Recording {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recording")
            .field("device", &crate::device::name(&self.device))
            .finish_non_exhaustive()
    }
}

fn failed(error: ExecutionError) -> Error {
    Error::Recording(error.to_string())
}
