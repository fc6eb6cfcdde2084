//! NVIDIA's library of collectives, loaded at run time. Declarations after its public header, `nccl.h`.
//!
//! Results are plain integers: a library may be newer than these declarations, and a Rust enum of a value that it does not
//! know would be undefined behaviour.

use crate::{Error, Result};
use std::error::Error as _;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

/// A result of the library.
pub(super) type Code = c_int;
/// `ncclComm_t`, `cudaStream_t` and pointers to memory of the device.
pub(super) type Pointer = *mut c_void;

pub(super) const SUCCESS: Code = 0;
pub(super) const IN_PROGRESS: Code = 7;
/// `ncclSum`.
pub(super) const SUM: c_int = 0;
/// The first version with all that is used here, and with communicators that can be aborted from another thread.
const OLDEST: c_int = 21_800;
/// The length of an id of a communicator.
pub(super) const ID: usize = 128;

/// `ncclUniqueId`, which the library takes by value.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct UniqueId(pub(super) [u8; ID]);

macro_rules! functions {
    ($($field:ident: $symbol:literal ($($argument:ty),*) -> $result:ty;)*) => {
        /// The functions of NCCL.
        pub struct Library {
            file: String,
            version: c_int,
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl Library {
            /// # Safety
            ///
            /// The library must be NCCL: its symbols are taken to have these types.
            unsafe fn of(library: &'static libloading::Library, file: String) -> Result<Self> {
                Ok(Self {
                    $($field: {
                        let symbol = concat!($symbol, "\0").as_bytes();
                        // SAFETY: the caller's.
                        let found = unsafe { library.get::<unsafe extern "C" fn($($argument),*) -> $result>(symbol) };
                        *found.map_err(|_| Error::Nccl(format!("{file} has no {}", $symbol)))?
                    },)*
                    file,
                    version: 0,
                })
            }
        }
    };
}

functions! {
    get_version: "ncclGetVersion" (*mut c_int) -> Code;
    get_unique_id: "ncclGetUniqueId" (*mut UniqueId) -> Code;
    get_error_string: "ncclGetErrorString" (Code) -> *const c_char;
    init_rank: "ncclCommInitRank" (*mut Pointer, c_int, UniqueId, c_int) -> Code;
    destroy: "ncclCommDestroy" (Pointer) -> Code;
    abort: "ncclCommAbort" (Pointer) -> Code;
    get_async_error: "ncclCommGetAsyncError" (Pointer, *mut Code) -> Code;
    all_reduce: "ncclAllReduce" (*const c_void, Pointer, usize, c_int, c_int, Pointer, Pointer) -> Code;
    reduce_scatter: "ncclReduceScatter" (*const c_void, Pointer, usize, c_int, c_int, Pointer, Pointer) -> Code;
    all_gather: "ncclAllGather" (*const c_void, Pointer, usize, c_int, Pointer, Pointer) -> Code;
    broadcast: "ncclBroadcast" (*const c_void, Pointer, usize, c_int, c_int, Pointer, Pointer) -> Code;
    send: "ncclSend" (*const c_void, usize, c_int, c_int, Pointer, Pointer) -> Code;
    recv: "ncclRecv" (Pointer, usize, c_int, c_int, Pointer, Pointer) -> Code;
    group_start: "ncclGroupStart" () -> Code;
    group_end: "ncclGroupEnd" () -> Code;
}

impl Library {
    /// The variable that names the library's file, where the system's loader does not find it.
    pub const VARIABLE: &str = "RIVERRUN_NCCL";
    /// Bytes of an id of a communicator.
    pub const ID: usize = ID;

    /// Loads the file that `RIVERRUN_NCCL` names, or else `libnccl.so.2` or `libnccl.so`, once for the process.
    ///
    /// # Errors
    ///
    /// [`Error::Nccl`] where there is none, where it is older than 2.18, or where a function is missing.
    pub fn load() -> Result<&'static Self> {
        static LOADED: OnceLock<Result<Library>> = OnceLock::new();
        LOADED
            .get_or_init(Self::load_first)
            .as_ref()
            .map_err(Clone::clone)
    }

    fn load_first() -> Result<Self> {
        let own = std::env::var(Self::VARIABLE)
            .ok()
            .filter(|name| !name.is_empty());
        let names = own.map_or_else(
            || vec!["libnccl.so.2".into(), "libnccl.so".into()],
            |name| vec![name],
        );
        let mut reasons = Vec::new();
        for name in names {
            // SAFETY: the initializers of a library of this name are NCCL's, which may run at any time.
            match unsafe { libloading::Library::new(&name) } {
                // It has threads, and stays to the end of the process.
                Ok(library) => return Self::checked(Box::leak(Box::new(library)), name),
                Err(e) => reasons.push(
                    e.source()
                        .map_or_else(|| e.to_string(), |why| why.to_string()),
                ),
            }
        }
        Err(Error::Nccl(format!(
            "no NCCL was found ({}): install it, or point {} at libnccl.so.2",
            reasons.join("; "),
            Self::VARIABLE
        )))
    }

    fn checked(library: &'static libloading::Library, file: String) -> Result<Self> {
        // SAFETY: that a library of this name is NCCL is what the user has installed or said.
        let mut library = unsafe { Self::of(library, file) }?;
        let mut version = 0;
        // SAFETY: the pointer is that of a local number.
        library.check("ncclGetVersion", unsafe {
            (library.get_version)(&mut version)
        })?;
        library.version = version;
        if version < OLDEST {
            return Err(Error::Nccl(format!(
                "NCCL {} ({}) is older than 2.18",
                library.version(),
                library.file
            )));
        }
        Ok(library)
    }

    /// Its version, such as `2.28.9`.
    pub fn version(&self) -> String {
        let v = self.version;
        format!("{}.{}.{}", v / 10_000, v / 100 % 100, v % 100)
    }

    /// A new id of a communicator: what rank 0 gives to [`World::join`](crate::World::join) as its blob.
    ///
    /// # Errors
    ///
    /// [`Error::Nccl`] where no network interface can be used, for one.
    pub fn unique_id(&self) -> Result<Vec<u8>> {
        let mut id = UniqueId([0; ID]);
        // SAFETY: the pointer is that of a local structure of the library's type.
        self.check("ncclGetUniqueId", unsafe { (self.get_unique_id)(&mut id) })?;
        Ok(id.0.to_vec())
    }

    /// An error in words.
    pub(super) fn text(&self, what: &str, code: Code) -> String {
        // SAFETY: the function takes any number, and returns a constant text or null.
        let text = unsafe {
            (self.get_error_string)(code)
                .as_ref()
                .map(|text| CStr::from_ptr(text))
        };
        format!(
            "{what}: {} ({code})",
            text.map_or("unknown".into(), CStr::to_string_lossy)
        )
    }

    pub(super) fn check(&self, what: &str, code: Code) -> Result<()> {
        if code == SUCCESS {
            Ok(())
        } else {
            Err(Error::Nccl(self.text(what, code)))
        }
    }
}
