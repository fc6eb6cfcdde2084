//! Hints to the memory system: prefetches, and stores that bypass the caches. On machines without them: nothing, and a plain
//! copy.

/// Prefetches the cache line at `at` into the second-level cache. Any address will do.
#[inline(always)]
pub fn prefetch_far<T>(at: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: every x86-64 has the instruction, and it never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = at;
}

/// Prefetches the cache line at `at` into the first-level cache. Any address will do.
#[inline(always)]
pub fn prefetch<T>(at: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: every x86-64 has the instruction, and it never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = at;
}

/// A token for stores past the caches. Dropping it orders those stores before all later ones, as other threads expect.
pub struct Streaming(());

impl Streaming {
    /// A token.
    #[inline(always)]
    pub fn new() -> Self {
        Self(())
    }

    /// Copies `from` to `to`, past the caches if `to` begins and ends at multiples of 16 bytes. A plain store first
    /// reads the line that it writes to: a waste where the data leaves the caches before its next use.
    ///
    /// # Panics
    /// If the lengths differ.
    #[inline(always)]
    pub fn copy<T: Copy>(&self, to: &mut [T], from: &[T]) {
        assert_eq!(to.len(), from.len());
        #[cfg(target_arch = "x86_64")]
        if to.as_ptr().addr().is_multiple_of(16) && size_of_val(to).is_multiple_of(16) {
            use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
            let pieces = size_of_val(to) / 16;
            let (to, from) = (
                to.as_mut_ptr().cast::<__m128i>(),
                from.as_ptr().cast::<__m128i>(),
            );
            for i in 0..pieces {
                // SAFETY: both slices have this many pieces of 16 bytes, and `to` is aligned to them. The fence that
                // streaming stores need is in `drop`.
                unsafe { _mm_stream_si128(to.add(i), _mm_loadu_si128(from.add(i))) };
            }
            return;
        }
        to.copy_from_slice(from);
    }
}

impl Drop for Streaming {
    #[inline(always)]
    fn drop(&mut self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: every x86-64 has the instruction.
        unsafe {
            std::arch::x86_64::_mm_sfence();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streaming_copies_whatever_the_alignment() {
        let from: [u16; 32] = std::array::from_fn(|i| i as u16 + 1);
        let mut to = [0_u16; 64];
        for at in 0..32 {
            for n in [0, 1, 7, 8, 15, 16, 24, 32] {
                to.fill(0);
                let streaming = Streaming::new();
                streaming.copy(&mut to[at..at + n], &from[..n]);
                drop(streaming);
                assert_eq!(to[at..at + n], from[..n]);
                assert_eq!(to.iter().filter(|&&x| x == 0).count(), 64 - n);
            }
        }
    }
}
