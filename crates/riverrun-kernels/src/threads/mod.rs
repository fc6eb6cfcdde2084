//! Threads of the rayon pool, and slices of which each thread writes its own elements.

pub mod pieces;

use std::marker::PhantomData;
use std::ops::Range;

use bytemuck::Pod;
use rayon::iter::{IndexedParallelIterator, IntoParallelIterator, ParallelIterator};

use pieces::{InPieces, Pieces};

/// Part `index` of `0..total` divided into `parts` ranges at multiples of `grain`, as equal as possible.
pub fn chunk(total: usize, parts: usize, grain: usize, index: usize) -> Range<usize> {
    let grains = total.div_ceil(grain);
    let at = |index: usize| (grains * index / parts * grain).min(total);
    at(index)..at(index + 1)
}

/// Calls `run` with each index below `parts`, on free threads of the pool.
pub fn parallel_for(parts: usize, run: impl Fn(usize) + Sync) {
    each_index(parts, &run);
}

/// Calls `run` with each state, on free threads of the pool.
pub fn parallel_for_each<S: Send + Sync>(states: &mut [S], run: impl Fn(&mut S) + Sync) {
    states
        .par_chunks_mut(1)
        .for_each(|state| run(&mut state[0]));
}

/// The results of `run` for each index below `parts`, in order, from free threads of the pool.
pub fn parallel_map<T: Send + Sync>(parts: usize, run: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let mut results: Vec<Option<T>> = (0..parts).map(|_| None).collect();
    let slots = results.par_chunks_mut(1).enumerate();
    slots.for_each(|(index, slot)| slot[0] = Some(run(index)));
    results.into_iter().flatten().collect()
}

/// The one loop of all kernels. It takes a function pointer: rayon's joins and jobs would otherwise be compiled again for every
/// kernel, storage type and instruction set, a third of this crate.
fn each_index(count: usize, run: &(dyn Fn(usize) + Sync)) {
    /// Indices a thread up to which each is a job of its own; rayon groups more than that.
    const FEW: usize = 8;

    match count {
        0 => {}
        1 => run(0),
        _ => {
            let few = count <= FEW * rayon::current_num_threads();
            let most = if few { 1 } else { count };
            let indices = (0..count).into_par_iter();
            indices.with_max_len(most).for_each(run);
        }
    }
}

/// `len` zeros, written by the threads of the pool where there are many.
pub fn zeros<T: Pod + Send>(len: usize) -> Vec<T> {
    /// Zeros that a thread writes at once.
    const PIECE: usize = 1 << 12;
    /// Bytes that are worth waking threads for.
    const MANY: usize = 1 << 20;

    if len.saturating_mul(size_of::<T>()) < MANY {
        return bytemuck::zeroed_vec(len);
    }
    let pieces = (0..len.div_ceil(PIECE)).into_par_iter();
    let pieces: Vec<[T; PIECE]> = pieces.map(|_| [T::zeroed(); PIECE]).collect();
    let mut zeros = pieces.into_flattened();
    zeros.truncate(len);
    zeros
}

/// A slice that several threads write, each its own elements.
///
/// Ranges are checked; the callers guarantee that those of different threads are disjoint.
pub struct Shared<'a, T> {
    at: *mut T,
    len: usize,
    of: PhantomData<&'a mut [T]>,
}

// SAFETY: a slice that is handed out in disjoint pieces, as `split_at_mut` does; the methods require that guarantee.
unsafe impl<T: Send> Send for Shared<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Shared<'_, T> {}

impl<T> Clone for Shared<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    pub fn new(slice: &'a mut [T]) -> Self {
        Self {
            at: slice.as_mut_ptr(),
            len: slice.len(),
            of: PhantomData,
        }
    }

    /// The `len` elements from `first` on, to read.
    ///
    /// # Safety
    /// Nothing writes them, on any thread, while the slice is used.
    ///
    /// # Panics
    /// If the range is not inside the slice.
    #[inline(always)]
    pub unsafe fn slice(self, first: usize, len: usize) -> &'a [T] {
        assert!(first <= self.len && len <= self.len - first);
        // SAFETY: inside the slice that `self` borrows; the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts(self.at.add(first), len) }
    }

    /// The `len` elements from `first` on, to write.
    ///
    /// # Safety
    /// Nothing else reads or writes them, on any thread, while the slice is used.
    ///
    /// # Panics
    /// If the range is not inside the slice.
    #[inline(always)]
    pub unsafe fn slice_mut(self, first: usize, len: usize) -> &'a mut [T] {
        assert!(first <= self.len && len <= self.len - first);
        // SAFETY: inside the slice that `self` borrows; the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.at.add(first), len) }
    }
}
