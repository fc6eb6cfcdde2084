//! Conversion of stored elements to `f32` and back.
//!
//! 16-bit elements are moved two to a 32-bit word where the device has instructions that split words: a register then holds two
//! of them while a tile waits, so twice as many bytes are in flight.

use cubecl::client::Client;
use cubecl::ir::{ElemType, UIntKind};
use cubecl::prelude::*;
use half::f16;

use super::{Dtype, capability};

/// The form of elements in registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Storage {
    /// One element each, in its own type.
    Plain,
    /// Two bf16 to a word, the first in the low half.
    Bf16Words,
    /// Two f16 to a word, the first in the low half.
    F16Words,
}

impl Storage {
    /// The best for vectors of `vector` elements.
    pub(crate) fn choose(client: &Client, dtype: Dtype, vector: usize) -> Self {
        // The conversions of `pair_bf16` and `pair_f16` need compute capability 8.0.
        let pairs = vector > 1 && capability(client).is_some_and(|capability| capability >= 80);
        match dtype {
            Dtype::Bf16 if pairs => Storage::Bf16Words,
            Dtype::F16 if pairs => Storage::F16Words,
            _ => Storage::Plain,
        }
    }

    /// Bytes of a number, where plain storage is `f32`.
    pub(crate) fn size(self) -> usize {
        match self {
            Storage::Plain => 4,
            Storage::Bf16Words | Storage::F16Words => 2,
        }
    }

    /// The type that kernels see.
    pub(crate) fn elem(self, dtype: Dtype) -> ElemType {
        match self {
            Storage::Plain => dtype.elem(),
            Storage::Bf16Words | Storage::F16Words => ElemType::UInt(UIntKind::U32),
        }
    }

    /// Elements of that type in a vector of `vector` numbers.
    pub(crate) fn width(self, vector: usize) -> usize {
        match self {
            Storage::Plain => vector,
            Storage::Bf16Words | Storage::F16Words => vector / 2,
        }
    }
}

#[cube]
fn pair_bf16(low: f32, high: f32) -> u32 {
    let word: u32;
    gpu_asm!("cvt.rn.bf16x2.f32 {}, {}, {};", out(_) word, in(_) high, in(_) low, options(pure, nomem));
    word
}

#[cube]
fn pair_f16(low: f32, high: f32) -> u32 {
    let word: u32;
    gpu_asm!("cvt.rn.f16x2.f32 {}, {}, {};", out(_) word, in(_) high, in(_) low, options(pure, nomem));
    word
}

/// Two numbers in a word, each rounded to nearest even, the first in the low half.
#[cube]
pub(crate) fn pair(low: f32, high: f32, #[comptime] storage: Storage) -> u32 {
    if comptime!(storage == Storage::Bf16Words) {
        pair_bf16(low, high)
    } else {
        pair_f16(low, high)
    }
}

/// The numbers of a stored vector: `S` and `W` are [`Storage::elem`] and [`Storage::width`].
#[cube]
pub(crate) fn widen<S: Numeric, W: Size, N: Size>(
    x: Vector<S, W>,
    #[comptime] storage: Storage,
) -> Vector<f32, N> {
    let mut y = Vector::<f32, N>::new(0.0f32);
    #[unroll]
    for i in 0..W::value() {
        if comptime!(storage == Storage::Plain) {
            y.insert(i, f32::cast_from(x.extract(i)));
        } else {
            let word = u32::cast_from(x.extract(i));
            let (low, high) = if comptime!(storage == Storage::Bf16Words) {
                (
                    f32::reinterpret(word << 16u32),
                    f32::reinterpret(word & 0xffff_0000u32),
                )
            } else {
                (
                    f32::cast_from(f16::reinterpret(u16::cast_from(word & 0xffffu32))),
                    f32::cast_from(f16::reinterpret(u16::cast_from(word >> 16u32))),
                )
            };
            y.insert(i * 2, low);
            y.insert(i * 2 + 1, high);
        }
    }
    y
}

/// The stored form of numbers, each rounded to nearest even.
#[cube]
pub(crate) fn narrow<S: Numeric, W: Size, N: Size>(
    y: Vector<f32, N>,
    #[comptime] storage: Storage,
) -> Vector<S, W> {
    let mut x = Vector::<S, W>::new(S::from_int(0));
    #[unroll]
    for i in 0..W::value() {
        if comptime!(storage == Storage::Plain) {
            x.insert(i, S::cast_from(y.extract(i)));
        } else {
            let (low, high) = (y.extract(i * 2), y.extract(i * 2 + 1));
            x.insert(i, S::cast_from(pair(low, high, storage)));
        }
    }
    x
}
