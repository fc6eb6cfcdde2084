//! Strided views of `[B, T, D]` tensors whose channels are contiguous.

use std::marker::PhantomData;
use std::ops::Range;

use crate::Error;
use crate::error::expect_length;

/// The sizes `[B, T, D]` of a sequence tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Sequences, `B ≥ 0`.
    pub batch: usize,
    /// Steps of each, `T ≥ 0`.
    pub steps: usize,
    /// Channels of each step, `D ≥ 1`.
    pub dim: usize,
}

impl Shape {
    /// `[batch, steps, dim]`.
    pub fn new(batch: usize, steps: usize, dim: usize) -> Self {
        Self { batch, steps, dim }
    }

    /// Elements of a `[B, T, D]` tensor. Sizes beyond `usize` count as `usize::MAX`, which no buffer has.
    pub fn elements(self) -> usize {
        self.rows().saturating_mul(self.dim)
    }

    /// Rows of a `[B, T, D]` tensor: `B · T`.
    pub fn rows(self) -> usize {
        self.batch.saturating_mul(self.steps)
    }

    /// Elements of a `[B, D]` state.
    pub fn state(self) -> usize {
        self.batch.saturating_mul(self.dim)
    }
}

/// The layout of a `[B, T, D]` view: element `(b, t, d)` is at `b * batch_stride + t * step_stride + d`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Layout {
    shape: Shape,
    batch_stride: usize,
    step_stride: usize,
}

impl Layout {
    fn contiguous(shape: Shape) -> Self {
        Self {
            shape,
            batch_stride: shape.steps * shape.dim,
            step_stride: shape.dim,
        }
    }

    fn packed(shape: Shape, groups: usize) -> Self {
        let step_stride = groups * shape.dim;
        Self {
            shape,
            batch_stride: shape.steps * step_stride,
            step_stride,
        }
    }

    fn time_major(shape: Shape) -> Self {
        Self {
            shape,
            batch_stride: shape.dim,
            step_stride: shape.batch * shape.dim,
        }
    }

    #[inline(always)]
    fn offset(self, b: usize, t: usize) -> usize {
        b * self.batch_stride + t * self.step_stride
    }
}

/// A read-only view of `[B, T, D]` with contiguous channels.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a, E> {
    data: &'a [E],
    layout: Layout,
}

impl<'a, E> Rows<'a, E> {
    /// All of a contiguous `[B, T, D]`.
    ///
    /// # Errors
    /// [`Error::Length`] if `data` does not have `B * T * D` elements.
    pub fn contiguous(data: &'a [E], shape: Shape) -> Result<Self, Error> {
        expect_length("a [B, T, D] tensor", shape.elements(), data.len())?;
        Ok(Self {
            data,
            layout: Layout::contiguous(shape),
        })
    }

    /// The channels `index * D .. (index + 1) * D` of a contiguous `[B, T, groups * D]`, as written by a layer's projection to
    /// all of its gates.
    ///
    /// # Errors
    /// [`Error::Length`] if `data` does not have `B * T * groups * D` elements.
    ///
    /// # Panics
    /// If `index` is not below `groups`.
    pub fn packed(data: &'a [E], shape: Shape, groups: usize, index: usize) -> Result<Self, Error> {
        assert!(
            index < groups,
            "column block {index} of a tensor with {groups}"
        );
        expect_length(
            "a packed [B, T, groups * D] tensor",
            groups.saturating_mul(shape.elements()),
            data.len(),
        )?;
        // A tensor with no elements has no column to start at.
        let start = if data.is_empty() {
            0
        } else {
            index * shape.dim
        };
        Ok(Self {
            data: &data[start..],
            layout: Layout::packed(shape, groups),
        })
    }

    /// All of a contiguous `[T, B, D]`.
    ///
    /// # Errors
    /// [`Error::Length`] if `data` does not have `T * B * D` elements.
    pub fn time_major(data: &'a [E], shape: Shape) -> Result<Self, Error> {
        expect_length("a [T, B, D] tensor", shape.elements(), data.len())?;
        Ok(Self {
            data,
            layout: Layout::time_major(shape),
        })
    }

    /// The view whose element `(b, t, d)` is `data[b * batch_stride + t * step_stride + d]`.
    ///
    /// # Errors
    /// [`Error::Length`] if `data` ends before the last element of the view.
    pub fn strided(
        data: &'a [E],
        shape: Shape,
        batch_stride: usize,
        step_stride: usize,
    ) -> Result<Self, Error> {
        let layout = Layout {
            shape,
            batch_stride,
            step_stride,
        };
        if shape.elements() > 0 {
            let end = layout.offset(shape.batch - 1, shape.steps - 1) + shape.dim;
            if end > data.len() {
                return Err(Error::Length {
                    what: "a strided view",
                    expected: end,
                    found: data.len(),
                });
            }
        }
        Ok(Self { data, layout })
    }

    /// The sizes `[B, T, D]`, in this order whatever the layout.
    pub fn shape(&self) -> Shape {
        self.layout.shape
    }

    /// Whether the steps of a sequence are `width` apart, so that rows of `width` channels have no gaps.
    pub(crate) fn steps_adjoin(&self, width: usize) -> bool {
        self.layout.step_stride == width
    }

    /// The channels of step `t` of sequence `b`.
    ///
    /// # Panics
    /// If there is no such row.
    #[inline(always)]
    pub fn row(&self, b: usize, t: usize) -> &'a [E] {
        let Shape { batch, steps, dim } = self.layout.shape;
        assert!(
            b < batch && t < steps,
            "row ({b}, {t}) of a view with {batch} x {steps} rows"
        );
        let start = self.layout.offset(b, t);
        &self.data[start..start + dim]
    }
}

/// A view of `[B, T, D]` with contiguous channels, to write into.
#[derive(Debug)]
pub struct RowsMut<'a, E> {
    // Several views of one packed tensor hold the same slice, and threads write different rows of one view; a
    // reference could do neither. Rows of one view never overlap, and neither do the views made by `split_packed`.
    data: *mut E,
    layout: Layout,
    borrow: PhantomData<&'a mut [E]>,
}

// SAFETY: a view stands for the `&mut` of its own rows, which no other view has.
unsafe impl<E: Send> Send for RowsMut<'_, E> {}
// SAFETY: a shared view reaches rows only by `row_mut`, whose caller guarantees exclusive access.
unsafe impl<E: Sync> Sync for RowsMut<'_, E> {}

impl<'a, E> RowsMut<'a, E> {
    fn new(data: &'a mut [E], layout: Layout) -> Self {
        Self {
            data: data.as_mut_ptr(),
            layout,
            borrow: PhantomData,
        }
    }

    /// All of a contiguous `[B, T, D]`.
    ///
    /// # Errors
    /// [`Error::Length`] if `data` does not have `B * T * D` elements.
    pub fn contiguous(data: &'a mut [E], shape: Shape) -> Result<Self, Error> {
        expect_length("a [B, T, D] tensor", shape.elements(), data.len())?;
        Ok(Self::new(data, Layout::contiguous(shape)))
    }

    /// All of a contiguous `[T, B, D]`.
    ///
    /// # Errors
    /// [`Error::Length`] if `data` does not have `T * B * D` elements.
    pub fn time_major(data: &'a mut [E], shape: Shape) -> Result<Self, Error> {
        expect_length("a [T, B, D] tensor", shape.elements(), data.len())?;
        Ok(Self::new(data, Layout::time_major(shape)))
    }

    /// The `groups` column blocks `[B, T, D]` of a contiguous `[B, T, groups * D]`, in order.
    ///
    /// # Errors
    /// [`Error::Length`] if `data` does not have `B * T * groups * D` elements.
    pub fn split_packed(
        data: &'a mut [E],
        shape: Shape,
        groups: usize,
    ) -> Result<Vec<Self>, Error> {
        expect_length(
            "a packed [B, T, groups * D] tensor",
            groups.saturating_mul(shape.elements()),
            data.len(),
        )?;
        let layout = Layout::packed(shape, groups);
        let first = data.as_mut_ptr();
        let view = |index: usize| Self {
            // Wrapping: a tensor with no elements has no columns to point into, and none is ever used.
            data: first.wrapping_add(index * shape.dim),
            layout,
            borrow: PhantomData,
        };
        Ok((0..groups).map(view).collect())
    }

    /// The sizes `[B, T, D]`, in this order whatever the layout.
    pub fn shape(&self) -> Shape {
        self.layout.shape
    }

    /// The given channels of step `t` of sequence `b`.
    ///
    /// # Safety
    /// For as long as the result lives, nothing else may hold any of these elements.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "the caller answers for it")]
    pub(crate) unsafe fn row_mut(&self, b: usize, t: usize, channels: Range<usize>) -> &mut [E] {
        let Shape { batch, steps, dim } = self.layout.shape;
        assert!(b < batch && t < steps && channels.start <= channels.end && channels.end <= dim);
        // SAFETY: the layout's rows lie in the slice it was checked against; the caller guarantees that nothing aliases.
        unsafe {
            let row = self.data.add(self.layout.offset(b, t) + channels.start);
            std::slice::from_raw_parts_mut(row, channels.len())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_find_their_elements() {
        let shape = Shape::new(2, 3, 4);
        let data: Vec<usize> = (0..48).collect();
        assert_eq!(
            Rows::contiguous(&data[..24], shape).unwrap().row(1, 2),
            [20, 21, 22, 23]
        );
        assert_eq!(
            Rows::time_major(&data[..24], shape).unwrap().row(1, 2),
            [20, 21, 22, 23]
        );
        assert_eq!(
            Rows::time_major(&data[..24], shape).unwrap().row(0, 1),
            [8, 9, 10, 11]
        );
        assert_eq!(
            Rows::packed(&data, shape, 2, 1).unwrap().row(1, 2),
            [44, 45, 46, 47]
        );
        assert_eq!(
            Rows::packed(&data, shape, 2, 0).unwrap().row(0, 1),
            [8, 9, 10, 11]
        );
    }

    #[test]
    fn column_blocks_cover_the_tensor_once() {
        let shape = Shape::new(2, 3, 2);
        let mut data = vec![0; 36];
        for (index, view) in RowsMut::split_packed(&mut data, shape, 3)
            .unwrap()
            .iter()
            .enumerate()
        {
            for (b, t) in (0..2).flat_map(|b| (0..3).map(move |t| (b, t))) {
                // SAFETY: one row at a time.
                let row = unsafe { view.row_mut(b, t, 0..2) };
                row.iter_mut().for_each(|x| *x += index + 1);
            }
        }
        assert!(data.chunks(6).all(|step| step == [1, 1, 2, 2, 3, 3]));
    }

    #[test]
    fn wrong_lengths_are_refused() {
        let shape = Shape::new(2, 3, 4);
        let mut data = vec![0_f32; 25];
        let error = |what, expected| Error::Length {
            what,
            expected,
            found: 25,
        };
        assert_eq!(
            Rows::contiguous(&data, shape).unwrap_err(),
            error("a [B, T, D] tensor", 24)
        );
        assert_eq!(
            Rows::time_major(&data, shape).unwrap_err(),
            error("a [T, B, D] tensor", 24)
        );
        assert_eq!(
            Rows::packed(&data, shape, 2, 0).unwrap_err(),
            error("a packed [B, T, groups * D] tensor", 48)
        );
        assert!(RowsMut::contiguous(&mut data, shape).is_err());
        assert!(RowsMut::time_major(&mut data, shape).is_err());
        assert!(RowsMut::split_packed(&mut data, shape, 2).is_err());
    }

    #[test]
    fn empty_tensors_have_views() {
        let shape = Shape::new(0, 3, 4);
        assert!(Rows::<f32>::packed(&[], shape, 2, 1).is_ok());
        assert_eq!(
            RowsMut::<f32>::split_packed(&mut [], shape, 2)
                .unwrap()
                .len(),
            2
        );
    }
}
