//! Collectives on the memory of NVIDIA's GPUs, one process a GPU.
//!
//! ```no_run
//! use riverrun_world::nccl::{Communicator, Element, Library, Span};
//! use riverrun_world::{Options, Place, Transport, World};
//!
//! # fn main() -> Result<(), riverrun_world::Error> {
//! # let (stream, address) = (std::ptr::null_mut(), 0);
//! let place = Place::from_environment()?;
//! let library = Library::load()?;
//! // All ranks must have the same version.
//! let version = riverrun_world::Fingerprint::of(library.version().as_bytes());
//! let options = Options::from_environment().agreeing("NCCL's version", version);
//! let world = World::join(&place, options, || library.unique_id())?;
//! // The CUDA device of this thread is `place.local_rank` by now.
//! let mut communicator = unsafe { Communicator::connect(&world, library, stream)? };
//! let gradients = unsafe { Span::new(address, 1024, Element::F32) };
//! communicator.all_reduce(gradients)?;
//! // … the stream is waited for …
//! world.fate().check()?;
//! communicator.finish()?;
//! world.finish()?;
//! # Ok(())
//! # }
//! ```

mod handle;
mod library;

pub use library::Library;

use crate::fate::Fate;
use crate::rendezvous::{Session, World};
use crate::token::Fingerprint;
use crate::{Error, Result, Transport, handshake};
use handle::Shared;
use library::{Code, ID, Pointer, SUCCESS, SUM, UniqueId};
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::time::Duration;

/// How often the watchdog asks NCCL for errors.
const WATCH: Duration = Duration::from_millis(50);
/// The type of an element in device memory, by NCCL's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Element {
    /// 32-bit integers.
    I32 = 2,
    /// 16-bit floats of IEEE.
    F16 = 6,
    /// 32-bit floats.
    F32 = 7,
    /// 64-bit floats.
    F64 = 8,
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
}

/// The ranks of a [`World`] in a communicator of NCCL.
///
/// Operations return when they are in the stream, not when they are done. **After the stream was waited for, ask
/// [`World::fate`]**: when the world fails, the communicator is aborted, so that the stream comes to its end, and what it
/// leaves behind is wrong. A watchdog does that, also while this process waits for the stream, and while NCCL hangs.
///
/// For a world of the same size and machines of the same shape, the same version of NCCL gives the same bits. They are not those
/// of [`Ring`](crate::Ring).
pub struct Communicator {
    session: Arc<Session>,
    shared: Arc<Shared>,
    stream: Pointer,
}

// SAFETY: a stream may be used by any thread; the rest is.
unsafe impl Send for Communicator {}

impl Communicator {
    /// Joins the communicator whose id is the blob of the world. All ranks call it. It waits for them; should one end
    /// meanwhile, this process is ended after the time of grace, since NCCL cannot be interrupted here.
    ///
    /// # Errors
    ///
    /// [`Error::Failed`] where NCCL fails, and [`Error::Argument`] where the blob is no id.
    ///
    /// # Safety
    ///
    /// The current CUDA device of this thread must be that of the rank, and `stream` a `CUstream` or `cudaStream_t` of its
    /// primary context, or null, that lives as long as this communicator.
    pub unsafe fn connect(
        world: &World,
        library: &'static Library,
        stream: *mut c_void,
    ) -> Result<Self> {
        let session = world.session().clone();
        let no_id = |_| Error::Argument("rank 0 did not hand out an id of NCCL".into());
        let id = UniqueId(<[u8; ID]>::try_from(world.blob()).map_err(no_id)?);
        let mut handle = std::ptr::null_mut();
        // SAFETY: a local pointer, an id, and a rank below the size, both far below 2³¹.
        let code = unsafe {
            (library.init_rank)(
                &mut handle,
                session.size as c_int,
                id,
                session.rank as c_int,
            )
        };
        if code != SUCCESS {
            return Err(session.explain(library.text("ncclCommInitRank", code)));
        }
        let shared = Arc::new(Shared::new(library, handle));
        let aborting = shared.clone();
        session.fate.on_failure(move || aborting.abort());
        let communicator = Self {
            session,
            shared,
            stream,
        };
        let (shared, session) = (communicator.shared.clone(), communicator.session.clone());
        handshake::thread("nccl-watch", move || watch(&shared, &session))?;
        Ok(communicator)
    }

    /// Has the operations from here on run in another stream.
    ///
    /// # Safety
    ///
    /// That of [`Communicator::connect`] for the stream.
    pub unsafe fn set_stream(&mut self, stream: *mut c_void) {
        self.stream = stream;
    }

    /// What becomes of the world of this communicator.
    pub fn fate(&self) -> &Fate {
        &self.session.fate
    }

    /// Several operations as one launch: for many buffers, and where a rank sends and receives at once.
    ///
    /// # Errors
    ///
    /// That of `work`, and those of the operations.
    pub fn grouped(&mut self, work: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        // SAFETY: both count the nesting of this thread, and are called in pairs.
        self.call("ncclGroupStart", |library, _| unsafe {
            (library.group_start)()
        })?;
        let worked = work(self);
        let ended = match self
            .shared
            .call(|library, _| unsafe { (library.group_end)() })
        {
            Some(SUCCESS) => Ok(()),
            code => Err(self.broken("ncclGroupEnd", code)),
        };
        worked.and(ended)
    }

    /// Ends the communicator. The stream must have been waited for, and recordings with its operations be dropped.
    ///
    /// # Errors
    ///
    /// [`Error::Failed`] where NCCL fails or the world has.
    pub fn finish(self) -> Result<()> {
        self.session.fate.check()?;
        let Some(handle) = self.shared.take() else {
            return Err(self.session.fate.error());
        };
        // SAFETY: a communicator that nobody else can take any more.
        match unsafe { (self.shared.library.destroy)(handle) } {
            SUCCESS => Ok(()),
            code => Err(self
                .session
                .explain(self.shared.library.text("ncclCommDestroy", code))),
        }
    }

    fn call(&self, what: &str, work: impl FnOnce(&Library, Pointer) -> Code) -> Result<()> {
        self.session.fate.check()?;
        match self.shared.call(work) {
            Some(SUCCESS) => Ok(()),
            code => Err(self.broken(what, code)),
        }
    }

    fn broken(&self, what: &str, code: Option<Code>) -> Error {
        match code {
            Some(code) => self.session.explain(self.shared.library.text(what, code)),
            // It was aborted.
            None => self.session.fate.error(),
        }
    }

    fn parts(&self, whole: Span, part: Span) -> Result<()> {
        let size = self.session.size;
        if part.length.checked_mul(size) == Some(whole.length) && part.element == whole.element {
            return Ok(());
        }
        Err(Error::Argument(format!(
            "{whole:?} is not as long as {size} parts of {part:?}"
        )))
    }

    fn rank_argument(&self, rank: usize) -> Result<c_int> {
        if rank < self.session.size {
            return Ok(rank as c_int);
        }
        Err(Error::Argument(format!(
            "rank {rank} is not below {}",
            self.session.size
        )))
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        self.shared.abort();
    }
}

fn watch(shared: &Shared, session: &Session) {
    loop {
        std::thread::sleep(WATCH);
        match shared.error() {
            None => return,
            Some(None) => {}
            Some(Some(text)) => {
                // The heartbeats may know who has died; the hooks abort.
                session.explain(text);
                return;
            }
        }
    }
}

// SAFETY of all calls: the spans and the stream are as their makers promised, and the handle lives during the call.
impl Transport for Communicator {
    type Input<'a> = Span;
    type Output<'a> = Span;

    fn rank(&self) -> usize {
        self.session.rank
    }

    fn size(&self) -> usize {
        self.session.size
    }

    fn all_reduce(&mut self, buffer: Span) -> Result<()> {
        let (p, n, kind) = (buffer.pointer(), buffer.length, buffer.element as c_int);
        self.call("ncclAllReduce", |library, comm| unsafe {
            (library.all_reduce)(p, p, n, kind, SUM, comm, self.stream)
        })
    }

    fn reduce_scatter(&mut self, input: Span, output: Span) -> Result<()> {
        self.parts(input, output)?;
        let (n, kind) = (output.length, output.element as c_int);
        self.call("ncclReduceScatter", |library, comm| unsafe {
            (library.reduce_scatter)(
                input.pointer(),
                output.pointer(),
                n,
                kind,
                SUM,
                comm,
                self.stream,
            )
        })
    }

    fn all_gather(&mut self, input: Span, output: Span) -> Result<()> {
        self.parts(output, input)?;
        let (n, kind) = (input.length, input.element as c_int);
        self.call("ncclAllGather", |library, comm| unsafe {
            (library.all_gather)(
                input.pointer(),
                output.pointer(),
                n,
                kind,
                comm,
                self.stream,
            )
        })
    }

    fn broadcast(&mut self, buffer: Span, root: usize) -> Result<()> {
        let (p, n, kind, root) = (
            buffer.pointer(),
            buffer.length,
            buffer.element as c_int,
            self.rank_argument(root)?,
        );
        self.call("ncclBroadcast", |library, comm| unsafe {
            (library.broadcast)(p, p, n, kind, root, comm, self.stream)
        })
    }

    fn send(&mut self, input: Span, to: usize) -> Result<()> {
        let (p, n, kind, to) = (
            input.pointer(),
            input.length,
            input.element as c_int,
            self.rank_argument(to)?,
        );
        self.call("ncclSend", |library, comm| unsafe {
            (library.send)(p, n, kind, to, comm, self.stream)
        })
    }

    fn recv(&mut self, output: Span, from: usize) -> Result<()> {
        let (p, n, kind, from) = (
            output.pointer(),
            output.length,
            output.element as c_int,
            self.rank_argument(from)?,
        );
        self.call("ncclRecv", |library, comm| unsafe {
            (library.recv)(p, n, kind, from, comm, self.stream)
        })
    }

    /// Waits for the ranks themselves, by the rendezvous; the streams may still run.
    fn barrier(&mut self) -> Result<()> {
        self.session.meet("a barrier", Fingerprint([0; 32]))
    }
}
