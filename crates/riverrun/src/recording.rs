//! Launches recorded once and replayed by one call, without their cost on the host: CUDA and HIP graphs, and CubeCL's
//! substitute on WebGPU's runtimes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ThreadId;

use burn::backend::{Backend, BackendGraph, Dispatch, ExecutionError};
use burn::tensor::Device;

use crate::Error;
use crate::device::one_line;

/// Recorded work of a device.
///
/// A recording holds launches with the addresses they had. Work can be recorded if it reads nothing back, uploads nothing
/// (inputs are refilled between replays, see [`refill`](crate::training::refill)), and takes all its memory from the pools that earlier
/// runs of the same work have filled. The recording holds the memory it touches until it is dropped.
///
/// On CUDA, nothing else of the process may use the device from [`record`](Preparation::record)'s beginning to its end: CubeCL
/// captures in CUDA's global mode, in which another thread's wait for a result fails, and spoils the recording. Replays run
/// beside anything.
///
/// An update in place ([`adamw`](crate::training::adamw)) of a tensor that shares its memory writes to a copy, and a recorded copy would
/// start from the same old numbers at each replay. Such a recording can be replayed once: see [`repeats`](Self::repeats).
pub struct Recording {
    graph: BackendGraph<Dispatch>,
    device: Device,
    /// Whether updates wrote to copies.
    copies: bool,
    replayed: AtomicBool,
}

impl Recording {
    /// Prepares the calling thread's stream of a device for one recording. Run the work a few times after this, each time
    /// waiting for its end, so that everything is compiled and allocated; then record it.
    ///
    /// # Errors
    /// [`Error::Recording`] on a device without recordings, and while the thread has another preparation.
    pub fn prepare(device: &Device) -> Result<Preparation, Error> {
        if crate::device::is_cpu(device) {
            return Err(Error::Recording(
                "there are no launches to record on the CPU".into(),
            ));
        }
        Dispatch::graph_prepare(device.as_dispatch()).map_err(failed)?;
        Ok(Preparation {
            device: device.clone(),
            thread: std::thread::current().id(),
            used: false,
        })
    }

    /// Whether each replay goes on from the one before; `false` if an update wrote to a copy of a shared tensor, so that the
    /// second replay would start from the numbers that the first one started from.
    pub fn repeats(&self) -> bool {
        !self.copies
    }

    /// Runs the recorded launches again, after all work queued on the device before. Does not wait.
    ///
    /// # Errors
    /// [`Error::Recording`] if the device refuses, and at the second replay of a recording that does not
    /// [repeat](Self::repeats).
    ///
    /// # Safety
    /// Every tensor that the recorded work read or wrote without creating it still has the memory it had: none has been
    /// dropped or replaced.
    pub unsafe fn replay(&self) -> Result<(), Error> {
        if self.replayed.swap(true, Ordering::Relaxed) && self.copies {
            return Err(Error::Recording(
                "an update wrote to a copy of a tensor that shares its memory: another replay would repeat the last one".into(),
            ));
        }
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

/// A stream that is ready to record: see [`Recording::prepare`]. Dropping it on its thread ends the preparation.
#[derive(Debug)]
pub struct Preparation {
    device: Device,
    thread: ThreadId,
    used: bool,
}

impl Preparation {
    /// Records what `work` launches, without running it. Returns what `work` returns; its tensors have values after the
    /// first [`replay`](Recording::replay).
    ///
    /// If `work` panics, the device leaves the recording mode before the panic continues.
    ///
    /// # Errors
    /// [`Error::Recording`] for work that cannot be recorded: its results are lost; the device stays usable, and can record
    /// again after another [`prepare`](Recording::prepare).
    pub fn record<T>(mut self, work: impl FnOnce() -> T) -> Result<(Recording, T), Error> {
        Dispatch::graph_start_capture(self.device.as_dispatch()).map_err(failed)?;
        self.used = true;
        // Those of the runs before.
        copies();
        let capture = Capture {
            device: &self.device,
        };
        let output = work();
        let recording = Recording {
            graph: capture.stop()?,
            copies: copies() > 0,
            device: self.device.clone(),
            replayed: AtomicBool::new(false),
        };
        Ok((recording, output))
    }
}

impl Drop for Preparation {
    fn drop(&mut self) {
        // On another thread this would end that one's preparation.
        if !self.used && self.thread == std::thread::current().id() {
            drop(Capture {
                device: &self.device,
            });
        }
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

/// The copies made in place of updates since the last call.
fn copies() -> usize {
    #[cfg(feature = "cube")]
    return crate::ops::support::cube::copies::take();
    #[cfg(not(feature = "cube"))]
    0
}

fn failed(error: ExecutionError) -> Error {
    Error::Recording(one_line(error.reason()))
}
