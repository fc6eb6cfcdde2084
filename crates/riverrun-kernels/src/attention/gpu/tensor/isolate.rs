//! NaN and infinities under a mask: what a row does not see has no influence on it.

use cubecl::prelude::*;

use super::config::Config;
use super::tile::{place, put_words, word_at, words_at};
use crate::attention::gpu::score::{Sizes, span};
use crate::gpu::storage::Storage;
use crate::gpu::warpgroup::show;

/// The exponent's bits of the second of two numbers; 16 bits to the right, those of the first.
fn exponent(storage: Storage) -> u32 {
    match storage {
        Storage::F16Words => 0x7c00_0000,
        Storage::Bf16Words | Storage::Plain => 0x7f80_0000,
    }
}

/// Whether the second of two numbers is NaN or infinite.
#[cube]
fn second_is_wild(word: u32, #[comptime] storage: Storage) -> bool {
    let bits = comptime!(exponent(storage));
    word & bits == bits
}

/// Whether the first is.
#[cube]
fn first_is_wild(word: u32, #[comptime] storage: Storage) -> bool {
    second_is_wild(word << 16u32, storage)
}

/// Where a tile stands in the mask.
#[derive(CubeType)]
pub(super) struct Mask {
    /// The first row of the tile.
    pub column: usize,
    /// The sequence.
    pub sequence: usize,
    /// Whether the tile's rows are keys and the thread's rows queries; otherwise the tile holds queries.
    #[cube(comptime)]
    pub by_row: bool,
}

/// Before [`accumulate`](super::tile::accumulate) with a tile that some row does not see whole: `0 · NaN` is NaN, so NaN and
/// infinities of the tile are brought into the sums of the rows that see them, as NaN, and then are zeros in the tile.
///
/// `from` and `to` have an entry for each row of the thread: the range of keys that a query sees, or the key itself, twice.
/// `flags[flag]` is 0 before and after the call. All threads of the cube make it.
#[cube]
pub(super) fn isolate(
    tile: u32,
    flags: &mut [u32],
    #[comptime] flag: usize,
    mask: &Mask,
    from: &Array<usize>,
    to: &Array<usize>,
    bounds: &[u32],
    sizes: &Sizes,
    sums: &mut Array<Vector<f32, Const<4>>>,
    #[comptime] config: Config,
) {
    let units = comptime!(32 * config.planes);
    let (steps, count) = comptime!((config.steps(), config.blocks));
    let storage = comptime!(config.storage);
    let each = comptime!(2 * config.steps());
    let total = comptime!(config.columns * each);
    let columns = comptime!(config.columns);
    let mut found = false;
    for n in 0..comptime!(total.div_ceil(units)) {
        let vector = (n * units + UNIT_POS as usize).min(comptime!(total - 1));
        let words = words_at(tile + place(vector / each, vector % each, columns, config));
        #[unroll]
        for i in 0..4usize {
            let word = words.extract(i);
            found = found || first_is_wild(word, storage) || second_is_wild(word, storage);
        }
    }
    if found {
        flags[flag] = 1u32;
    }
    sync_cube();
    if flags[flag] != 0u32 {
        let nan = f32::reinterpret(0x7fff_ffffu32);
        for j in 0..columns {
            let line = mask.column + j;
            // The keys that this query sees, where the rows of the tile are queries.
            let (start, end) = if comptime!(mask.by_row) {
                (line, line)
            } else {
                let query = line.min(sizes.queries - 1);
                span(query, mask.sequence, bounds, sizes, config.rule)
            };
            #[unroll]
            for n in 0..comptime!(2 * steps) {
                let at = tile + place(j, n.runtime(), columns, config) + UNIT_POS_X % 4 * 4;
                let word = word_at(at);
                let first = first_is_wild(word, storage);
                let second = second_is_wild(word, storage);
                #[unroll]
                for b in 0..count {
                    let at = comptime!(b * 2 * steps + n);
                    let mut sum = sums[at];
                    #[unroll]
                    for half in 0..2 {
                        let own = comptime!(b * 2 + half);
                        let seen = if comptime!(mask.by_row) {
                            line >= from[own] && line < to[own]
                        } else {
                            line < sizes.queries && from[own] >= start && to[own] < end
                        };
                        let (x, y) = comptime!((half * 2, half * 2 + 1));
                        sum.insert(x, select(seen && first, nan, sum.extract(x)));
                        sum.insert(y, select(seen && second, nan, sum.extract(y)));
                    }
                    sums[at] = sum;
                }
            }
        }
        sync_cube();
        for n in 0..comptime!(total.div_ceil(units)) {
            let vector = n * units + UNIT_POS as usize;
            if vector < total {
                let at = tile + place(vector / each, vector % each, columns, config);
                let words = words_at(at);
                let mut tame = Vector::<u32, Const<4>>::new(0u32);
                #[unroll]
                for i in 0..4usize {
                    let word = words.extract(i);
                    let low = select(first_is_wild(word, storage), 0u32, word & 0xffffu32);
                    let high = select(second_is_wild(word, storage), 0u32, word & 0xffff_0000u32);
                    tame.insert(i, low | high);
                }
                put_words(at, tame);
            }
        }
        if UNIT_POS == 0 {
            flags[flag] = 0u32;
        }
        if comptime!(config.panels) {
            show();
        }
        sync_cube();
    }
}
