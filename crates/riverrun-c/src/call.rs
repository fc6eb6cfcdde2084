//! What all functions share: element types, status and errors.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The type of elements. Arithmetic and states are `float`, for `F64` `double`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dtype {
    /// `float`.
    F32 = 0,
    /// `double`.
    F64 = 1,
    /// IEEE half precision.
    F16 = 2,
    /// bfloat16.
    Bf16 = 3,
}

impl Dtype {
    /// The type of a number that C passes.
    ///
    /// # Errors
    /// Another number than those of the types.
    pub fn of(number: u32) -> Result<Self, String> {
        [Self::F32, Self::F64, Self::F16, Self::Bf16]
            .into_iter()
            .find(|&dtype| dtype as u32 == number)
            .ok_or_else(|| format!("dtype: expected 0 to 3, found {number}"))
    }
}

/// What became of a call.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// It is done.
    Ok = 0,
    /// An argument does not fit; nothing has been written.
    Invalid = 1,
    /// A fault of riverrun; results may be written in part.
    Fault = 2,
    /// A GPU, its driver or its compiler has failed; results may be written in part.
    Device = 3,
}

/// Why a call did not return `Ok`.
pub struct Failure(pub Status, pub String);

impl From<String> for Failure {
    fn from(reason: String) -> Self {
        Self(Status::Invalid, reason)
    }
}

thread_local! {
    static ERROR: RefCell<CString> = RefCell::default();
}

/// What was wrong with the calling thread's last call that did not return `Ok`, in one line; empty before there was one. It
/// lives until the thread's next such call.
#[unsafe(no_mangle)]
pub extern "C" fn riverrun_error() -> *const c_char {
    ERROR.with_borrow(|error| error.as_ptr())
}

/// The version, such as `0.1.0`.
#[unsafe(no_mangle)]
pub extern "C" fn riverrun_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// Runs a call, and keeps what was wrong.
pub fn call<E: Into<Failure>>(run: impl FnOnce() -> Result<(), E>) -> Status {
    // What a panicking kernel leaves behind is the caller's memory.
    let Failure(status, reason) = match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(())) => return Status::Ok,
        Ok(Err(failure)) => failure.into(),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            Failure(Status::Fault, text.unwrap_or("a panic").to_string())
        }
    };
    let line = reason.replace(['\n', '\0'], " ");
    ERROR.with_borrow_mut(|error| *error = CString::new(line).unwrap_or_default());
    status
}

/// A name.
///
/// # Safety
/// A pointer that is not null is to a string.
///
/// # Errors
/// A null pointer; bytes that are not UTF-8.
pub unsafe fn name<'a>(what: &str, text: *const c_char) -> Result<&'a str, String> {
    if text.is_null() {
        return Err(format!("{what}: expected a name, found NULL"));
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|error| format!("{what}: {error}"))
}

/// A structure.
///
/// # Safety
/// A pointer that is not null is to a `T`.
///
/// # Errors
/// A null pointer.
pub unsafe fn given<'a, T>(what: &str, pointer: *const T) -> Result<&'a T, String> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_ref() }.ok_or_else(|| format!("{what}: expected a pointer, found NULL"))
}

/// Calls `$body` with `$E` as the element type.
macro_rules! with_type {
    ($dtype:expr, $E:ident => $body:expr) => {
        match $dtype {
            $crate::Dtype::F32 => {
                type $E = f32;
                $body
            }
            $crate::Dtype::F64 => {
                type $E = f64;
                $body
            }
            $crate::Dtype::F16 => {
                type $E = half::f16;
                $body
            }
            $crate::Dtype::Bf16 => {
                type $E = half::bf16;
                $body
            }
        }
    };
}
pub(crate) use with_type;
