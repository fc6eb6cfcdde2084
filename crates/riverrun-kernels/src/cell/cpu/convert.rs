//! Between storage types and the arithmetic type.
//!
//! The loops are written for `f32` and `f64`. Slices of those pass through as they are, others are converted whole.

use std::any::TypeId;
use std::borrow::Cow;

use rayon::prelude::*;

use super::lanes::Number;
use crate::Element;

/// Elements that one thread converts at a time.
const CHUNK: usize = 1 << 14;

fn same<A: 'static, B: 'static>() -> bool {
    TypeId::of::<A>() == TypeId::of::<B>()
}

/// The same slice under the other name of its type.
pub(super) fn rename<A: 'static, B: 'static>(slice: &[A]) -> &[B] {
    assert!(same::<A, B>());
    // SAFETY: the types are one.
    unsafe { std::slice::from_raw_parts(slice.as_ptr().cast(), slice.len()) }
}

/// The same slice under the other name of its type.
pub(super) fn rename_mut<A: 'static, B: 'static>(slice: &mut [A]) -> &mut [B] {
    assert!(same::<A, B>());
    // SAFETY: the types are one, and the borrow is passed on.
    unsafe { std::slice::from_raw_parts_mut(slice.as_mut_ptr().cast(), slice.len()) }
}

/// `slice` in the arithmetic type `R` of `E`.
pub(super) fn widen<E: Element, R: Number>(slice: &[E]) -> Cow<'_, [R]> {
    if same::<E, R>() {
        return Cow::Borrowed(rename(slice));
    }
    let mut wide = vec![R::default(); slice.len()];
    rename_mut::<R, E::Acc>(&mut wide)
        .par_chunks_mut(CHUNK)
        .zip(slice.par_chunks(CHUNK))
        .for_each(|(to, from)| {
            for (to, from) in to.iter_mut().zip(from) {
                *to = from.widen();
            }
        });
    Cow::Owned(wide)
}

/// A slice to be written in the arithmetic type `R` of `E`.
pub(super) enum Target<'a, E, R> {
    Direct(&'a mut [R]),
    Converted { wide: Vec<R>, narrow: &'a mut [E] },
}

impl<'a, E: Element, R: Number> Target<'a, E, R> {
    pub(super) fn new(slice: &'a mut [E]) -> Self {
        if same::<E, R>() {
            Self::Direct(rename_mut(slice))
        } else {
            Self::Converted {
                wide: vec![R::default(); slice.len()],
                narrow: slice,
            }
        }
    }

    pub(super) fn as_mut(&mut self) -> &mut [R] {
        match self {
            Self::Direct(slice) => slice,
            Self::Converted { wide, .. } => wide,
        }
    }

    /// Rounds to storage what has been written.
    pub(super) fn finish(self) {
        if let Self::Converted { wide, narrow } = self {
            let wide = rename::<R, E::Acc>(&wide);
            narrow
                .par_chunks_mut(CHUNK)
                .zip(wide.par_chunks(CHUNK))
                .for_each(|(to, from)| {
                    for (to, &from) in to.iter_mut().zip(from) {
                        *to = E::narrow(from);
                    }
                });
        }
    }
}
