//! Forward: the state of a head lies in registers, a column to a few neighbouring threads, and walks the steps.

use cubecl::prelude::*;

use super::plan::{CHUNK, Walk};
use super::staged::*;
use crate::matrix_state::{Erase, Gate};

/// Sizes that are known at launch.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(super) struct Sizes {
    pub steps: usize,
    pub heads: usize,
    pub key_heads: usize,
    /// Tiles of columns of all heads of all sequences.
    pub tiles: usize,
}

/// The sum over the threads of a column.
#[cube]
fn meet(x: f32, #[comptime] parts: usize) -> f32 {
    let mut y = x;
    // As in `gpu::group`.
    if comptime!(parts > 1) {
        sync_plane();
    }
    #[unroll]
    for i in 0..comptime!(parts.ilog2() as usize) {
        y += plane_shuffle_xor(y, comptime!(1u32 << i));
    }
    y
}

/// The vector of a head's rows that is the `i`-th of a thread.
#[cube]
fn mine(i: usize, part: usize, #[comptime] walk: Walk) -> usize {
    i * comptime!(walk.parts) + part
}

/// Scalars of a tile of steps in shared memory.
#[cube]
fn put_scalars<F: Numeric>(
    x: &[F],
    shared: &mut [f32],
    lane: &Lane,
    first: usize,
    #[comptime] count: usize,
    #[comptime] decays: bool,
) {
    let t = UNIT_POS_X as usize;
    if t < count {
        let value = f32::cast_from(x[row_of(lane, first + t)]);
        if comptime!(decays) {
            shared[t] = decay(value);
        } else {
            shared[t] = value;
        }
    }
}

/// Steps of a staged tile that are one block of code.
const UNROLLED: usize = 4;

/// A tile of steps in shared memory.
#[derive(CubeType)]
struct Tile {
    q: Shared<[Four]>,
    k: Shared<[Four]>,
    a: Shared<[Four]>,
    b: Shared<[Four]>,
    g: Shared<[Four]>,
    v: Shared<[f32]>,
    decays: Shared<[f32]>,
    beta: Shared<[f32]>,
    reset: Shared<[f32]>,
}

/// The part of a column that a thread has.
#[derive(CubeType, Clone, Copy)]
struct Place {
    part: usize,
    column: usize,
    /// Whether the thread writes the column's outputs.
    writes: bool,
}

/// A step of a thread's part of a column; its output goes to `o[o_at]`.
#[cube]
fn step<F: Numeric>(
    s: &mut Array<Four>,
    extra: &Array<Four>,
    tile: &Tile,
    t: usize,
    o: &mut [F],
    o_at: usize,
    place: &Place,
    #[comptime] walk: Walk,
) {
    let fours = comptime!(walk.rows.fours);
    let each = comptime!(fours / walk.parts);

    if comptime!(walk.reset) {
        if tile.reset[t] != 0.0f32 {
            #[unroll]
            for i in 0..each {
                s[i] = Four::new(0.0f32);
            }
        }
    }
    let base = t * fours + place.part;
    let value = tile.v[t * walk.columns + place.column];
    let mut erased = Four::new(0.0f32);
    let mut read = Four::new(0.0f32);
    let mut factor = Four::new(1.0f32);
    if comptime!(walk.gate == Gate::Head) {
        factor = Four::new(tile.decays[t]);
    }
    if comptime!(walk.bonus) {
        if comptime!(walk.outputs) {
            #[unroll]
            for i in 0..each {
                let at = base + comptime!(i * walk.parts);
                let own = fma(extra[i] * tile.k[at], Four::new(value), s[i]);
                read = fma(tile.q[at], own, read);
            }
        }
    }
    #[unroll]
    for i in 0..each {
        let at = base + comptime!(i * walk.parts);
        if comptime!(walk.erase == Erase::Separate) {
            erased = fma(tile.a[at], s[i], erased);
        }
        if comptime!(walk.gate == Gate::Row) {
            factor = tile.g[at];
        }
        if comptime!(walk.gate != Gate::None) {
            s[i] *= factor;
        }
        if comptime!(walk.erase == Erase::Key) {
            erased = fma(tile.k[at], s[i], erased);
        }
        if comptime!(walk.erase == Erase::Free) {
            erased = fma(tile.a[at], s[i], erased);
        }
    }
    let mut u = value;
    let mut added = 0.0f32;
    if comptime!(walk.erase != Erase::None) {
        let erased = meet(sum(erased), walk.parts);
        if comptime!(walk.erase == Erase::Separate) {
            added = erased;
        } else {
            u -= erased;
            if comptime!(walk.erase == Erase::Key) {
                u *= tile.beta[t];
            }
        }
    }
    #[unroll]
    for i in 0..each {
        let at = base + comptime!(i * walk.parts);
        s[i] = fma(tile.k[at], Four::new(u), s[i]);
        if comptime!(walk.erase == Erase::Separate) {
            s[i] = fma(tile.b[at], Four::new(added), s[i]);
        }
    }
    if comptime!(walk.outputs) {
        if comptime!(!walk.bonus) {
            #[unroll]
            for i in 0..each {
                read = fma(tile.q[base + comptime!(i * walk.parts)], s[i], read);
            }
        }
        let read = meet(sum(read), walk.parts);
        if place.writes {
            o[o_at] = F::cast_from(read);
        }
    }
}

/// A cube takes a tile of the columns of a head.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn walk_forward<S: Numeric, F: Numeric, W: Size>(
    q: &[Vector<S, W>],
    k: &[Vector<S, W>],
    v: &[F],
    g_rows: &[Vector<S, W>],
    g: &[F],
    beta: &[F],
    erase: &[Vector<S, W>],
    write: &[Vector<S, W>],
    bonus: &[Vector<S, W>],
    state: &[f32],
    reset: &[F],
    o: &mut [F],
    last: &mut [f32],
    states: &mut [Four],
    sizes: Sizes,
    #[comptime] walk: Walk,
    #[define(S)] _storage: ElemType,
    #[define(F)] _dtype: ElemType,
) {
    if CUBE_POS >= sizes.tiles {
        terminate!();
    }
    let rows = comptime!(walk.rows);
    let (tile, fours, columns) = comptime!((rows.count, rows.fours, walk.columns));
    let each = comptime!(fours / walk.parts);
    let staged = comptime!(tile * fours);
    let mut shared = Tile {
        q: Shared::<[Four]>::new_slice(staged),
        k: Shared::<[Four]>::new_slice(staged),
        a: Shared::<[Four]>::new_slice(comptime!(walk.staged(walk.has_erase()))),
        b: Shared::<[Four]>::new_slice(comptime!(walk.staged(walk.erase == Erase::Separate))),
        g: Shared::<[Four]>::new_slice(comptime!(walk.staged(walk.gate == Gate::Row))),
        v: Shared::<[f32]>::new_slice(comptime!(tile * columns)),
        decays: Shared::<[f32]>::new_slice(tile),
        beta: Shared::<[f32]>::new_slice(tile),
        reset: Shared::<[f32]>::new_slice(tile),
    };

    let tiles = comptime!(walk.value.div_ceil(columns));
    let lane_number = CUBE_POS / tiles;
    let head = lane_number % sizes.heads;
    let own = Lane {
        sequence: lane_number / sizes.heads,
        head,
        heads: sizes.heads,
        steps: sizes.steps,
    };
    let keys = Lane {
        sequence: own.sequence,
        head: head / (sizes.heads / sizes.key_heads),
        heads: sizes.key_heads,
        steps: sizes.steps,
    };
    let single = Lane {
        sequence: own.sequence,
        head: 0,
        heads: 1,
        steps: sizes.steps,
    };
    let (part, column) = (
        UNIT_POS_X as usize % walk.parts,
        UNIT_POS_X as usize / walk.parts,
    );
    let first_column = CUBE_POS % tiles * columns;
    let col = first_column + column;
    let live = col < walk.value;
    let safe = col.min(comptime!(walk.value - 1));

    let place = Place {
        part,
        column,
        writes: part == 0 && live,
    };
    let mut s = Array::<Four>::new(each);
    #[unroll]
    for i in 0..each {
        let mut start = Four::new(0.0f32);
        if comptime!(walk.state) {
            let c = mine(i, part, walk) * FOUR;
            #[unroll]
            for u in 0..FOUR {
                let row = lane_number * walk.key + (c + u).min(comptime!(walk.key - 1));
                start.insert(
                    u,
                    select(c + u < walk.key, state[row * walk.value + safe], 0.0f32),
                );
            }
        }
        s[i] = start;
    }
    let mut extra = Array::<Four>::new(comptime!(if walk.bonus { each } else { 1 }));
    if comptime!(walk.bonus) {
        #[unroll]
        for i in 0..each {
            extra[i] = four::<S, W>(bonus, head, mine(i, part, walk) * FOUR, rows);
        }
    }
    clear(&mut shared.q, staged, rows.threads);
    clear(&mut shared.k, staged, rows.threads);
    clear(
        &mut shared.a,
        comptime!(walk.staged(walk.has_erase())),
        rows.threads,
    );
    clear(
        &mut shared.b,
        comptime!(walk.staged(walk.erase == Erase::Separate)),
        rows.threads,
    );
    clear(
        &mut shared.g,
        comptime!(walk.staged(walk.gate == Gate::Row)),
        rows.threads,
    );

    let held = comptime!(rows.held());
    let mut q_r = Array::<Vector<S, W>>::new(held);
    let mut k_r = Array::<Vector<S, W>>::new(held);
    let mut a_r = Array::<Vector<S, W>>::new(held);
    let mut b_r = Array::<Vector<S, W>>::new(held);
    let mut g_r = Array::<Vector<S, W>>::new(held);
    let values = comptime!((tile * columns).div_ceil(rows.threads));
    let mut v_r = Array::<F>::new(values);
    for n in 0..sizes.steps.div_ceil(tile) + 1 {
        // The tile that was read in the last round goes to shared memory, and the next is read while this one is computed.
        let first = n * tile;
        if n > 0 {
            sync_cube();
            put::<S, W>(&q_r, &mut shared.q, false, rows);
            put::<S, W>(&k_r, &mut shared.k, false, rows);
            if comptime!(walk.has_erase()) {
                put::<S, W>(&a_r, &mut shared.a, false, rows);
            }
            if comptime!(walk.erase == Erase::Separate) {
                put::<S, W>(&b_r, &mut shared.b, false, rows);
            }
            if comptime!(walk.gate == Gate::Row) {
                put::<S, W>(&g_r, &mut shared.g, true, rows);
            }
            #[unroll]
            for u in 0..values {
                let n = UNIT_POS_X as usize + comptime!(u * rows.threads);
                if n < comptime!(tile * columns) {
                    shared.v[n] = f32::cast_from(v_r[u]);
                }
            }
            let before = first - tile;
            if comptime!(walk.gate == Gate::Head) {
                put_scalars::<F>(g, &mut shared.decays, &own, before, tile, true);
            }
            if comptime!(walk.erase == Erase::Key) {
                put_scalars::<F>(beta, &mut shared.beta, &own, before, tile, false);
            }
            if comptime!(walk.reset) {
                put_scalars::<F>(reset, &mut shared.reset, &single, before, tile, false);
            }
            sync_cube();
        }
        if first < sizes.steps {
            fetch::<S, W>(q, &mut q_r, &keys, first, rows);
            fetch::<S, W>(k, &mut k_r, &keys, first, rows);
            if comptime!(walk.has_erase()) {
                fetch::<S, W>(erase, &mut a_r, &own, first, rows);
            }
            if comptime!(walk.erase == Erase::Separate) {
                fetch::<S, W>(write, &mut b_r, &own, first, rows);
            }
            if comptime!(walk.gate == Gate::Row) {
                fetch::<S, W>(g_rows, &mut g_r, &own, first, rows);
            }
            #[unroll]
            for u in 0..values {
                let n = UNIT_POS_X as usize + comptime!(u * rows.threads);
                let row = row_of(&own, first + n / columns) * walk.value;
                v_r[u] = v[row + (first_column + n % columns).min(comptime!(walk.value - 1))];
            }
        }
        if n > 0 {
            let before = first - tile;
            if comptime!(!walk.outputs) {
                if before % CHUNK == 0 && live {
                    let chunks = sizes.steps.div_ceil(CHUNK);
                    let start = (lane_number * chunks + before / CHUNK) * walk.value + col;
                    #[unroll]
                    for i in 0..each {
                        states[start * fours + mine(i, part, walk)] = s[i];
                    }
                }
            }
            let left = sizes.steps - before;
            if left >= tile {
                for group in 0..comptime!(tile / UNROLLED) {
                    #[unroll]
                    for u in 0..UNROLLED {
                        let t = group * UNROLLED + u;
                        let o_row = row_of(&own, before + t) * walk.value + col;
                        step::<F>(&mut s, &extra, &shared, t, o, o_row, &place, walk);
                    }
                }
            } else {
                for t in 0..left {
                    let o_row = row_of(&own, before + t) * walk.value + col;
                    step::<F>(&mut s, &extra, &shared, t, o, o_row, &place, walk);
                }
            }
        }
    }
    if comptime!(walk.outputs) {
        #[unroll]
        for i in 0..each {
            let c = mine(i, part, walk) * FOUR;
            #[unroll]
            for u in 0..FOUR {
                if c + u < walk.key && live {
                    last[(lane_number * walk.key + c + u) * walk.value + col] = s[i].extract(u);
                }
            }
        }
    }
}
