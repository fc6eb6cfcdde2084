//! A chunk of steps in shared memory, for the backward pass.

use cubecl::prelude::*;

use super::plan::{CHUNK, Reverse};
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
    /// `G` before each step and after the last, for a gate of the rows, and for one of the head.
    pub row_logs: Shared<[Four]>,
    pub logs: Shared<[f32]>,
    pub beta: Shared<[f32]>,
    /// Resets up to a step, its own among them.
    pub resets: Shared<[f32]>,
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
    /// Terms of the gradient of `G`: at a step, at the level before it, and at the end. Of `β`'s. Their sums over the channels.
    pub of_step: Shared<[Four]>,
    pub of_level: Shared<[Four]>,
    pub of_end: Shared<[Four]>,
    pub of_beta: Shared<[f32]>,
    pub of_head: Shared<[f32]>,
    pub of_bonus: Shared<[Four]>,
}

#[cube]
pub(super) fn new_chunk(#[comptime] reverse: Reverse) -> Chunk {
    let (rows, writes) = comptime!((CHUNK * reverse.stride(), reverse.writes()));
    let columns = comptime!(reverse.columns);
    let bonus = comptime!(if reverse.bonus {
        CHUNK / EACH * reverse.stride()
    } else {
        1
    });
    Chunk {
        q: Shared::<[Four]>::new_slice(rows),
        writes: Shared::<[Four]>::new_slice(comptime!(writes * rows)),
        a: Shared::<[Four]>::new_slice(comptime!(if reverse.has_erase() { rows } else { 1 })),
        row_logs: Shared::<[Four]>::new_slice(comptime!(if reverse.gate == Gate::Row {
            rows + reverse.stride()
        } else {
            1
        })),
        logs: Shared::<[f32]>::new_slice(comptime!(CHUNK + 1)),
        beta: Shared::<[f32]>::new_slice(CHUNK),
        resets: Shared::<[f32]>::new_slice(CHUNK),
        state: Shared::<[Four]>::new_slice(comptime!(columns * reverse.stride())),
        d_state: Shared::<[Four]>::new_slice(comptime!(columns * reverse.stride())),
        d_o: Shared::<[f32]>::new_slice(comptime!(columns * STRIDE)),
        written: Shared::<[f32]>::new_slice(comptime!(writes * columns * STRIDE)),
        d_written: Shared::<[f32]>::new_slice(comptime!(writes * columns * STRIDE)),
        p: Shared::<[f32]>::new_slice(comptime!(writes * CHUNK * STRIDE)),
        reads: Shared::<[f32]>::new_slice(comptime!(writes * CHUNK * STRIDE)),
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
        of_head: Shared::<[f32]>::new_slice(comptime!(3 * CHUNK)),
        of_bonus: Shared::<[Four]>::new_slice(bonus),
    }
}

/// Steps of a chunk that a thread takes at a time.
pub(super) const EACH: usize = 4;

/// The level of `q`: the sum of the log decays up to step `i`, or before it where the output reads before the step.
#[cube]
pub(super) fn level_of_q(i: usize, #[comptime] reverse: Reverse) -> usize {
    if comptime!(reverse.bonus) { i } else { i + 1 }
}

/// The level of the vector that reads what is added.
#[cube]
pub(super) fn level_of_a(i: usize, #[comptime] reverse: Reverse) -> usize {
    if comptime!(reverse.erase == Erase::Separate) {
        i
    } else {
        i + 1
    }
}

/// `e^(G - G_j)` of four channels at a level of step `i`, `j ≤ i`; 0 where a reset lies after `j`, up to `i` with it.
#[cube]
pub(super) fn between(
    chunk: &mut Chunk,
    level: usize,
    i: usize,
    j: usize,
    four: usize,
    #[comptime] reverse: Reverse,
) -> Four {
    let mut factor = Four::new(1.0f32);
    if comptime!(reverse.gate == Gate::Head) {
        factor = Four::new((chunk.logs[level] - chunk.logs[j + 1]).exp());
    }
    if comptime!(reverse.gate == Gate::Row) {
        let stride = comptime!(reverse.stride());
        factor =
            (chunk.row_logs[level * stride + four] - chunk.row_logs[(j + 1) * stride + four]).exp();
    }
    if comptime!(reverse.reset) {
        if chunk.resets[i] != chunk.resets[j] {
            factor = Four::new(0.0f32);
        }
    }
    factor
}

/// `e^G` of four channels at a level of step `i`; 0 where a reset lies between the chunk's start and the step.
#[cube]
pub(super) fn from_start(
    chunk: &mut Chunk,
    level: usize,
    i: usize,
    four: usize,
    #[comptime] reverse: Reverse,
) -> Four {
    let mut factor = Four::new(1.0f32);
    if comptime!(reverse.gate == Gate::Head) {
        factor = Four::new(chunk.logs[level].exp());
    }
    if comptime!(reverse.gate == Gate::Row) {
        factor = chunk.row_logs[level * comptime!(reverse.stride()) + four].exp();
    }
    if comptime!(reverse.reset) {
        if chunk.resets[i] != 0.0f32 {
            factor = Four::new(0.0f32);
        }
    }
    factor
}

/// A log decay; NaN where it is positive. What lies below makes 0 in any case.
#[cube]
fn log_decay(g: f32) -> f32 {
    let bounded = select(g < -200.0f32, -200.0f32, g);
    select(g > 0.0f32, f32::NAN, bounded)
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
pub(super) fn load_rows<S: Numeric, W: Size>(
    q: &[Vector<S, W>],
    k: &[Vector<S, W>],
    erase: &[Vector<S, W>],
    write: &[Vector<S, W>],
    g_rows: &[Vector<S, W>],
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
        for at in range_stepped(unit, rows.fours, rows.threads) {
            let mut total = Four::new(0.0f32);
            chunk.row_logs[at] = total;
            for i in 0..CHUNK {
                if i < count {
                    let logs = four::<S, W>(g_rows, row_of(&tile.own, first + i), at * FOUR, rows);
                    #[unroll]
                    for u in 0..FOUR {
                        total.insert(u, total.extract(u) + log_decay(logs.extract(u)));
                    }
                }
                chunk.row_logs[(i + 1) * stride + at] = total;
            }
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
        let (mut total, mut resets) = (0.0f32.runtime(), 0.0f32.runtime());
        for j in 0..(unit + 1).min(count) {
            if comptime!(reverse.gate == Gate::Head) {
                total += log_decay(f32::cast_from(g[row_of(&tile.own, first + j)]));
            }
            if comptime!(reverse.reset) {
                let cut = f32::cast_from(reset[tile.own.sequence * tile.own.steps + first + j]);
                resets += select(cut != 0.0f32, 1.0f32, 0.0f32);
            }
        }
        chunk.logs[unit + 1] = total;
        chunk.resets[unit] = resets;
        if unit == 0 {
            chunk.logs[0] = 0.0f32;
        }
        if comptime!(reverse.erase == Erase::Key) {
            let mut factor = 0.0f32.runtime();
            if unit < count {
                factor = f32::cast_from(beta[row_of(&tile.own, first + unit)]);
            }
            chunk.beta[unit] = factor;
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
