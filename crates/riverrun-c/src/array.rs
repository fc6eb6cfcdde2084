//! Arrays of the caller as slices.

/// The elements of a product of sizes, of `size` bytes each.
///
/// # Errors
/// A product beyond memory; a null pointer to any elements.
pub fn elements<T>(
    what: &str,
    pointer: *const T,
    sizes: &[usize],
    size: usize,
) -> Result<usize, String> {
    let product = sizes
        .iter()
        .try_fold(1usize, |all, &size| all.checked_mul(size));
    let fits = |elements: &usize| {
        let bytes = elements.checked_mul(size);
        bytes.is_some_and(|bytes| bytes <= isize::MAX as usize)
    };
    let elements = product
        .filter(fits)
        .ok_or_else(|| format!("{what}: {sizes:?} is more than memory holds"))?;
    if elements > 0 && pointer.is_null() {
        return Err(format!("{what}: expected {elements} elements, found NULL"));
    }
    Ok(elements)
}

fn check<T>(what: &str, pointer: *const T, sizes: &[usize]) -> Result<usize, String> {
    let elements = elements(what, pointer, sizes, size_of::<T>())?;
    if !pointer.is_aligned() {
        return Err(format!(
            "{what}: a pointer that is not aligned to its elements"
        ));
    }
    Ok(elements)
}

/// An array to read.
///
/// # Safety
/// A pointer that is not null is to as many elements, which nothing writes during `'a`.
///
/// # Errors
/// NULL for an array with elements, a pointer that is not aligned, sizes beyond memory.
pub unsafe fn read<'a, T>(
    what: &str,
    pointer: *const T,
    sizes: &[usize],
) -> Result<&'a [T], String> {
    let elements = check(what, pointer, sizes)?;
    if elements == 0 {
        return Ok(&[]);
    }
    // SAFETY: neither null nor unaligned; the rest is the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(pointer, elements) })
}

/// An array to write.
///
/// # Safety
/// As for [`read`], and nothing else reads it during `'a`.
///
/// # Errors
/// As for [`read`].
pub unsafe fn write<'a, T>(
    what: &str,
    pointer: *mut T,
    sizes: &[usize],
) -> Result<&'a mut [T], String> {
    let elements = check(what, pointer, sizes)?;
    if elements == 0 {
        return Ok(&mut []);
    }
    // SAFETY: as above.
    Ok(unsafe { std::slice::from_raw_parts_mut(pointer, elements) })
}

/// An array to read, absent where the pointer is null.
///
/// # Safety
/// As for [`read`].
///
/// # Errors
/// As for [`read`].
pub unsafe fn maybe<'a, T>(
    what: &str,
    pointer: *const T,
    sizes: &[usize],
) -> Result<Option<&'a [T]>, String> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    unsafe { read(what, pointer, sizes) }.map(Some)
}

/// An array to write, absent where the pointer is null.
///
/// # Safety
/// As for [`write`].
///
/// # Errors
/// As for [`read`].
pub unsafe fn maybe_mut<'a, T>(
    what: &str,
    pointer: *mut T,
    sizes: &[usize],
) -> Result<Option<&'a mut [T]>, String> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    unsafe { write(what, pointer, sizes) }.map(Some)
}

/// Marks, a byte each, absent where the pointer is null.
///
/// # Safety
/// As for [`read`].
///
/// # Errors
/// As for [`read`]; a byte other than 0 and 1.
pub unsafe fn marks<'a>(
    what: &str,
    pointer: *const u8,
    sizes: &[usize],
) -> Result<Option<&'a [bool]>, String> {
    // SAFETY: the caller's promise.
    let Some(bytes) = (unsafe { maybe(what, pointer, sizes) })? else {
        return Ok(None);
    };
    if let Some(byte) = bytes.iter().find(|&&byte| byte > 1) {
        return Err(format!("{what}: expected bytes of 0 and 1, found {byte}"));
    }
    // SAFETY: the same bytes, each of which is a `bool`.
    Ok(Some(unsafe {
        std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len())
    }))
}
