//! Collectives on the memory of NVIDIA's GPUs, one process a GPU.
//!
//! ```no_run
//! use riverrun_world::nccl::{Communicator, Element, Library, Span};
//! use riverrun_world::{Options, Place, Transport, World};
//!
//! # fn main() -> Result<(), riverrun_world::Error> {
//! # let (stream, address) = (std::ptr::null_mut(), 0);
//! let library = Library::load()?;
//! let world = World::join(&Place::from_environment()?, Options::from_environment(), || library.unique_id())?;
//! // The CUDA device of this thread is that of the rank by now.
//! let communicator = unsafe { Communicator::connect(&world, library, world.blob())? };
//! let gradients = unsafe { Span::new(address, 1024, Element::F32) };
//! unsafe { communicator.on(stream) }.all_reduce(gradients)?;
//! communicator.waiting(|| { /* for the stream */ })?;
//! drop(communicator);
//! world.finish()?;
//! # Ok(())
//! # }
//! ```

mod handle;
mod library;
mod queue;

pub use library::Library;
pub use queue::{Element, Queue, Span};

use crate::rendezvous::{Session, World};
use crate::token::Fingerprint;
use crate::{Error, Result, handshake, wire};
use handle::{Seen, Shared};
use library::{Code, ID, Pointer, SUCCESS, UniqueId};
use std::ffi::c_int;
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// How often the watchdog looks at the communicator.
const WATCH: Duration = Duration::from_millis(50);
/// How long the end of a communicator may take. Afterwards the end of the process does the rest.
const END: Duration = Duration::from_secs(2);

/// The ranks of a [`World`] in a communicator of NCCL.
///
/// Operations return when they are in the stream, not when they are done. When the world fails, the communicator is aborted:
/// the stream comes to its end, and what it leaves behind is wrong. So **wait for the stream by
/// [`waiting`](Self::waiting)**, which tells of that. A watchdog aborts also while this process waits for the stream and while
/// NCCL hangs, and ends the world after [`Timeouts::collective`](crate::Timeouts::collective) where a rank does not come.
///
/// For a world of the same size and machines of the same shape, the same version of NCCL gives the same bits. From three ranks
/// on they are not those of [`Ring`](crate::Ring), which adds up in the order of the ranks.
///
/// Dropped, it is destroyed, for which all ranks should drop theirs; after a failure it is aborted. Where the world lasts
/// [until the process exits](crate::Options::until_exit), it is left to that, which takes less time.
pub struct Communicator {
    session: Arc<Session>,
    shared: Arc<Shared>,
}

impl Communicator {
    /// Joins the communicator with an id that rank 0 has [made](Library::unique_id) and handed to all ranks. All ranks call it.
    /// It waits for them; should one end meanwhile, this process is ended after the time of grace, since NCCL cannot be
    /// interrupted here.
    ///
    /// # Errors
    ///
    /// [`Error::Failed`] where the ranks' versions of NCCL differ or NCCL fails, and [`Error::Argument`] for bytes that are no id.
    ///
    /// # Safety
    ///
    /// The current CUDA device of this thread must be that of the rank, which no other rank has.
    pub unsafe fn connect(world: &World, library: &'static Library, id: &[u8]) -> Result<Self> {
        let session = world.session().clone();
        let no_id = |_| Error::Argument("these bytes are no id of NCCL".into());
        let id = UniqueId(<[u8; ID]>::try_from(id).map_err(no_id)?);
        let version = Fingerprint::of(library.version().as_bytes());
        session.meet("NCCL's version", version)?;
        let shared = Arc::new(Shared::new(library));
        let aborting = shared.clone();
        session.fate.on_failure(move || aborting.abort());
        let communicator = Self { session, shared };
        let (shared, session) = (communicator.shared.clone(), communicator.session.clone());
        handshake::thread("nccl-watch", move || watch(&shared, &session))?;
        communicator.waiting(|| {
            let mut handle = std::ptr::null_mut();
            let Self { session, shared } = &communicator;
            let (rank, size) = (session.rank as c_int, session.size as c_int);
            // SAFETY: a local pointer, an id, and a rank below the size, both far below 2³¹.
            match unsafe { (library.init_rank)(&mut handle, size, id, rank) } {
                SUCCESS => {
                    shared.put(handle);
                    Ok(())
                }
                code => Err(session.explain(library.text("ncclCommInitRank", code))),
            }
        })??;
        Ok(communicator)
    }

    /// The operations on a stream.
    ///
    /// # Safety
    ///
    /// `stream` is a `CUstream` or `cudaStream_t` of the device of [`Communicator::connect`], or null, and outlives the
    /// operations.
    pub unsafe fn on(&self, stream: Pointer) -> Queue<'_> {
        Queue {
            communicator: self,
            stream,
        }
    }

    /// Waits for what other ranks must do too, such as the end of a stream.
    ///
    /// # Errors
    ///
    /// [`Error::Failed`] with the first cause once the world has failed. What the operations have left is wrong then.
    pub fn waiting<R>(&self, wait: impl FnOnce() -> R) -> Result<R> {
        let until = wire::after(self.session.timeouts.collective);
        self.shared.wait_until(Some(until));
        let done = wait();
        self.shared.wait_until(None);
        self.session.fate.check()?;
        Ok(done)
    }

    fn call(&self, what: &str, work: impl FnOnce(&Library, Pointer) -> Code) -> Result<()> {
        self.session.fate.check()?;
        self.checked(what, self.shared.call(work))
    }

    fn checked(&self, what: &str, code: Option<Code>) -> Result<()> {
        match code {
            Some(SUCCESS) => Ok(()),
            Some(code) => Err(self.session.explain(self.shared.library.text(what, code))),
            // It was aborted.
            None => Err(self.session.fate.error()),
        }
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if self.session.fate.failed() || std::thread::panicking() {
            return self.shared.abort();
        }
        let Some(handle) = self.shared.take().filter(|_| !self.session.until_exit) else {
            return;
        };
        struct Last(Pointer);
        // SAFETY: a communicator that nobody else can take any more.
        unsafe impl Send for Last {}
        let (library, last) = (self.shared.library, Last(handle));
        let (tell, told) = mpsc::channel();
        let end = move || {
            let last = last;
            // SAFETY: as above.
            unsafe { (library.destroy)(last.0) };
            let _ = tell.send(());
        };
        // It may wait for other ranks, and for recordings with its operations.
        if handshake::thread("nccl-end", end).is_ok() {
            let _ = told.recv_timeout(END);
        }
    }
}

fn watch(shared: &Shared, session: &Session) {
    loop {
        std::thread::sleep(WATCH);
        match shared.look() {
            Seen::Nothing => {}
            Seen::Over => return,
            // The heartbeats may know who has died; the hooks abort.
            Seen::Error(text) => {
                session.explain(text);
                return;
            }
            Seen::Late => {
                session.fail("the other ranks did not come to the collectives of NCCL in time");
                return;
            }
        }
    }
}
