//! Cubes of a cluster that read each other's results, step by step. Compute capability 9.0 and later.
//!
//! The cubes of a cluster run at once, by the hardware's promise, and write into each other's shared memory. A result
//! travels as one word of 64 bits, the number and the step that it belongs to ([`send`]); a reader polls the place in its
//! own shared memory until the step is there ([`receive`]). So a word is its own flag: no word implies anything about
//! another, and there are no fences and no barriers between the first ([`meet`]) and the last.
//!
//! These waits have no time limit, unlike those between the cubes of a grid (`fault.rs`): a cube of a grid may be left out, one
//! of a cluster may not, and reading the clock would lengthen a loop that ends after some 0.2 µs.
//!
//! A place is written again, for the next step, only by those that have seen a later result of everyone who reads it: that
//! is for the kernel to make sure of.

use cubecl::prelude::*;

/// The place in the shared memory of the cube `rank` of the cluster that `at` is in this cube's, and `index` words after it.
#[cube]
pub(crate) fn address_in(at: u64, rank: u32, index: usize) -> u64 {
    let there: u64;
    gpu_asm!("mapa.shared::cluster.u64 {}, {}, {};", out(_) there, in(_) at, in(_) rank, options(pure, nomem));
    // As an expression: a variable would be passed to an instruction by its address.
    there + u64::cast_from(index * 8)
}

/// The place of the word `index` in this cube's shared memory, with which its instructions are quicker than with an address.
#[cube]
pub(crate) fn address_here(words: &mut [u64], index: usize) -> u64 {
    let at: u64;
    let start = words.as_mut_ptr();
    gpu_asm!("cvta.to.shared.u64 {}, {};", out(_) at, in(_) start, options(pure, nomem));
    at + u64::cast_from(index * 8)
}

/// Writes the number `x` of the step `step`, which is not 0, to a place of [`address_in`].
#[cube]
pub(crate) fn send(at: u64, x: f32, step: u32) {
    let word = (u64::cast_from(step) << 32u64) | u64::cast_from(u32::reinterpret(x));
    gpu_asm!("st.relaxed.cluster.shared::cluster.u64 [{}], {};", in(_) at, in(_) word);
}

/// The word at a place of [`address_here`]: see [`step_of`] and [`number_of`].
#[cube]
pub(crate) fn receive(at: u64) -> u64 {
    let word: u64;
    gpu_asm!("ld.relaxed.cluster.shared::cta.u64 {}, [{}];", out(_) word, in(_) at);
    word
}

/// The step that a word belongs to.
#[cube]
pub(crate) fn step_of(word: u64) -> u32 {
    u32::cast_from(word >> 32u64)
}

/// The number in a word.
#[cube]
pub(crate) fn number_of(word: u64) -> f32 {
    f32::reinterpret(u32::cast_from(word & 0xffff_ffffu64))
}

/// Waits until every thread of the cluster is here; what they wrote before is seen after.
#[cube]
pub(crate) fn meet() {
    gpu_asm!("barrier.cluster.arrive.release;");
    gpu_asm!("barrier.cluster.wait.acquire;");
}
