//! Products on tensor cores: PTX's `mma` of a plane, whose operands lie in the registers of its threads.
//!
//! Thread `4 g + q` of a plane holds, of the product `m16n8k16` of 16-bit numbers: of `A`, four words, rows `g` and `g + 8` at
//! depth `2 q` and at depth `2 q + 8`, in the order (row `g`, first), (row `g + 8`, first), (row `g`, second), (row `g + 8`,
//! second); of `B`, two words, column `g` at the same two depths; of the sum, columns `2 q` and `2 q + 1` of row `g`, then of row
//! `g + 8`. A word holds two neighbours in depth. Compute capability 8.0 and later.

use cubecl::prelude::*;

use super::storage::Storage;

/// `a b + c`: `m16n8k16` of two numbers to a word, or `m16n8k8` of TF32 for plain storage.
#[cube]
pub(crate) fn multiply_add(
    a: Vector<u32, Const<4>>,
    b_0: u32,
    b_1: u32,
    c: Vector<f32, Const<4>>,
    #[comptime] storage: Storage,
) -> Vector<f32, Const<4>> {
    let d: Vector<f32, Const<4>>;
    let (name, depth) = comptime!(match storage {
        Storage::Plain => ("tf32", 8),
        Storage::F16Words => ("f16", 16),
        Storage::Bf16Words => ("bf16", 16),
    });
    gpu_asm!(
        "mma.sync.aligned.m16n8k{depth}.row.col.f32.{name}.{name}.f32 {}, {}, {{{}, {}}}, {};",
        out(_) d, in(_) a, in(_) b_0, in(_) b_1, in(_) c, options(pure, nomem),
    );
    d
}

/// Each number rounded to TF32, towards zero.
#[cube]
fn to_tf32<N: Size>(words: Vector<u32, N>) -> Vector<u32, N> {
    words & Vector::<u32, N>::new(0xffff_e000u32)
}

/// The remainder of that rounding, which is exact.
#[cube]
fn remainder<N: Size>(words: Vector<u32, N>) -> Vector<u32, N> {
    let whole = Vector::<f32, N>::reinterpret(words);
    Vector::<u32, N>::reinterpret(whole - Vector::<f32, N>::reinterpret(to_tf32::<N>(words)))
}

/// Adds `a b` to a sum, to the precision of the storage type.
///
/// In `f32` by three products of TF32, which has 10 bits after the point: each number is a TF32 and a remainder, and of the four
/// products of those the last, some `2⁻²²` of the whole, is left out.
#[cube]
pub(crate) fn accumulate(
    sums: &mut Array<Vector<f32, Const<4>>>,
    #[comptime] at: usize,
    a: Vector<u32, Const<4>>,
    b_0: u32,
    b_1: u32,
    #[comptime] storage: Storage,
) {
    if comptime!(storage == Storage::Plain) {
        let (high, low) = (to_tf32::<Const<4>>(a), remainder::<Const<4>>(a));
        let b_0 = Vector::<u32, Const<1>>::new(b_0);
        let b_1 = Vector::<u32, Const<1>>::new(b_1);
        let high_0 = to_tf32::<Const<1>>(b_0).extract(0usize);
        let high_1 = to_tf32::<Const<1>>(b_1).extract(0usize);
        let low_0 = remainder::<Const<1>>(b_0).extract(0usize);
        let low_1 = remainder::<Const<1>>(b_1).extract(0usize);
        sums[at] = multiply_add(high, low_0, low_1, sums[at], storage);
        sums[at] = multiply_add(low, high_0, high_1, sums[at], storage);
        sums[at] = multiply_add(high, high_0, high_1, sums[at], storage);
    } else {
        sums[at] = multiply_add(a, b_0, b_1, sums[at], storage);
    }
}
