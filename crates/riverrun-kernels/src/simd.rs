//! Running one body of plain loops under the widest vector instructions of the machine.
//!
//! Kernels are written as ordinary loops over arrays. [`Level::run`] compiles such a loop once per level, inside
//! a function that has that level's instructions switched on, and picks the level at run time. So that the body
//! is compiled there and not before, everything from [`Task::run`] down must be `#[inline(always)]`.

/// What arithmetic may assume about the instructions that it is compiled for.
pub trait Isa: 'static {
    /// A fused multiply-add is one instruction. Without it `f32::mul_add` is a slow library call.
    const FMA: bool;
}

/// The target's own instructions: SSE2 on x86-64, NEON on AArch64, SIMD128 in the browser if enabled.
pub struct Baseline;
/// AVX2 with FMA.
pub struct Avx2;
/// AVX-512 F, BW, CD, DQ and VL.
pub struct Avx512;

impl Isa for Baseline {
    const FMA: bool = cfg!(any(target_feature = "fma", target_arch = "aarch64"));
}
impl Isa for Avx2 {
    const FMA: bool = true;
}
impl Isa for Avx512 {
    const FMA: bool = true;
}

/// A piece of work compiled once per level.
pub trait Task {
    /// Does the work. Must be `#[inline(always)]`, with all that it calls in its loops.
    fn run<I: Isa>(self);
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
                let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
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
            Kind::Baseline => task.run::<Baseline>(),
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
#[target_feature(enable = "avx2,fma")]
fn run_avx2(task: impl Task) {
    task.run::<Avx2>();
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
fn run_avx512(task: impl Task) {
    task.run::<Avx512>();
}
