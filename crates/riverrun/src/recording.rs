//! Launches recorded once and replayed by one call, without their cost on the host: CUDA and HIP graphs, and CubeCL's
//! substitute on WebGPU's runtimes.

use burn::backend::{Backend, BackendGraph, Dispatch, ExecutionError};
use burn::tensor::Device;

use crate::Error;
use crate::device::one_line;

/// Recorded work of a device.
///
/// A recording holds launches with the addresses they had. Work can be recorded if it reads nothing back, uploads nothing
/// (inputs are refilled between replays, see [`crate::ops::refill`]), and takes all its memory from the pools that earlier
/// runs of the same work have filled. The recording holds the memory it touches until it is dropped.
///
/// On CUDA, nothing else of the process may use the device from [`record`](Self::record)'s beginning to its end: CubeCL
/// captures in CUDA's global mode, in which another thread's wait for a result fails, and spoils the recording. Replays run
/// beside anything.
pub struct Recording {
    graph: BackendGraph<Dispatch>,
    device: Device,
}

impl Recording {
    /// Prepares a device for one recording. Run the work a few times after this, each time waiting for its end, so that
    /// everything is compiled, tuned and allocated.
    ///
    /// # Errors
    /// [`Error::Recording`] while another recording is in progress.
    pub fn prepare(device: &Device) -> Result<(), Error> {
        Dispatch::graph_prepare(device.as_dispatch()).map_err(failed)
    }

    /// Records what `work` launches, without running it. Returns what `work` returns; its tensors have values after the
    /// first [`replay`](Self::replay).
    ///
    /// If `work` panics, the device leaves the recording mode before the panic continues.
    ///
    /// # Errors
    /// [`Error::Recording`] on a device without recordings, before `work` is called; or for work that cannot be recorded: its
    /// results are lost; the device stays usable, and can record again after another [`prepare`](Self::prepare).
    pub fn record<T>(device: &Device, work: impl FnOnce() -> T) -> Result<(Self, T), Error> {
        Self::try_record(device, || Ok(work()))
    }

    /// [`record`](Self::record) for work that can fail.
    ///
    /// # Errors
    /// Those of [`record`](Self::record), and the error of `work`: the device has left the recording mode then.
    pub fn try_record<T, E: From<Error>>(
        device: &Device,
        work: impl FnOnce() -> Result<T, E>,
    ) -> Result<(Self, T), E> {
        Dispatch::graph_start_capture(device.as_dispatch()).map_err(failed)?;
        let capture = Capture { device };
        let output = work()?;
        let graph = capture.stop()?;
        let device = device.clone();
        Ok((Self { graph, device }, output))
    }

    /// Runs the recorded launches again, after all work queued on the device before. Does not wait.
    ///
    /// # Errors
    /// [`Error::Recording`] if the device refuses.
    ///
    /// # Safety
    /// Every tensor that the recorded work read or wrote without creating it still has the memory it had: none has been
    /// dropped or replaced.
    pub unsafe fn replay(&self) -> Result<(), Error> {
        // SAFETY: the caller's.
        unsafe { Dispatch::graph_replay(self.device.as_dispatch(), &self.graph) }.map_err(failed)
    }
}

impl std::fmt::Debug for Recording {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recording")
            .field("device", &self.device)
            .finish_non_exhaustive()
    }
}

/// A capture in progress; dropping it ends the capture and discards what was recorded.
struct Capture<'a> {
    device: &'a Device,
}

impl Capture<'_> {
    fn stop(self) -> Result<BackendGraph<Dispatch>, Error> {
        let device = self.device;
        std::mem::forget(self);
        Dispatch::graph_stop_capture(device.as_dispatch()).map_err(failed)
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        // The caller already gets an error; a second one, for a discarded capture, would add nothing.
        let stopped = Dispatch::graph_stop_capture(self.device.as_dispatch());
        if let Some(error) = stopped.err() {
            tracing::debug!("discarded a recording: {}", one_line(error.reason()));
        }
    }
}

fn failed(error: ExecutionError) -> Error {
    Error::Recording(one_line(error.reason()))
}
