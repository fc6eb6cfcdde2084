//! Pairs of neighbouring numbers in memory: one word in 16 bits, two in `f32`.

use cubecl::prelude::*;

use super::exchange::{ABSENT, write_shared};
use super::storage::{Storage, narrow, widen};

/// Two neighbouring numbers.
pub(crate) type Pair = Vector<f32, Const<2>>;

/// A pair as it is stored; in 16 bits, the second word is unused.
pub(crate) type Words = Vector<u32, Const<2>>;

/// The pair at number `at`, which is even.
#[cube]
pub(crate) fn fetch(buffer: &[u32], at: usize, #[comptime] storage: Storage) -> Words {
    let mut words = Words::new(0u32);
    if comptime!(storage == Storage::Plain) {
        words.insert(0usize, buffer[at]);
        words.insert(1usize, buffer[at + 1]);
    } else {
        words.insert(0usize, buffer[at / 2]);
    }
    words
}

#[cube]
pub(crate) fn put(buffer: &mut [u32], at: usize, words: Words, #[comptime] storage: Storage) {
    if comptime!(storage == Storage::Plain) {
        buffer[at] = words.extract(0usize);
        buffer[at + 1] = words.extract(1usize);
    } else {
        buffer[at / 2] = words.extract(0usize);
    }
}

/// Stores for other cubes to read, at number `at` from the address `start`. The one NaN that means [`ABSENT`] becomes another.
#[cube]
pub(crate) fn publish(start: u64, at: usize, words: Words, #[comptime] storage: Storage) {
    let place = start + u64::cast_from(at) * comptime!(storage.size() as u64);
    write_shared(place, words.extract(0usize).min(comptime!(ABSENT - 1)));
    if comptime!(storage == Storage::Plain) {
        let next = words.extract(1usize).min(comptime!(ABSENT - 1));
        write_shared(place + 4u64, next);
    }
}

#[cube]
pub(crate) fn unpack(words: Words, #[comptime] storage: Storage) -> Pair {
    if comptime!(storage == Storage::Plain) {
        Pair::reinterpret(words)
    } else {
        let mut word = Vector::<u32, Const<1>>::new(0u32);
        word.insert(0usize, words.extract(0usize));
        widen::<u32, Const<1>, Const<2>>(word, storage)
    }
}

/// Each rounded to nearest even.
#[cube]
pub(crate) fn pack(pair: Pair, #[comptime] storage: Storage) -> Words {
    if comptime!(storage == Storage::Plain) {
        Words::reinterpret(pair)
    } else {
        let mut words = Words::new(0u32);
        let word = narrow::<u32, Const<1>, Const<2>>(pair, storage);
        words.insert(0usize, word.extract(0usize));
        words
    }
}
