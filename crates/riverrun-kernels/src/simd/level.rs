//! The choice of an instruction set, for kernels that let the caller choose and for tests that want each of them.

use pulp::{Scalar128b, WithSimd};

/// Vector instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Level {
    /// AVX-512 (F, BW, CD, DQ, VL) with AVX2 and FMA: x86-64-v4.
    Avx512,
    /// AVX2 with FMA: x86-64-v3.
    Avx2,
    /// ARM's 128 bits.
    Neon,
    /// 128 bits in plain Rust, for every target.
    Portable,
}

impl Level {
    /// The levels of this machine, best first.
    pub fn available() -> &'static [Level] {
        #[cfg(target_arch = "x86_64")]
        {
            if pulp::x86::V4::try_new().is_some() {
                return &[Level::Avx512, Level::Avx2, Level::Portable];
            }
            if pulp::x86::V3::try_new().is_some() {
                return &[Level::Avx2, Level::Portable];
            }
        }
        #[cfg(target_arch = "aarch64")]
        if pulp::aarch64::Neon::try_new().is_some() {
            return &[Level::Neon, Level::Portable];
        }
        &[Level::Portable]
    }

    /// Calls `task` with the token of the level, which proves that the machine has the instructions. The task itself is
    /// compiled without them; it hands its inner loops to [`pulp::Simd::vectorize`].
    ///
    /// # Panics
    /// If the machine does not have the level.
    pub(crate) fn with_token<T: WithSimd>(self, task: T) -> T::Output {
        const ABSENT: &str = "a level of this machine";
        match self {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => task.with_simd(pulp::x86::V4::try_new().expect(ABSENT)),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => task.with_simd(pulp::x86::V3::try_new().expect(ABSENT)),
            #[cfg(target_arch = "aarch64")]
            Level::Neon => task.with_simd(pulp::aarch64::Neon::try_new().expect(ABSENT)),
            Level::Portable => task.with_simd(Scalar128b),
            #[allow(unreachable_patterns)]
            level => panic!("{level:?} is not {ABSENT}"),
        }
    }

    /// Runs `task` compiled for the level.
    ///
    /// # Panics
    /// If the machine does not have the level.
    pub(crate) fn dispatch<T: WithSimd>(self, task: T) -> T::Output {
        struct Vectorized<T>(T);
        impl<T: WithSimd> WithSimd for Vectorized<T> {
            type Output = T::Output;

            fn with_simd<S: pulp::Simd>(self, simd: S) -> T::Output {
                simd.vectorize(self.0)
            }
        }
        self.with_token(Vectorized(task))
    }
}
