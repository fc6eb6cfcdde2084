//! Arrays of the caller: addresses that become slices.
//!
//! The Python side keeps every array alive during a call, has allocated those that are written for the call alone, and passes
//! the number of elements that each has. What can be checked here is checked: alignment, sizes against the problem's (by the
//! kernels), and that booleans are 0 or 1.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use riverrun_kernels::Error;
use riverrun_kernels::recurrence::{Rows, Shape};

/// A contiguous array: the address of its first element, and the number of its elements.
#[derive(Debug, Clone, Copy, FromPyObject)]
pub struct Array(pub usize, pub usize);

/// `[B, T, D]` with contiguous channels: the address of its first element, and the elements between sequences and steps.
#[derive(Debug, Clone, Copy, FromPyObject)]
pub struct View(pub usize, pub usize, pub usize);

impl From<Array> for riverrun_guest::call::Array {
    fn from(Array(address, elements): Array) -> Self {
        Self(address, elements)
    }
}

impl From<View> for riverrun_guest::call::View {
    fn from(View(address, batch, step): View) -> Self {
        Self(address, batch, step)
    }
}

/// The error of the Python side.
pub fn refused(error: Error) -> PyErr {
    PyValueError::new_err(error.to_string())
}

fn check<T>(address: usize, elements: usize) -> PyResult<()> {
    let bytes = elements.checked_mul(size_of::<T>());
    if bytes.is_none_or(|bytes| bytes > isize::MAX as usize) {
        let text = format!("an array of {elements} elements is too large");
        return Err(PyValueError::new_err(text));
    }
    if elements > 0 && (address == 0 || !address.is_multiple_of(align_of::<T>())) {
        let text = format!(
            "an array at address {address:#x} is not aligned to its elements of {} bytes",
            align_of::<T>()
        );
        return Err(PyValueError::new_err(text));
    }
    Ok(())
}

/// # Safety
/// As for [`Array::read`].
unsafe fn slice<'a, T>(address: usize, elements: usize) -> PyResult<&'a [T]> {
    check::<T>(address, elements)?;
    if elements == 0 {
        return Ok(&[]);
    }
    // SAFETY: aligned and not null; the rest is the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(address as *const T, elements) })
}

impl Array {
    /// The elements, to read.
    ///
    /// # Safety
    /// There are so many elements of `T` at the address, any bits are a `T`, and nothing writes them during `'a`.
    ///
    /// # Errors
    /// `ValueError` for an address that is not aligned.
    pub unsafe fn read<'a, T>(self) -> PyResult<&'a [T]> {
        // SAFETY: the caller's promise.
        unsafe { slice(self.0, self.1) }
    }

    /// The elements, to write.
    ///
    /// # Safety
    /// As for [`read`](Self::read), and nothing else reads them during `'a`.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    pub unsafe fn write<'a, T>(self) -> PyResult<&'a mut [T]> {
        check::<T>(self.0, self.1)?;
        if self.1 == 0 {
            return Ok(&mut []);
        }
        // SAFETY: aligned and not null; the rest is the caller's promise.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.0 as *mut T, self.1) })
    }

    /// Booleans, to read.
    ///
    /// # Safety
    /// As for [`read`](Self::read) with bytes.
    ///
    /// # Errors
    /// `ValueError` for a byte other than 0 and 1, which a view of other data can have.
    pub unsafe fn flags<'a>(self) -> PyResult<&'a [bool]> {
        // SAFETY: the caller's promise.
        let bytes = unsafe { self.read::<u8>() }?;
        if let Some(byte) = bytes.iter().find(|&&byte| byte > 1) {
            let text = format!("a boolean array holds the byte {byte}, which is neither 0 nor 1");
            return Err(PyValueError::new_err(text));
        }
        // SAFETY: the same bytes, each of which is a `bool`.
        Ok(unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len()) })
    }
}

impl View {
    /// The rows.
    ///
    /// # Safety
    /// As for [`Array::read`], for every element between the first and the last one of the view.
    ///
    /// # Errors
    /// As for [`Array::read`].
    pub unsafe fn rows<'a, T>(self, shape: Shape) -> PyResult<Rows<'a, T>> {
        let Self(address, batch, step) = self;
        let end = || {
            let sequences = batch.checked_mul(shape.batch - 1)?;
            let steps = step.checked_mul(shape.steps - 1)?;
            sequences.checked_add(steps)?.checked_add(shape.dim)
        };
        let elements = match shape.elements() {
            0 => 0,
            _ => end().unwrap_or(usize::MAX),
        };
        // SAFETY: the caller's promise.
        let data = unsafe { slice(address, elements) }?;
        Rows::strided(data, shape, batch, step).map_err(refused)
    }
}

/// Calls `$body` with `$E` as the storage type of that name.
macro_rules! with_type {
    ($name:expr, $E:ident => $body:expr) => {
        match $name {
            "float32" => {
                type $E = f32;
                $body
            }
            "float64" => {
                type $E = f64;
                $body
            }
            "float16" => {
                type $E = half::f16;
                $body
            }
            "bfloat16" => {
                type $E = half::bf16;
                $body
            }
            name => Err(pyo3::exceptions::PyTypeError::new_err(format!(
                "expected elements of float32, float64, float16 or bfloat16, found {name}"
            ))),
        }
    };
}
pub(crate) use with_type;

/// An optional array, to read.
macro_rules! optional {
    ($array:expr, $($method:tt)+) => {
        match $array {
            // SAFETY: the promise of the module `array`.
            #[allow(unused_unsafe)]
            Some(array) => Some(unsafe { array.$($method)+() }?),
            None => None,
        }
    };
}
pub(crate) use optional;
