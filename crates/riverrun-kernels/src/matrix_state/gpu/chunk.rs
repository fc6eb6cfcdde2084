//! A chunk of steps in shared memory, for the backward pass.

use cubecl::prelude::*;

use super::plan::{CHUNK, Reverse, SUMS};
use super::staged::*;
use crate::matrix_state::{Erase, Gate};

/// The stride of a column's numbers of a chunk in shared memory, and of a row of scores: odd, against bank conflicts.
pub(super) const STRIDE: usize = CHUNK + 1;

/// A tile of the columns of a head, and a chunk of its steps. A second write is that of [`Erase::Separate`].
#[derive(CubeType)]
pub(super) struct Chunk {
    /// Rows of the steps: `q`; the vectors that are written, `k` or `b` and `k`; the vector that reads what is added, `a`.
    pub q: Shared<[Four]>,
    pub writes: Shared<[Four]>,
    pub a: Shared<[Four]>,
    /// The decays of the steps, 0 at a reset; their products from the chunk's first step to a step, and from the step after it to
    /// the last: of the rows of the state, or of the head. `pairs`: from the step after the second to the first.
    pub row_decays: Shared<[Four]>,
    pub row_starts: Shared<[Four]>,
    pub row_ends: Shared<[Four]>,
    pub decays: Shared<[f32]>,
    pub starts: Shared<[f32]>,
    pub ends: Shared<[f32]>,
    pub pairs: Shared<[f32]>,
    pub beta: Shared<[f32]>,
    /// 0 at a reset, else 1.
    pub kept: Shared<[f32]>,
    /// Columns of `S` and of `D`.
    pub state: Shared<[Four]>,
    pub d_state: Shared<[Four]>,
    /// Columns over the steps: of `dO`; of what is written, `U` or `U` and `V`; of its gradients.
    pub d_o: Shared<[f32]>,
    pub written: Shared<[f32]>,
    pub d_written: Shared<[f32]>,
    /// `P` and `A` of each write, then their gradients.
    pub p: Shared<[f32]>,
    pub reads: Shared<[f32]>,
    /// `V`, of the delta rule.
    pub values: Shared<[f32]>,
    /// Terms of the gradients of the log decays: at a step, at the level before it, and at the end; of `β`'s; their sums by parts of
    /// the channels, then by all.
    pub of_step: Shared<[Four]>,
    pub of_level: Shared<[Four]>,
    pub of_end: Shared<[Four]>,
    pub of_beta: Shared<[f32]>,
    pub parts: Shared<[f32]>,
    pub sums: Shared<[f32]>,
    pub of_bonus: Shared<[Four]>,
}

#[cube]
pub(super) fn new_chunk(#[comptime] reverse: Reverse) -> Chunk {
    let (rows, writes) = comptime!((CHUNK * reverse.stride(), reverse.writes()));
    let columns = comptime!(reverse.columns);
    let by_row = comptime!(if reverse.gate == Gate::Row { rows } else { 1 });
    let bonus = comptime!(if reverse.bonus {
        CHUNK / EACH * reverse.stride()
    } else {
        1
    });
    Chunk {
        q: Shared::<[Four]>::new_slice(rows),
        writes: Shared::<[Four]>::new_slice(comptime!(writes * rows)),
        a: Shared::<[Four]>::new_slice(comptime!(if reverse.has_erase() { rows } else { 1 })),
        row_decays: Shared::<[Four]>::new_slice(by_row),
        row_starts: Shared::<[Four]>::new_slice(by_row),
        row_ends: Shared::<[Four]>::new_slice(by_row),
        decays: Shared::<[f32]>::new_slice(CHUNK),
        starts: Shared::<[f32]>::new_slice(CHUNK),
        ends: Shared::<[f32]>::new_slice(CHUNK),
        pairs: Shared::<[f32]>::new_slice(comptime!(CHUNK * STRIDE)),
        beta: Shared::<[f32]>::new_slice(CHUNK),
        kept: Shared::<[f32]>::new_slice(CHUNK),
        state: Shared::<[Four]>::new_slice(comptime!(columns * reverse.stride())),
        d_state: Shared::<[Four]>::new_slice(comptime!(columns * reverse.stride())),
        d_o: Shared::<[f32]>::new_slice(comptime!(columns * STRIDE)),
        written: Shared::<[f32]>::new_slice(comptime!(writes * columns * STRIDE)),
        d_written: Shared::<[f32]>::new_slice(comptime!(writes * columns * STRIDE)),
        p: Shared::<[f32]>::new_slice(comptime!(writes * CHUNK * STRIDE)),
        reads: Shared::<[f32]>::new_slice(comptime!(writes * CHUNK * STRIDE)),
        values: Shared::<[f32]>::new_slice(comptime!(if reverse.erase == Erase::Key {
            columns * STRIDE
        } else {
            1
        })),
        of_step: Shared::<[Four]>::new_slice(comptime!(if reverse.gate == Gate::None {
            1
        } else {
            rows
        })),
        of_level: Shared::<[Four]>::new_slice(comptime!(if reverse.reads_before() {
            rows
        } else {
            1
        })),
        of_end: Shared::<[Four]>::new_slice(comptime!(CHUNK / EACH * reverse.stride())),
        of_beta: Shared::<[f32]>::new_slice(comptime!(if reverse.erase == Erase::Key {
            rows
        } else {
            1
        })),
        parts: Shared::<[f32]>::new_slice(comptime!(reverse.parts())),
        sums: Shared::<[f32]>::new_slice(comptime!(SUMS * CHUNK)),
        of_bonus: Shared::<[Four]>::new_slice(bonus),
    }
}

/// Steps of a chunk that a thread takes at a time.
pub(super) const EACH: usize = 4;

/// `q` reads the state after the step's decay; with a bonus, before it.
#[cube]
pub(super) fn start_of_q(
    chunk: &mut Chunk,
    i: usize,
    four: usize,
    #[comptime] reverse: Reverse,
) -> Four {
    start(chunk, i, four, reverse.bonus, reverse)
}

/// The same of the vector that reads what is added.
#[cube]
pub(super) fn start_of_a(
    chunk: &mut Chunk,
    i: usize,
    four: usize,
    #[comptime] reverse: Reverse,
) -> Four {
    start(
        chunk,
        i,
        four,
        comptime!(reverse.erase == Erase::Separate),
        reverse,
    )
}

/// The decays from the state before the chunk to step `i`, of four channels; without the step's own where it is `before` that.
#[cube]
fn start(
    chunk: &mut Chunk,
    i: usize,
    four: usize,
    #[comptime] before: bool,
    #[comptime] reverse: Reverse,
) -> Four {
    let mut factor = Four::new(1.0f32);
    if comptime!(before) {
        if i > 0 {
            factor = start(chunk, i - 1, four, false, reverse);
        }
        if comptime!(reverse.reset) {
            factor *= Four::new(chunk.kept[i]);
        }
    } else {
        if comptime!(reverse.by_head()) {
            factor = Four::new(chunk.starts[i]);
        }
        if comptime!(reverse.gate == Gate::Row) {
            factor = chunk.row_starts[i * comptime!(reverse.stride()) + four];
        }
    }
    factor
}

/// The decays after step `i`, to the chunk's end.
#[cube]
pub(super) fn end(chunk: &mut Chunk, i: usize, four: usize, #[comptime] reverse: Reverse) -> Four {
    let mut factor = Four::new(1.0f32);
    if comptime!(reverse.by_head()) {
        factor = Four::new(chunk.ends[i]);
    }
    if comptime!(reverse.gate == Gate::Row) {
        factor = chunk.row_ends[i * comptime!(reverse.stride()) + four];
    }
    factor
}

/// The decays of a head from the step after `j` to step `i > j`; without the last where it is `before` that.
#[cube]
pub(super) fn pair(
    chunk: &mut Chunk,
    i: usize,
    j: usize,
    #[comptime] before: bool,
    #[comptime] reverse: Reverse,
) -> f32 {
    let mut factor = 1.0f32.runtime();
    if comptime!(reverse.by_head()) {
        if comptime!(before) {
            factor = chunk.pairs[(i - 1) * STRIDE + j];
            if comptime!(reverse.reset) {
                factor *= chunk.kept[i];
            }
        } else {
            factor = chunk.pairs[i * STRIDE + j];
        }
    }
    factor
}

/// Where the tile of a cube lies.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Tile {
    /// The head of the values.
    pub own: Lane,
    /// The head of the keys.
    pub keys: Lane,
    pub first_column: usize,
    /// Columns that exist.
    pub here: usize,
}

/// Reads the rows of a chunk; steps past the end are 0 and change nothing.
#[cube]
pub(super) fn load_rows<S: Numeric, F: Numeric, W: Size>(
    q: &[Vector<S, W>],
    k: &[Vector<S, W>],
    erase: &[Vector<S, W>],
    write: &[Vector<S, W>],
    g_rows: &[Vector<S, W>],
    reset: &[F],
    chunk: &mut Chunk,
    tile: &Tile,
    first: usize,
    count: usize,
    #[comptime] reverse: Reverse,
) {
    let (rows, stride) = comptime!((reverse.rows, reverse.stride()));
    let unit = UNIT_POS_X as usize;
    for n in range_stepped(unit, comptime!(CHUNK * rows.fours), rows.threads) {
        let (i, at) = (n / rows.fours, n % rows.fours);
        let zero = Four::new(0.0f32);
        let (mut query, mut key, mut read, mut added) = (zero, zero, zero, zero);
        if i < count {
            let (row, own) = (row_of(&tile.keys, first + i), row_of(&tile.own, first + i));
            query = four::<S, W>(q, row, at * FOUR, rows);
            key = four::<S, W>(k, row, at * FOUR, rows);
            if comptime!(reverse.has_erase()) {
                read = four::<S, W>(erase, own, at * FOUR, rows);
            }
            if comptime!(reverse.erase == Erase::Separate) {
                added = four::<S, W>(write, own, at * FOUR, rows);
            }
        }
        let place = i * stride + at;
        chunk.q[place] = query;
        if comptime!(reverse.erase == Erase::Separate) {
            chunk.writes[place] = added;
            chunk.writes[comptime!(CHUNK * stride) + place] = key;
            chunk.a[place] = read;
        } else {
            chunk.writes[place] = key;
            if comptime!(reverse.erase == Erase::Free) {
                chunk.a[place] = zero - read;
            }
        }
    }
    if comptime!(reverse.gate == Gate::Row) {
        for n in range_stepped(unit, comptime!(CHUNK * rows.fours), rows.threads) {
            let (i, at) = (n / rows.fours, n % rows.fours);
            let mut factor = Four::new(1.0f32);
            if i < count {
                let logs = four::<S, W>(g_rows, row_of(&tile.own, first + i), at * FOUR, rows);
                #[unroll]
                for u in 0..FOUR {
                    factor.insert(u, decay(logs.extract(u)));
                }
                if comptime!(reverse.reset) {
                    let cut = reset[tile.own.sequence * tile.own.steps + first + i];
                    if cut != F::from_int(0) {
                        factor = Four::new(0.0f32);
                    }
                }
            }
            chunk.row_decays[i * stride + at] = factor;
        }
    }
}

/// Reads the columns of a chunk and what has one number a step.
#[cube]
pub(super) fn load_columns<F: Numeric>(
    v: &[F],
    d_o: &[F],
    g: &[F],
    beta: &[F],
    reset: &[F],
    states: &[Four],
    chunk: &mut Chunk,
    tile: &Tile,
    // The place of the chunk among those of all heads.
    place: usize,
    first: usize,
    count: usize,
    #[comptime] reverse: Reverse,
) {
    let (fours, threads, columns) =
        comptime!((reverse.rows.fours, reverse.rows.threads, reverse.columns));
    let unit = UNIT_POS_X as usize;
    for n in range_stepped(unit, comptime!(columns * fours), threads) {
        let (column, at) = (n / fours, n % fours);
        let mut state = Four::new(0.0f32);
        if column < tile.here {
            let row = place * reverse.value + tile.first_column + column;
            state = states[row * fours + at];
        }
        chunk.state[column * comptime!(reverse.stride()) + at] = state;
    }
    for n in range_stepped(unit, comptime!(CHUNK * columns), threads) {
        let (i, column) = (n / columns, n % columns);
        let (mut value, mut d) = (0.0f32.runtime(), 0.0f32.runtime());
        if i < count && column < tile.here {
            let row = row_of(&tile.own, first + i);
            let at = row * reverse.value + tile.first_column + column;
            value = f32::cast_from(v[at]);
            d = f32::cast_from(d_o[at]);
            if comptime!(reverse.erase == Erase::Key) {
                chunk.values[column * STRIDE + i] = value;
                value *= f32::cast_from(beta[row]);
            }
        }
        let at = column * STRIDE + i;
        chunk.d_o[at] = d;
        if comptime!(reverse.erase == Erase::Separate) {
            chunk.written[at] = 0.0f32;
            chunk.written[comptime!(columns * STRIDE) + at] = value;
        } else {
            chunk.written[at] = value;
        }
    }
    if unit < CHUNK {
        let (mut factor, mut kept, mut own) =
            (1.0f32.runtime(), 1.0f32.runtime(), 0.0f32.runtime());
        if unit < count {
            let row = row_of(&tile.own, first + unit);
            if comptime!(reverse.gate == Gate::Head) {
                factor = decay(f32::cast_from(g[row]));
            }
            if comptime!(reverse.reset) {
                let cut = reset[tile.own.sequence * tile.own.steps + first + unit];
                if cut != F::from_int(0) {
                    factor = 0.0f32;
                    kept = 0.0f32;
                }
            }
            if comptime!(reverse.erase == Erase::Key) {
                own = f32::cast_from(beta[row]);
            }
        }
        chunk.decays[unit] = factor;
        chunk.kept[unit] = kept;
        chunk.beta[unit] = own;
    }
}

/// The products of the decays.
#[cube]
pub(super) fn multiply_decays(chunk: &mut Chunk, #[comptime] reverse: Reverse) {
    let (unit, threads) = (UNIT_POS_X as usize, comptime!(reverse.rows.threads));
    if comptime!(reverse.gate == Gate::Row) {
        let (fours, stride) = comptime!((reverse.rows.fours, reverse.stride()));
        for c in range_stepped(unit, fours, threads) {
            let mut total = Four::new(1.0f32);
            for i in 0..CHUNK {
                total *= chunk.row_decays[i * stride + c];
                chunk.row_starts[i * stride + c] = total;
            }
            let mut total = Four::new(1.0f32);
            for turn in 0..CHUNK {
                let i = CHUNK - 1 - turn;
                chunk.row_ends[i * stride + c] = total;
                total *= chunk.row_decays[i * stride + c];
            }
        }
    }
    if comptime!(reverse.by_head()) {
        for n in range_stepped(unit, comptime!(CHUNK * (CHUNK + 2)), threads) {
            let (i, column) = (n % CHUNK, n / CHUNK);
            // From the first step of the chunk, from the step after each, and to the end.
            let (mut from, mut to) = (0usize.runtime(), i + 1);
            if column > CHUNK {
                from = i + 1;
                to = CHUNK.runtime();
            } else if column > 0 {
                from = column;
            }
            let mut total = 1.0f32.runtime();
            for l in from..to {
                total *= chunk.decays[l];
            }
            if column > CHUNK {
                chunk.ends[i] = total;
            } else if column > 0 {
                chunk.pairs[i * STRIDE + column - 1] = total;
            } else {
                chunk.starts[i] = total;
            }
        }
    }
}

/// The vector of step `i` that reads what is added: of the delta rule `-β k`.
#[cube]
pub(super) fn reading(
    chunk: &mut Chunk,
    i: usize,
    four: usize,
    #[comptime] reverse: Reverse,
) -> Four {
    let at = i * comptime!(reverse.stride()) + four;
    if comptime!(reverse.erase == Erase::Key) {
        chunk.writes[at] * Four::new(0.0f32 - chunk.beta[i])
    } else {
        chunk.a[at]
    }
}
