//! Running one body of plain loops under the widest vector instructions of the machine.
//!
//! Kernels are written as ordinary loops over arrays. [`Level::run`] compiles such a loop once per level, inside
//! a function that has that level's instructions switched on, and picks the level at run time. So that the body
//! is compiled there and not before, everything from [`Task::run`] down must be `#[inline(always)]`.

use half::f16;

use crate::Element;

/// The instructions that a piece of code is compiled for. A value of such a type is the proof that the machine has
/// them: outside this module there is no way to make one.
pub trait Isa: Copy + 'static {
    /// A fused multiply-add is one instruction. Without it `f32::mul_add` is a slow library call.
    const FMA: bool;

    /// Widens, exactly.
    #[inline(always)]
    fn widen_f16(self, x: &[f16; 16]) -> [f32; 16] {
        x.map(Element::widen)
    }

    /// Rounds to nearest even.
    #[inline(always)]
    fn narrow_f16(self, x: &[f32; 16]) -> [f16; 16] {
        x.map(Element::narrow)
    }
}

/// The target's own instructions: SSE2 on x86-64, NEON on AArch64, SIMD128 in the browser if enabled.
#[derive(Debug, Clone, Copy)]
pub struct Baseline(());

impl Isa for Baseline {
    const FMA: bool = cfg!(any(target_feature = "fma", target_arch = "aarch64"));
}

/// AVX2 with FMA and F16C.
#[derive(Debug, Clone, Copy)]
pub struct Avx2(());

impl Isa for Avx2 {
    const FMA: bool = true;

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn widen_f16(self, x: &[f16; 16]) -> [f32; 16] {
        use std::arch::x86_64::{_mm_loadu_si128, _mm256_cvtph_ps, _mm256_storeu_ps};
        let mut wide = [0.0; 16];
        for half in [0, 8] {
            // SAFETY: eight values from `half` on are within both arrays, and `self` proves that F16C is there.
            unsafe {
                let x = _mm_loadu_si128(x.as_ptr().add(half).cast());
                _mm256_storeu_ps(wide.as_mut_ptr().add(half), _mm256_cvtph_ps(x));
            }
        }
        wide
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn narrow_f16(self, x: &[f32; 16]) -> [f16; 16] {
        use std::arch::x86_64::{_MM_FROUND_TO_NEAREST_INT, _mm_storeu_si128};
        use std::arch::x86_64::{_mm256_cvtps_ph, _mm256_loadu_ps};
        let mut narrow = [f16::ZERO; 16];
        for half in [0, 8] {
            // SAFETY: as above.
            unsafe {
                let x = _mm256_loadu_ps(x.as_ptr().add(half));
                let x = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x);
                _mm_storeu_si128(narrow.as_mut_ptr().add(half).cast(), x);
            }
        }
        narrow
    }
}

/// AVX-512 F, BW, CD, DQ and VL.
#[derive(Debug, Clone, Copy)]
pub struct Avx512(());

impl Isa for Avx512 {
    const FMA: bool = true;

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn widen_f16(self, x: &[f16; 16]) -> [f32; 16] {
        use std::arch::x86_64::{_mm256_loadu_si256, _mm512_cvtph_ps, _mm512_storeu_ps};
        let mut wide = [0.0; 16];
        // SAFETY: both arrays have sixteen values, and `self` proves that AVX-512 is there.
        unsafe {
            let x = _mm256_loadu_si256(x.as_ptr().cast());
            _mm512_storeu_ps(wide.as_mut_ptr(), _mm512_cvtph_ps(x));
        }
        wide
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn narrow_f16(self, x: &[f32; 16]) -> [f16; 16] {
        use std::arch::x86_64::{_MM_FROUND_TO_NEAREST_INT, _mm256_storeu_si256};
        use std::arch::x86_64::{_mm512_cvtps_ph, _mm512_loadu_ps};
        let mut narrow = [f16::ZERO; 16];
        // SAFETY: as above.
        unsafe {
            let x = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm512_loadu_ps(x.as_ptr()));
            _mm256_storeu_si256(narrow.as_mut_ptr().cast(), x);
        }
        narrow
    }
}

/// A piece of work compiled once per level.
pub trait Task {
    /// Does the work. Must be `#[inline(always)]`, with all that it calls in its loops.
    fn run<I: Isa>(self, isa: I);
}

/// An instruction level of this machine. Only levels that the machine has are ever made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Level(Kind);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Baseline,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Level {
    /// The widest level of this machine.
    pub fn best() -> Self {
        Self::available()[0]
    }

    /// Every level of this machine, widest first.
    pub fn available() -> &'static [Self] {
        static LEVELS: std::sync::OnceLock<Vec<Level>> = std::sync::OnceLock::new();
        LEVELS.get_or_init(|| {
            let mut levels = Vec::new();
            #[cfg(target_arch = "x86_64")]
            {
                let avx2 = is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c");
                let avx512 = avx2
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512cd")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl");
                if avx512 {
                    levels.push(Level(Kind::Avx512));
                }
                if avx2 {
                    levels.push(Level(Kind::Avx2));
                }
            }
            levels.push(Level(Kind::Baseline));
            levels
        })
    }

    /// Runs the task compiled for this level.
    pub fn run(self, task: impl Task) {
        match self.0 {
            Kind::Baseline => task.run(Baseline(())),
            // SAFETY: a `Level` of this kind is made only where `available` found these instructions.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => unsafe { run_avx2(task) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => unsafe { run_avx512(task) },
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn run_avx2(task: impl Task) {
    task.run(Avx2(()));
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
fn run_avx512(task: impl Task) {
    task.run(Avx512(()));
}
