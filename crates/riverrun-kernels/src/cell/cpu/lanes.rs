//! Vectors of `f32` and `f64` as wide as the machine has them.
//!
//! The product's tile must stay in registers to the last one, which plain loops do not promise; so it is written on
//! these. [`Lanes::run`] compiles a task inside a function that has the instructions switched on; everything from
//! [`Task::run`] down must be `#[inline(always)]` to be compiled there.

use std::ops::{Add, Mul};

/// Work compiled once per kind of vector.
pub(super) trait Task<L: Lanes> {
    /// Does it. Must be `#[inline(always)]`.
    fn run(self);
}

/// A vector of `WIDTH` numbers. Values of a type are made only on machines that have its instructions.
pub(super) trait Lanes: Copy {
    /// `f32` or `f64`.
    type Real: Number;
    /// Numbers in a vector.
    const WIDTH: usize;
    /// Vectors that the machine holds in registers.
    const REGISTERS: usize;

    /// Runs the task with these instructions switched on.
    ///
    /// # Safety
    /// The machine must have them.
    unsafe fn run(task: impl Task<Self>);
    /// Every lane `x`.
    fn splat(x: Self::Real) -> Self;
    /// # Safety
    /// `WIDTH` readable numbers at `from`.
    unsafe fn load(from: *const Self::Real) -> Self;
    /// # Safety
    /// `WIDTH` writable numbers at `to`.
    unsafe fn store(self, to: *mut Self::Real);
    /// Lane by lane.
    fn add(self, b: Self) -> Self;
    /// Lane by lane.
    fn sub(self, b: Self) -> Self;
    /// Lane by lane.
    fn mul(self, b: Self) -> Self;
    /// `self · b + c`, fused where there is an instruction for it.
    fn mul_add(self, b: Self, c: Self) -> Self;
    /// `1 / (1 + e^-x)` of each. NaN stays.
    fn sigmoid<const N: usize>(x: [Self; N]) -> [Self; N];
    /// The hyperbolic tangent of each. NaN stays.
    fn tanh<const N: usize>(x: [Self; N]) -> [Self; N];
    /// `max(0, self)`. NaN stays.
    fn relu(self) -> Self;
    /// `self` where `gate > 0`, else 0.
    fn where_positive(self, gate: Self) -> Self;

    /// Asks for a line of memory that will be read or written soon. Any address will do.
    #[inline(always)]
    fn prefetch(at: *const Self::Real) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a hint, which never faults.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T1>(at.cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = at;
    }

    /// `1 - self`.
    #[inline(always)]
    fn one_minus(self) -> Self {
        Self::splat(Self::Real::ONE).sub(self)
    }

    /// The first `n ≤ WIDTH` lanes from memory, 0 in the others.
    ///
    /// # Safety
    /// `n` readable numbers at `from`.
    #[inline(always)]
    unsafe fn load_first(from: *const Self::Real, n: usize) -> Self {
        // SAFETY: the caller's promise; a buffer holds the widest vector.
        unsafe {
            if n >= Self::WIDTH {
                return Self::load(from);
            }
            let mut buffer = [Self::Real::default(); 16];
            std::ptr::copy_nonoverlapping(from, buffer.as_mut_ptr(), n);
            Self::load(buffer.as_ptr())
        }
    }

    /// Writes the first `n` lanes, or all if there are fewer.
    ///
    /// # Safety
    /// `min(n, WIDTH)` writable numbers at `to`.
    #[inline(always)]
    unsafe fn store_first(self, to: *mut Self::Real, n: usize) {
        // SAFETY: the caller's promise; a buffer holds the widest vector.
        unsafe {
            if n >= Self::WIDTH {
                return self.store(to);
            }
            let mut buffer = [Self::Real::default(); 16];
            self.store(buffer.as_mut_ptr());
            std::ptr::copy_nonoverlapping(buffer.as_ptr(), to, n);
        }
    }
}

/// The arithmetic type of the cells, with its vectors at each level.
pub(super) trait Number:
    Copy + Default + Send + Sync + PartialEq + Add<Output = Self> + Mul<Output = Self> + 'static
{
    /// One.
    const ONE: Self;
    /// 512 bits.
    #[cfg(target_arch = "x86_64")]
    type Avx512: Lanes<Real = Self>;
    /// 256 bits.
    #[cfg(target_arch = "x86_64")]
    type Avx2: Lanes<Real = Self>;
    /// Arrays, which the compiler turns into what the target has.
    type Portable: Lanes<Real = Self>;
}

impl Number for f32 {
    const ONE: Self = 1.0;
    #[cfg(target_arch = "x86_64")]
    type Avx512 = super::lanes_x86::F32x16;
    #[cfg(target_arch = "x86_64")]
    type Avx2 = super::lanes_x86::F32x8;
    type Portable = Array<f32, 4>;
}

impl Number for f64 {
    const ONE: Self = 1.0;
    #[cfg(target_arch = "x86_64")]
    type Avx512 = super::lanes_x86::F64x8;
    #[cfg(target_arch = "x86_64")]
    type Avx2 = super::lanes_x86::F64x4;
    type Portable = Array<f64, 2>;
}

/// A vector as an array.
#[derive(Clone, Copy)]
pub(super) struct Array<R, const N: usize>([R; N]);

macro_rules! array {
    ($real:ty, $width:literal) => {
        impl Array<$real, $width> {
            #[inline(always)]
            fn map2(self, b: Self, f: impl Fn($real, $real) -> $real) -> Self {
                Self(std::array::from_fn(|i| f(self.0[i], b.0[i])))
            }
        }

        impl Lanes for Array<$real, $width> {
            type Real = $real;
            const WIDTH: usize = $width;
            // NEON has 32, SSE2 and SIMD128 16; a tile of 16 does not spill on either.
            const REGISTERS: usize = 16;

            #[inline(always)]
            unsafe fn run(task: impl Task<Self>) {
                task.run();
            }
            #[inline(always)]
            fn splat(x: $real) -> Self {
                Self([x; $width])
            }
            #[inline(always)]
            unsafe fn load(from: *const $real) -> Self {
                // SAFETY: the caller's promise; an array has its element's alignment.
                unsafe { Self(from.cast::<[$real; $width]>().read()) }
            }
            #[inline(always)]
            unsafe fn store(self, to: *mut $real) {
                // SAFETY: the caller's promise; an array has its element's alignment.
                unsafe { to.cast::<[$real; $width]>().write(self.0) }
            }
            #[inline(always)]
            fn add(self, b: Self) -> Self {
                self.map2(b, |a, b| a + b)
            }
            #[inline(always)]
            fn sub(self, b: Self) -> Self {
                self.map2(b, |a, b| a - b)
            }
            #[inline(always)]
            fn mul(self, b: Self) -> Self {
                self.map2(b, |a, b| a * b)
            }
            #[inline(always)]
            fn mul_add(self, b: Self, c: Self) -> Self {
                // Without the instruction `mul_add` is a slow library call.
                let fused = cfg!(any(target_feature = "fma", target_arch = "aarch64"));
                Self(std::array::from_fn(|i| {
                    if fused {
                        self.0[i].mul_add(b.0[i], c.0[i])
                    } else {
                        self.0[i] * b.0[i] + c.0[i]
                    }
                }))
            }
            #[inline(always)]
            fn sigmoid<const N: usize>(x: [Self; N]) -> [Self; N] {
                x.map(|x| Self(x.0.map(|x| 1.0 / (1.0 + (-x).exp()))))
            }
            #[inline(always)]
            fn tanh<const N: usize>(x: [Self; N]) -> [Self; N] {
                x.map(|x| Self(x.0.map(|x| x.tanh())))
            }
            #[inline(always)]
            fn relu(self) -> Self {
                Self(self.0.map(|x| if x < 0.0 { 0.0 } else { x }))
            }
            #[inline(always)]
            fn where_positive(self, gate: Self) -> Self {
                self.map2(gate, |x, gate| if gate > 0.0 { x } else { 0.0 })
            }
        }
    };
}

array!(f32, 4);
array!(f64, 2);
