//! Tiles in shared memory for tensor cores: copies that run while the cube computes, and blocks of 8 rows by 8 numbers of 16 bits as
//! the operands of [`mma`](super::mma). PTX only, compute capability 8.0 and later.

use cubecl::prelude::*;

use super::storage::{Storage, pair};

/// The place of the cube's shared memory, for instructions.
#[cube]
pub(crate) fn shared_address(words: &mut [Vector<u32, Const<4>>]) -> u32 {
    let at: u64;
    let start = words.as_mut_ptr();
    gpu_asm!("cvta.to.shared.u64 {}, {};", out(_) at, in(_) start, options(pure, nomem));
    u32::cast_from(at)
}

/// Begins to copy 16 bytes to shared memory, of which the last are zeros from `bytes` on.
#[cube]
pub(crate) fn copy_16(at: u32, from: u64, bytes: u32) {
    gpu_asm!("cp.async.cg.shared.global [{}], [{}], 16, {};", in(_) at, in(_) from, in(_) bytes);
}

/// Begins to copy a word to shared memory, or a zero if `bytes` is 0.
#[cube]
pub(crate) fn copy_4(at: u32, from: u64, bytes: u32) {
    gpu_asm!("cp.async.ca.shared.global [{}], [{}], 4, {};", in(_) at, in(_) from, in(_) bytes);
}

/// Ends a group of copies.
#[cube]
pub(crate) fn end_group() {
    gpu_asm!("cp.async.commit_group;");
}

/// Waits until the copies of the thread are there, but for the last group; the cube has to meet before others read them.
#[cube]
pub(crate) fn wait_for_all_but_one() {
    gpu_asm!("cp.async.wait_group 1;");
}

/// Waits until the copies of the thread are there; the cube has to meet before others read them.
#[cube]
pub(crate) fn wait_for_all() {
    gpu_asm!("cp.async.wait_group 0;");
}

/// Four blocks of 8 rows by 8 numbers, whose rows begin where the threads say, eight to a block.
#[cube]
pub(crate) fn blocks(at: u32) -> Vector<u32, Const<4>> {
    let words: Vector<u32, Const<4>>;
    gpu_asm!("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {}, [{}];", out(_) words, in(_) at, options(nomem));
    words
}

/// The same with rows and columns exchanged.
#[cube]
pub(crate) fn blocks_transposed(at: u32) -> Vector<u32, Const<4>> {
    let words: Vector<u32, Const<4>>;
    gpu_asm!("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {}, [{}];", out(_) words, in(_) at, options(nomem));
    words
}

/// Writes four blocks to rows that begin where the threads say, eight to a block, as [`blocks`] reads them. Compute capability 9.0.
#[cube]
pub(crate) fn put_blocks(at: u32, words: Vector<u32, Const<4>>) {
    let (a, b) = (words.extract(0usize), words.extract(1usize));
    let (c, d) = (words.extract(2usize), words.extract(3usize));
    gpu_asm!("stmatrix.sync.aligned.m8n8.x4.shared.b16 [{}], {{{}, {}, {}, {}}};", in(_) at, in(_) a, in(_) b, in(_) c, in(_) d);
}

/// The same with rows and columns exchanged.
#[cube]
pub(crate) fn put_blocks_transposed(at: u32, words: Vector<u32, Const<4>>) {
    let (a, b) = (words.extract(0usize), words.extract(1usize));
    let (c, d) = (words.extract(2usize), words.extract(3usize));
    gpu_asm!("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [{}], {{{}, {}, {}, {}}};", in(_) at, in(_) a, in(_) b, in(_) c, in(_) d);
}

#[cube]
pub(crate) fn words_at(at: u32) -> Vector<u32, Const<4>> {
    let words: Vector<u32, Const<4>>;
    gpu_asm!("ld.shared.v4.u32 {}, [{}];", out(_) words, in(_) at);
    words
}

#[cube]
pub(crate) fn put_words(at: u32, words: Vector<u32, Const<4>>) {
    // One by one: a variable would be passed to an instruction by its address.
    let (a, b) = (words.extract(0usize), words.extract(1usize));
    let (c, d) = (words.extract(2usize), words.extract(3usize));
    gpu_asm!("st.shared.v4.u32 [{}], {{{}, {}, {}, {}}};", in(_) at, in(_) a, in(_) b, in(_) c, in(_) d);
}

#[cube]
pub(crate) fn put_word(at: u32, word: u32) {
    // A variable would be passed by its address.
    let word = u32::reinterpret(f32::reinterpret(word));
    gpu_asm!("st.shared.u32 [{}], {};", in(_) at, in(_) word);
}

#[cube]
pub(crate) fn word_at(at: u32) -> u32 {
    let word: u32;
    gpu_asm!("ld.shared.u32 {}, [{}];", out(_) word, in(_) at);
    word
}

/// A number of shared memory.
#[cube]
pub(crate) fn number_at(at: u32) -> f32 {
    f32::reinterpret(word_at(at))
}

/// Two neighbours of shared memory.
#[cube]
pub(crate) fn numbers_at(at: u32) -> Vector<f32, Const<2>> {
    let words: Vector<f32, Const<2>>;
    gpu_asm!("ld.shared.v2.f32 {}, [{}];", out(_) words, in(_) at);
    words
}

/// The block of 8 rows by 8 numbers of which the thread holds two neighbours of a row, with rows and columns exchanged.
#[cube]
pub(crate) fn turned(word: u32) -> u32 {
    let other: u32;
    // A variable would be passed by its address.
    let word = u32::reinterpret(f32::reinterpret(word));
    gpu_asm!("movmatrix.sync.aligned.m8n8.trans.b16 {}, {};", out(_) other, in(_) word, options(nomem));
    other
}

/// Two neighbouring parts of a product, rounded, as the operand `A` of a next one: columns become depth.
#[cube]
pub(crate) fn operand(
    first: Vector<f32, Const<4>>,
    second: Vector<f32, Const<4>>,
    #[comptime] storage: Storage,
) -> Vector<u32, Const<4>> {
    let mut words = Vector::<u32, Const<4>>::new(0u32);
    words.insert(
        0usize,
        pair(first.extract(0usize), first.extract(1usize), storage),
    );
    words.insert(
        1usize,
        pair(first.extract(2usize), first.extract(3usize), storage),
    );
    words.insert(
        2usize,
        pair(second.extract(0usize), second.extract(1usize), storage),
    );
    words.insert(
        3usize,
        pair(second.extract(2usize), second.extract(3usize), storage),
    );
    words
}

/// Bytes from the start of a tile to the row that the thread gives to [`blocks`], for `A`; for a `B` by [`blocks_transposed`]. Rows are
/// `pitch` vectors of 16 bytes apart.
#[cube]
pub(crate) fn own_row(#[comptime] pitch: usize) -> u32 {
    (UNIT_POS_X % 16 * comptime!(pitch as u32) + UNIT_POS_X / 16) * 16
}

/// The same for a `B` by [`blocks`]; for an `A` by [`blocks_transposed`].
#[cube]
pub(crate) fn own_column(#[comptime] pitch: usize) -> u32 {
    let row = UNIT_POS_X % 8 + UNIT_POS_X / 16 * 8;
    (row * comptime!(pitch as u32) + UNIT_POS_X / 8 % 2) * 16
}
