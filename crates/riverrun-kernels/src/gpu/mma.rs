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
