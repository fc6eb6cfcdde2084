//! cuDNN, loaded at run time, and its descriptors, each destroyed with its owner.

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::path::Path;
use std::ptr::null_mut;
use std::sync::OnceLock;

use libloading::os::unix::{Library as Object, RTLD_GLOBAL, RTLD_LOCAL, RTLD_NOW};

use super::ids::kind;
use crate::gpu::plans::Refusal;

/// An object of cuDNN's.
pub(super) type Raw = *mut c_void;

/// Statuses are numbers here: a newer library may return one that no list of today has.
type Status = u32;

/// The first version without the wrong attention of 9.10.0 and 9.10.1.
const LEAST: usize = 91_002;

/// Switches cuDNN off, or names the file to load.
const VARIABLE: &str = "RIVERRUN_CUDNN";

macro_rules! functions {
    ($($name:ident = $symbol:literal: fn($($argument:ty),*) -> $result:ty;)*) => {
        struct Functions {
            $($name: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl Functions {
            fn find(object: &Object) -> Result<Self, String> {
                Ok(Self {
                    $($name: {
                        // SAFETY: the type is that of the function in cuDNN's header.
                        let found = unsafe {
                            object.get::<unsafe extern "C" fn($($argument),*) -> $result>($symbol)
                        };
                        *found.map_err(|error| format!("cuDNN has no {}: {error}", $symbol))?
                    },)*
                })
            }
        }
    };
}

functions! {
    version = "cudnnGetVersion": fn() -> usize;
    error_string = "cudnnGetErrorString": fn(Status) -> *const c_char;
    last_error = "cudnnGetLastErrorString": fn(*mut c_char, usize) -> ();
    version_check = "cudnnGraphVersionCheck": fn() -> Status;
    create = "cudnnCreate": fn(*mut Raw) -> Status;
    set_stream = "cudnnSetStream": fn(Raw, Raw) -> Status;
    create_descriptor = "cudnnBackendCreateDescriptor": fn(u32, *mut Raw) -> Status;
    destroy_descriptor = "cudnnBackendDestroyDescriptor": fn(Raw) -> Status;
    set_attribute = "cudnnBackendSetAttribute": fn(Raw, u32, u32, i64, *const c_void) -> Status;
    get_attribute = "cudnnBackendGetAttribute": fn(Raw, u32, u32, i64, *mut i64, *mut c_void) -> Status;
    finalize = "cudnnBackendFinalize": fn(Raw) -> Status;
    execute = "cudnnBackendExecute": fn(Raw, Raw, Raw) -> Status;
}

/// The library, loaded once and never unloaded.
pub(super) struct Library {
    functions: Functions,
    version: usize,
    _objects: Vec<Object>,
}

impl Library {
    /// The library of this process, loaded at the first call.
    ///
    /// # Errors
    /// The reason why there is none.
    pub fn get() -> Result<&'static Self, String> {
        static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
        let found = LIBRARY.get_or_init(|| Self::named(std::env::var(VARIABLE).ok().as_deref()));
        found.as_ref().map_err(Clone::clone)
    }

    /// The library that the variable names.
    fn named(variable: Option<&str>) -> Result<Self, String> {
        match variable {
            Some("off" | "0") => Err(format!("{VARIABLE} switches cuDNN off")),
            Some(file) if !file.is_empty() => Self::load(file),
            _ => Self::load("libcudnn.so.9"),
        }
    }

    fn load(file: &str) -> Result<Self, String> {
        let object = open(file, RTLD_LOCAL)
            .map_err(|error| format!("no cuDNN: {file} cannot be loaded ({error})"))?;
        // cuDNN opens both by name when it needs them, and ends the process where cuBLASLt is missing.
        let mut objects = companion("nvrtc", file)?;
        objects.extend(companion("cublasLt", file)?);
        let functions = Functions::find(&object)?;
        objects.push(object);
        // SAFETY: takes and touches nothing.
        let version = unsafe { (functions.version)() };
        let this = Self {
            functions,
            version,
            _objects: objects,
        };
        if version < LEAST {
            return Err(format!(
                "cuDNN {} is older than 9.10.2",
                this.version_name()
            ));
        }
        // SAFETY: compares the versions of the library's parts.
        this.check(
            unsafe { (this.functions.version_check)() },
            "parts of one version",
        )?;
        Ok(this)
    }

    /// As 10000 major + 100 minor + patch.
    pub fn version(&self) -> usize {
        self.version
    }

    /// As major.minor.patch.
    pub fn version_name(&self) -> String {
        let version = self.version;
        format!(
            "{}.{}.{}",
            version / 10_000,
            version / 100 % 100,
            version % 100
        )
    }

    /// A handle on the device whose context is current. It lives as long as the process.
    pub fn handle(&self) -> Result<Raw, Refusal> {
        let mut handle = null_mut();
        // SAFETY: writes the handle.
        self.check(
            unsafe { (self.functions.create)(&raw mut handle) },
            "a handle",
        )?;
        Ok(handle)
    }

    /// Makes `handle` put its work on a stream.
    ///
    /// # Safety
    /// Both are alive, and no other thread uses the handle.
    pub unsafe fn set_stream(&self, handle: Raw, stream: Raw) -> Result<(), Refusal> {
        // SAFETY: the caller's promise.
        let status = unsafe { (self.functions.set_stream)(handle, stream) };
        self.check(status, "a stream")
    }

    /// Runs a plan with the buffers of a pack on the handle's stream.
    ///
    /// # Safety
    /// No other thread uses the handle; the pack's addresses are those of buffers as the plan describes them, alive until the
    /// stream has run the work.
    pub unsafe fn execute(
        &self,
        handle: Raw,
        plan: &Descriptor,
        pack: &Descriptor,
    ) -> Result<(), Refusal> {
        // SAFETY: the caller's promise.
        let status = unsafe { (self.functions.execute)(handle, plan.raw, pack.raw) };
        self.check(status, "running a plan")
    }

    fn check(&self, status: Status, what: &str) -> Result<(), Refusal> {
        if status == 0 {
            return Ok(());
        }
        let mut text = [0u8; 1024];
        // SAFETY: writes text that ends with 0 into the buffer, no more than fits.
        unsafe { (self.functions.last_error)(text.as_mut_ptr().cast(), text.len()) };
        let last = CStr::from_bytes_until_nul(&text).unwrap_or_default();
        // SAFETY: returns a text that lives as long as the library, or null.
        let name = unsafe {
            let name = (self.functions.error_string)(status);
            if name.is_null() {
                c""
            } else {
                CStr::from_ptr(name)
            }
        };
        let (name, last) = (name.to_string_lossy(), last.to_string_lossy());
        let last: Vec<&str> = last.split_whitespace().collect();
        let reason = format!("cuDNN: {what}: {name} ({status}) {}", last.join(" "));
        Err(Refusal::of_status(reason, is_lasting(status)))
    }
}

/// Whether a status says that the library does not have what was asked for: bad parameters and what is not supported, but no
/// errors of initialisation, memory or compilation.
fn is_lasting(status: Status) -> bool {
    (2000..4000).contains(&status)
}

fn open(file: impl AsRef<OsStr>, scope: c_int) -> Result<Object, String> {
    // SAFETY: loading NVIDIA's libraries runs their initialisers, and nothing else of them.
    let object = unsafe { Object::open(Some(file.as_ref()), RTLD_NOW | scope) };
    object.map_err(|error| error.to_string())
}

/// Opens a library that cuDNN opens by name later, of a CUDA version that this cuDNN may be made for: where the loader looks,
/// else where Python's packages put it beside this `cudnn`. What is open is found by name.
fn companion(name: &str, cudnn: &str) -> Result<Vec<Object>, String> {
    let packages = Path::new(cudnn).parent().map(|folder| folder.join("../.."));
    for major in [13, 12] {
        let file = format!("lib{name}.so.{major}");
        if let Ok(object) = open(&file, RTLD_GLOBAL) {
            return Ok(vec![object]);
        }
        let Some(packages) = &packages else { continue };
        for package in ["cu13", "cuda_nvrtc", "cublas"] {
            let folder = packages.join(package).join("lib");
            if !folder.join(&file).exists() {
                continue;
            }
            // The compiler opens its table of built-in functions by name, too.
            let parts = std::fs::read_dir(&folder).into_iter().flatten().flatten();
            let tables = parts.filter(|part| {
                let part = part.file_name();
                part.to_string_lossy().starts_with("libnvrtc-builtins.so")
            });
            let mut objects: Vec<Object> = tables
                .filter_map(|part| open(part.path(), RTLD_GLOBAL).ok())
                .collect();
            if let Ok(object) = open(folder.join(&file), RTLD_GLOBAL) {
                objects.push(object);
                return Ok(objects);
            }
        }
    }
    Err(format!(
        "cuDNN needs lib{name}, which is not installed where the loader looks"
    ))
}

/// A descriptor of cuDNN's.
pub(super) struct Descriptor {
    raw: Raw,
    library: &'static Library,
    what: &'static str,
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed once.
        let _ = unsafe { (self.library.functions.destroy_descriptor)(self.raw) };
    }
}

impl Descriptor {
    /// A descriptor of a type; `what` names it in errors.
    pub fn new(library: &'static Library, of: u32, what: &'static str) -> Result<Self, Refusal> {
        let mut raw = null_mut();
        // SAFETY: writes the descriptor.
        let status = unsafe { (library.functions.create_descriptor)(of, &raw mut raw) };
        library.check(status, what)?;
        Ok(Self { raw, library, what })
    }

    /// The object, which lives as long as this.
    pub fn raw(&self) -> Raw {
        self.raw
    }

    /// Sets an attribute to values of a kind, whose C type is `T`.
    pub fn set<T: Copy>(&self, attribute: u32, kind: u32, values: &[T]) -> Result<&Self, Refusal> {
        let count = values.len() as i64;
        // SAFETY: the library reads `count` values of the kind.
        let status = unsafe {
            (self.library.functions.set_attribute)(
                self.raw,
                attribute,
                kind,
                count,
                values.as_ptr().cast(),
            )
        };
        let what = self.what;
        let named = || format!("attribute {attribute} of {what}");
        if status != 0 {
            self.library.check(status, &named())?;
        }
        Ok(self)
    }

    /// Sets an attribute to another descriptor, which must outlive this one's use.
    pub fn link(&self, attribute: u32, other: &Descriptor) -> Result<&Self, Refusal> {
        self.set(attribute, kind::BACKEND_DESCRIPTOR, &[other.raw])
    }

    /// Checks the attributes; from now on they cannot be set.
    pub fn finalized(self) -> Result<Self, Refusal> {
        // SAFETY: the descriptor is alive, and so are those that it is linked to.
        let status = unsafe { (self.library.functions.finalize)(self.raw) };
        self.library.check(status, self.what)?;
        Ok(self)
    }

    /// Reads values of an attribute, no more than there is room for, and says how many there are.
    pub fn get<T>(&self, attribute: u32, kind: u32, into: &mut [T]) -> Result<usize, Refusal> {
        let mut count = 0i64;
        let at = match into.is_empty() {
            true => null_mut(),
            false => into.as_mut_ptr().cast(),
        };
        let room = into.len() as i64;
        // SAFETY: the library writes at most `room` values of the kind, whose C type is `T`.
        let status = unsafe {
            (self.library.functions.get_attribute)(
                self.raw,
                attribute,
                kind,
                room,
                &raw mut count,
                at,
            )
        };
        self.library.check(status, self.what)?;
        Ok(count.max(0) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_supported_stays_so() {
        let [initialised, parameter, supported, memory] = [1001, 2000, 3003, 4004].map(is_lasting);
        assert!(parameter && supported);
        assert!(!initialised && !memory);
    }

    #[test]
    fn a_library_that_is_switched_off_missing_or_another_one_is_a_reason() {
        let reason = |variable| Library::named(Some(variable)).map(|_| ()).unwrap_err();
        assert!(reason("off").contains(VARIABLE));
        assert!(reason("/nowhere/libcudnn.so.9").contains("no cuDNN"));
        // The C library is one without cuDNN's functions, and without NVRTC beside it.
        assert!(!reason("libc.so.6").is_empty());
    }
}
