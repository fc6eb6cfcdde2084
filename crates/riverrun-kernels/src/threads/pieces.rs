//! Slices in pieces that the threads of the pool take by their index: rayon's parallel iterators over slices, with the loop
//! compiled once instead of once for every kernel (see [`parallel_for`](super::parallel_for)).

use super::{Shared, each_index, parallel_map};

/// Items with indices, each of which one thread takes once.
pub trait Pieces: Sized + Sync {
    /// What a thread takes.
    type Item;

    /// How many there are.
    fn count(&self) -> usize;

    /// The item of an index.
    ///
    /// # Safety
    /// The index is below the count, and nobody takes it again.
    unsafe fn take(&self, index: usize) -> Self::Item;

    /// Pairs of items; the longer side is cut.
    fn zip<O: Pieces>(self, other: O) -> Zip<Self, O> {
        Zip(self, other)
    }

    /// Items with their indices.
    fn enumerate(self) -> Enumerate<Self> {
        Enumerate(self)
    }

    /// Calls `run` with each item, on free threads of the pool.
    fn for_each(self, run: impl Fn(Self::Item) + Sync) {
        // SAFETY: every index once.
        each_index(self.count(), &|index| run(unsafe { self.take(index) }));
    }

    /// The results of `run` for each item, in order, from free threads of the pool.
    fn map<T: Send + Sync>(self, run: impl Fn(Self::Item) -> T + Sync) -> Vec<T> {
        // SAFETY: every index once.
        parallel_map(self.count(), |index| run(unsafe { self.take(index) }))
    }
}

/// A slice that is taken in pieces of some elements; the last may be shorter.
pub trait InPieces<T> {
    /// Pieces of `len` elements, to read.
    fn par_chunks(&self, len: usize) -> Chunks<'_, T>;
    /// Pieces of `len` elements, to write.
    fn par_chunks_mut(&mut self, len: usize) -> ChunksMut<'_, T>;
}

impl<T> InPieces<T> for [T] {
    fn par_chunks(&self, len: usize) -> Chunks<'_, T> {
        assert!(len > 0, "pieces have elements");
        Chunks { slice: self, len }
    }

    fn par_chunks_mut(&mut self, len: usize) -> ChunksMut<'_, T> {
        assert!(len > 0, "pieces have elements");
        let all = self.len();
        let slice = Shared::new(self);
        ChunksMut { slice, all, len }
    }
}

/// Pieces of a slice, to read.
pub struct Chunks<'a, T> {
    slice: &'a [T],
    len: usize,
}

impl<'a, T: Sync> Pieces for Chunks<'a, T> {
    type Item = &'a [T];

    fn count(&self) -> usize {
        self.slice.len().div_ceil(self.len)
    }

    unsafe fn take(&self, index: usize) -> &'a [T] {
        let rest = &self.slice[index * self.len..];
        &rest[..self.len.min(rest.len())]
    }
}

/// Pieces of a slice, to write.
pub struct ChunksMut<'a, T> {
    slice: Shared<'a, T>,
    all: usize,
    len: usize,
}

impl<'a, T: Send + Sync> Pieces for ChunksMut<'a, T> {
    type Item = &'a mut [T];

    fn count(&self) -> usize {
        self.all.div_ceil(self.len)
    }

    unsafe fn take(&self, index: usize) -> &'a mut [T] {
        let first = index * self.len;
        // SAFETY: pieces of different indices are disjoint, and an index is taken once.
        unsafe { self.slice.slice_mut(first, self.len.min(self.all - first)) }
    }
}

/// An item for every index, `None` without the pieces.
impl<P: Pieces> Pieces for Option<P> {
    type Item = Option<P::Item>;

    fn count(&self) -> usize {
        self.as_ref().map_or(usize::MAX, P::count)
    }

    unsafe fn take(&self, index: usize) -> Option<P::Item> {
        // SAFETY: the caller's promise.
        self.as_ref().map(|pieces| unsafe { pieces.take(index) })
    }
}

/// See [`Pieces::zip`].
pub struct Zip<A, B>(A, B);

impl<A: Pieces, B: Pieces> Pieces for Zip<A, B> {
    type Item = (A::Item, B::Item);

    fn count(&self) -> usize {
        self.0.count().min(self.1.count())
    }

    unsafe fn take(&self, index: usize) -> (A::Item, B::Item) {
        // SAFETY: the caller's promise.
        unsafe { (self.0.take(index), self.1.take(index)) }
    }
}

/// See [`Pieces::enumerate`].
pub struct Enumerate<P>(P);

impl<P: Pieces> Pieces for Enumerate<P> {
    type Item = (usize, P::Item);

    fn count(&self) -> usize {
        self.0.count()
    }

    unsafe fn take(&self, index: usize) -> (usize, P::Item) {
        // SAFETY: the caller's promise.
        (index, unsafe { self.0.take(index) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_is_taken_once() {
        for (len, piece) in [(0, 3), (1, 3), (7, 3), (1000, 7), (1000, 1)] {
            let from: Vec<usize> = (0..len).collect();
            let mut to = vec![0; len];
            let pieces = to.par_chunks_mut(piece).zip(from.par_chunks(piece));
            pieces.enumerate().for_each(|(index, (to, from))| {
                assert_eq!(from[0], index * piece);
                to.iter_mut().zip(from).for_each(|(to, x)| *to += 2 * x);
            });
            assert!(to.iter().enumerate().all(|(i, &x)| x == 2 * i));
            let sums = from.par_chunks(piece).map(|x| x.iter().sum::<usize>());
            assert_eq!(sums.len(), len.div_ceil(piece));
            let all: usize = from.iter().sum();
            assert_eq!(sums.iter().sum::<usize>(), all);
        }
    }

    #[test]
    fn absent_pieces_are_none() {
        let mut here = [1; 5];
        let absent = None::<Chunks<'_, u8>>;
        let pieces = here.par_chunks_mut(2).zip(absent);
        let lengths = pieces.map(|(here, absent)| absent.map_or(here.len(), <[u8]>::len));
        assert_eq!(lengths, [2, 2, 1]);
    }
}
