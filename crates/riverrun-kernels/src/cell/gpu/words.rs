//! Pairs of neighbouring numbers in memory: one word in 16 bits, two in `f32`.

use cubecl::prelude::*;

use super::exchange::{ABSENT, write_shared};
use super::gates::Pair;
use super::product::Product;
use crate::gpu::storage::{Storage, narrow, widen};

/// A pair as it is stored; in 16 bits, the second word is unused.
pub(super) type Words = Vector<u32, Const<2>>;

/// The pair at number `at`, which is even.
#[cube]
pub(super) fn fetch(buffer: &[u32], at: usize, #[comptime] product: Product) -> Words {
    let mut words = Words::new(0u32);
    if comptime!(product.storage == Storage::Plain) {
        words.insert(0usize, buffer[at]);
        words.insert(1usize, buffer[at + 1]);
    } else {
        words.insert(0usize, buffer[at / 2]);
    }
    words
}

#[cube]
pub(super) fn put(buffer: &mut [u32], at: usize, words: Words, #[comptime] product: Product) {
    if comptime!(product.storage == Storage::Plain) {
        buffer[at] = words.extract(0usize);
        buffer[at + 1] = words.extract(1usize);
    } else {
        buffer[at / 2] = words.extract(0usize);
    }
}

/// Stores for other cubes to read, at number `at` from the address `start`. The one NaN that means [`ABSENT`] becomes another.
#[cube]
pub(super) fn publish(start: u64, at: usize, words: Words, #[comptime] product: Product) {
    let place = start + u64::cast_from(at) * comptime!(product.size() as u64);
    write_shared(place, words.extract(0usize).min(comptime!(ABSENT - 1)));
    if comptime!(product.storage == Storage::Plain) {
        let next = words.extract(1usize).min(comptime!(ABSENT - 1));
        write_shared(place + 4u64, next);
    }
}

#[cube]
pub(super) fn unpack(words: Words, #[comptime] product: Product) -> Pair {
    if comptime!(product.storage == Storage::Plain) {
        Pair::reinterpret(words)
    } else {
        let mut word = Vector::<u32, Const<1>>::new(0u32);
        word.insert(0usize, words.extract(0usize));
        widen::<u32, Const<1>, Const<2>>(word, product.storage)
    }
}

/// Each rounded to nearest even.
#[cube]
pub(super) fn pack(pair: Pair, #[comptime] product: Product) -> Words {
    if comptime!(product.storage == Storage::Plain) {
        Words::reinterpret(pair)
    } else {
        let mut words = Words::new(0u32);
        let word = narrow::<u32, Const<1>, Const<2>>(pair, product.storage);
        words.insert(0usize, word.extract(0usize));
        words
    }
}
