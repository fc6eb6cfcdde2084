//! A second stream, for work that waits for other devices while launches go on.
//!
//! Recordings alone have it: while launches run as they come, CubeCL may move a buffer to other memory by a copy that knows
//! nothing of this stream, and keeps every page in its place only while it records. So outside a recording all work is on the
//! stream of the launches, in their order.
//!
//! In a recording, work beside the launches is a branch of the graph: it begins after the launches that came before it, and
//! [`Beside::join`] makes those that follow wait for it.

use cudarc::driver::result::{DriverError, event, stream};
use cudarc::driver::sys::{CUevent, CUevent_flags, CUevent_wait_flags, CUstream};

use cubecl::server::BufferBinding;

/// The second stream of a device.
#[derive(Default)]
pub(super) struct Beside {
    made: Option<Made>,
    /// Buffers of work that has not been joined: their memory is not given to others.
    held: Vec<BufferBinding>,
}

#[derive(Clone, Copy)]
struct Made {
    stream: CUstream,
    /// Recorded and waited for at once, so that one does for all.
    order: CUevent,
}

// SAFETY: a stream and an event are names that any thread may use.
unsafe impl Send for Made {}

impl Made {
    /// Lets `later` wait for all that is on `earlier`.
    fn order(self, earlier: CUstream, later: CUstream) -> Result<(), DriverError> {
        // SAFETY: streams and events live as long as the process.
        unsafe {
            event::record(self.order, earlier)?;
            stream::wait_event(later, self.order, CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT)
        }
    }
}

impl Beside {
    /// Makes the stream, unless it is there.
    fn made(&mut self) -> Result<Made, DriverError> {
        if let Some(made) = self.made {
            return Ok(made);
        }
        let made = Made {
            stream: stream::create(stream::StreamKind::NonBlocking)?,
            order: event::create(CUevent_flags::CU_EVENT_DISABLE_TIMING)?,
        };
        Ok(*self.made.insert(made))
    }

    /// Outside a recording: makes what the next one will need, and frees what one that failed has left.
    pub fn prepare(&mut self) -> Result<(), String> {
        self.held.clear();
        self.made().map(drop).map_err(failed)
    }

    /// In a recording: puts work on the second stream, after the launches so far, and keeps its buffers.
    pub fn run<'a>(
        &mut self,
        main: CUstream,
        buffers: impl Iterator<Item = &'a BufferBinding>,
        work: impl FnOnce(CUstream) -> Result<(), String>,
    ) -> Result<(), String> {
        let made = self.made().map_err(failed)?;
        made.order(main, made.stream).map_err(failed)?;
        self.held.extend(buffers.cloned());
        work(made.stream)
    }

    /// In a recording, the launches that follow wait for the work so far, if there is any. Frees its buffers.
    pub fn join(&mut self, main: CUstream) -> Result<(), String> {
        if std::mem::take(&mut self.held).is_empty() {
            return Ok(());
        }
        let made = self.made().map_err(failed)?;
        made.order(made.stream, main).map_err(failed)
    }
}

fn failed(error: DriverError) -> String {
    format!("the stream beside that of the launches: {error}")
}
