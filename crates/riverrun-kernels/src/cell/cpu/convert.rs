//! Between storage types and the arithmetic type.
//!
//! The loops are written for `f32` and `f64`. Slices of those pass through as they are, others are converted whole.

use std::any::TypeId;
use std::borrow::Cow;

use bytemuck::{Zeroable, cast_slice, cast_slice_mut};

use crate::Element;
use crate::threads::pieces::{InPieces, Pieces};

/// Elements that one thread converts at a time.
const CHUNK: usize = 1 << 14;

/// Whether `E` is its own arithmetic type.
fn is_wide<E: Element>() -> bool {
    TypeId::of::<E>() == TypeId::of::<E::Acc>()
}

/// `slice` in the arithmetic type.
pub(super) fn widen<E: Element>(slice: &[E]) -> Cow<'_, [E::Acc]> {
    if is_wide::<E>() {
        return Cow::Borrowed(cast_slice(slice));
    }
    let mut wide = vec![E::Acc::zeroed(); slice.len()];
    wide.par_chunks_mut(CHUNK)
        .zip(slice.par_chunks(CHUNK))
        .for_each(|(to, from)| {
            for (to, from) in to.iter_mut().zip(from) {
                *to = from.widen();
            }
        });
    Cow::Owned(wide)
}

/// A slice to be written in the arithmetic type.
pub(super) enum Target<'a, E: Element> {
    Direct(&'a mut [E::Acc]),
    Converted {
        wide: Vec<E::Acc>,
        narrow: &'a mut [E],
    },
}

impl<'a, E: Element> Target<'a, E> {
    pub(super) fn new(slice: &'a mut [E]) -> Self {
        if is_wide::<E>() {
            Self::Direct(cast_slice_mut(slice))
        } else {
            Self::Converted {
                wide: vec![E::Acc::zeroed(); slice.len()],
                narrow: slice,
            }
        }
    }

    pub(super) fn as_mut(&mut self) -> &mut [E::Acc] {
        match self {
            Self::Direct(slice) => slice,
            Self::Converted { wide, .. } => wide,
        }
    }

    /// Rounds to storage what has been written.
    pub(super) fn finish(self) {
        if let Self::Converted { wide, narrow } = self {
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
