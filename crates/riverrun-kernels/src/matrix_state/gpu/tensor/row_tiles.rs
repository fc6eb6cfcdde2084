//! The tiles of a chunk's gradients where each row of the state has a decay of its own.

use cubecl::prelude::*;

use super::Form;
use super::tile::*;
use crate::gpu::tensor::*;

/// Blocks of 8 steps.
pub(super) const TILES: usize = CHUNK / 8;

/// Where the tiles begin, and bytes of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Tiles {
    pub keys: u32,
    pub queries: u32,
    pub logs: u32,
    /// What reads for the erase, where that is not the key.
    pub erase: u32,
    pub d_o: u32,
    pub added: u32,
    pub d_r: u32,
    pub states: u32,
    pub d_states: u32,
    /// `A` and `B`: what lies above the diagonal blocks of 16 has no meaning.
    pub read: u32,
    pub erased: u32,
    /// The diagonal of `A`.
    pub diagonal: u32,
    /// `v·dR`.
    pub of_values: u32,
    /// Each plane's part of `k·de`.
    pub met: u32,
    pub scalars: u32,
    pub bytes: u32,
}

impl Tiles {
    pub fn new(form: Form) -> Self {
        let mut next = 0;
        let mut place = |there: bool, bytes: u32| {
            let at = next;
            next += if there { bytes } else { 0 };
            at
        };
        let (rows, columns) = (bytes(CHUNK, form.key), bytes(form.value, CHUNK));
        let values = bytes(CHUNK, form.value);
        let (state, square) = (bytes(form.value, form.key), bytes(CHUNK, CHUNK));
        let numbers = |count: usize| (count * CHUNK * 4) as u32;
        Self {
            keys: place(true, rows),
            queries: place(true, rows),
            logs: place(true, rows),
            erase: place(form.separate(), rows),
            d_o: place(true, values),
            added: place(
                true,
                if form.separate() {
                    columns.max(values)
                } else {
                    columns
                },
            ),
            d_r: place(form.erases(), columns),
            states: place(true, state),
            d_states: place(true, state),
            read: place(true, square),
            erased: place(form.erases(), square),
            diagonal: place(true, numbers(1)),
            of_values: place(form.erases() && !form.separate(), numbers(1)),
            met: place(form.erases() && !form.separate(), numbers(planes(form))),
            scalars: place(true, (form.scalars() * 4) as u32),
            bytes: next,
        }
    }
}

/// Planes of a cube, 16 channels each.
pub(super) fn planes(form: Form) -> usize {
    form.key / 16
}

/// The words of 16 steps and the plane's channels.
#[cube]
pub(super) fn own_words(tile: u32, #[comptime] block: usize, #[comptime] form: Form) -> Words {
    let own = tile + UNIT_POS_Y * 32 + own_column(comptime!(pitch(form.key)));
    blocks_transposed(own + comptime!(offset(form.key, 16 * block, 0)))
}
