//! Hints to the memory system: prefetching, and stores that go past the caches. Where a machine has none, they are
//! nothing and a plain copy.

/// Asks for the cache line of `x`.
#[inline(always)]
pub fn prefetch<T>(x: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: every x86-64 has the instruction, and any address will do.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(x).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = x;
}

/// A permission to store past the caches. Dropping it puts those stores in order before all later ones, as other
/// threads expect of every store.
pub struct Streaming(());

impl Streaming {
    /// The permission.
    #[inline(always)]
    pub fn new() -> Self {
        Self(())
    }

    /// Copies `from` to `to`, past the caches if `to` is aligned to 16 bytes. A plain store first reads the line
    /// that it writes to; where what is written will have left the caches before its next use, that is a waste.
    #[inline(always)]
    pub fn store<T: Copy, const N: usize>(&self, to: &mut [T; N], from: &[T; N]) {
        #[cfg(target_arch = "x86_64")]
        if to.as_ptr().addr().is_multiple_of(16) && size_of::<[T; N]>().is_multiple_of(16) {
            use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
            let (to, from) = (
                to.as_mut_ptr().cast::<__m128i>(),
                from.as_ptr().cast::<__m128i>(),
            );
            for i in 0..size_of::<[T; N]>() / 16 {
                // SAFETY: both arrays have this many pieces of 16 bytes, and `to` is aligned to them. The fence that
                // streaming stores need is in `drop`.
                unsafe { _mm_stream_si128(to.add(i), _mm_loadu_si128(from.add(i))) };
            }
            return;
        }
        *to = *from;
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
        let from: [u16; 16] = std::array::from_fn(|i| i as u16 + 1);
        let mut to = [0_u16; 48];
        for at in 0..32 {
            to.fill(0);
            let streaming = Streaming::new();
            streaming.store((&mut to[at..at + 16]).try_into().unwrap(), &from);
            drop(streaming);
            assert_eq!(to[at..at + 16], from);
            assert_eq!(to.iter().filter(|&&x| x == 0).count(), 32);
        }
    }
}
