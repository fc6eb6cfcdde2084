//! Operations on a stream.

use super::Communicator;
use super::library::{Pointer, SUM};
use crate::rendezvous::Session;
use crate::token::Fingerprint;
use crate::{Error, Result, Transport};
use std::ffi::{c_int, c_void};

/// The type of an element in device memory, by NCCL's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Element {
    /// 16-bit floats of IEEE.
    F16 = 6,
    /// 32-bit floats.
    F32 = 7,
    /// 16-bit floats with the exponents of 32-bit ones.
    Bf16 = 9,
}

/// A range of device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    address: u64,
    length: usize,
    element: Element,
}

impl Span {
    /// `length` elements from a device address on.
    ///
    /// # Safety
    ///
    /// The memory must belong to the device of the communicator that gets this, and must stay allocated until its stream has
    /// run the operations on it. What else reads or writes it must be ordered with them by the stream.
    pub unsafe fn new(address: u64, length: usize, element: Element) -> Self {
        Self {
            address,
            length,
            element,
        }
    }

    fn pointer(self) -> Pointer {
        self.address as *mut c_void
    }

    fn kind(self) -> c_int {
        self.element as c_int
    }
}

/// The operations of a [`Communicator`] on one stream.
#[derive(Clone, Copy)]
pub struct Queue<'a> {
    pub(super) communicator: &'a Communicator,
    pub(super) stream: Pointer,
}

impl Queue<'_> {
    /// Several operations as one launch: for many buffers, and where a rank sends and receives at once.
    ///
    /// # Errors
    ///
    /// The error of `work`, and those of the operations.
    pub fn grouped(&mut self, work: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let communicator = self.communicator;
        // SAFETY: both count the nesting of this thread, and are called in pairs.
        communicator.call("ncclGroupStart", |library, _| unsafe {
            (library.group_start)()
        })?;
        let worked = work(self);
        let ended = communicator
            .shared
            .call(|library, _| unsafe { (library.group_end)() });
        worked.and(communicator.checked("ncclGroupEnd", ended))
    }

    fn session(&self) -> &Session {
        &self.communicator.session
    }

    fn parts(&self, whole: Span, part: Span) -> Result<()> {
        let size = self.size();
        if part.length.checked_mul(size) == Some(whole.length) && part.element == whole.element {
            return Ok(());
        }
        Err(Error::Argument(format!(
            "{whole:?} is not as long as {size} parts of {part:?}"
        )))
    }

    fn other(&self, rank: usize) -> Result<c_int> {
        let size = self.size();
        if rank < size {
            return Ok(rank as c_int);
        }
        Err(Error::Argument(format!("rank {rank} is not below {size}")))
    }
}

// SAFETY of all calls: the spans and the stream are as their makers promised, and the handle lives during the call.
impl Transport for Queue<'_> {
    type Input<'a> = Span;
    type Output<'a> = Span;

    fn rank(&self) -> usize {
        self.session().rank
    }

    fn size(&self) -> usize {
        self.session().size
    }

    fn all_reduce(&mut self, buffer: Span) -> Result<()> {
        let (p, n, kind, stream) = (buffer.pointer(), buffer.length, buffer.kind(), self.stream);
        self.communicator
            .call("ncclAllReduce", |library, comm| unsafe {
                (library.all_reduce)(p, p, n, kind, SUM, comm, stream)
            })
    }

    fn reduce_scatter(&mut self, input: Span, output: Span) -> Result<()> {
        self.parts(input, output)?;
        let (from, to, stream) = (input.pointer(), output.pointer(), self.stream);
        let (n, kind) = (output.length, output.kind());
        self.communicator
            .call("ncclReduceScatter", |library, comm| unsafe {
                (library.reduce_scatter)(from, to, n, kind, SUM, comm, stream)
            })
    }

    fn all_gather(&mut self, input: Span, output: Span) -> Result<()> {
        self.parts(output, input)?;
        let (from, to, stream) = (input.pointer(), output.pointer(), self.stream);
        let (n, kind) = (input.length, input.kind());
        self.communicator
            .call("ncclAllGather", |library, comm| unsafe {
                (library.all_gather)(from, to, n, kind, comm, stream)
            })
    }

    fn broadcast(&mut self, buffer: Span, root: usize) -> Result<()> {
        let root = self.other(root)?;
        let (p, n, kind, stream) = (buffer.pointer(), buffer.length, buffer.kind(), self.stream);
        self.communicator
            .call("ncclBroadcast", |library, comm| unsafe {
                (library.broadcast)(p, p, n, kind, root, comm, stream)
            })
    }

    fn send(&mut self, input: Span, to: usize) -> Result<()> {
        let to = self.other(to)?;
        let (p, n, kind, stream) = (input.pointer(), input.length, input.kind(), self.stream);
        self.communicator.call("ncclSend", |library, comm| unsafe {
            (library.send)(p, n, kind, to, comm, stream)
        })
    }

    fn recv(&mut self, output: Span, from: usize) -> Result<()> {
        let from = self.other(from)?;
        let (p, n, kind, stream) = (output.pointer(), output.length, output.kind(), self.stream);
        self.communicator.call("ncclRecv", |library, comm| unsafe {
            (library.recv)(p, n, kind, from, comm, stream)
        })
    }

    /// Waits for the ranks themselves, by the rendezvous; the streams may still run.
    fn barrier(&mut self) -> Result<()> {
        self.session().meet("a barrier", Fingerprint([0; 32]))
    }
}
