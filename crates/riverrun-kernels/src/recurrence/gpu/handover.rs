//! How the tiles of a chain learn the state before them.
//!
//! Tiles of one column are taken in groups of `planes · share`. A tile first publishes its own affine map;
//! then it folds the maps of the tiles before it in its group, in order; then it needs the state after the
//! group before, which that group's last tile publishes. So the chain has one hop a group, not one a tile,
//! and the order of every product and sum is fixed: results are bit-equal from run to run.
//!
//! **Order in memory.** Data is written, then [`sync_storage`] (a release and an acquire at device scope),
//! then a flag is raised by an atomic; a reader sees the flag, then `sync_storage`, then reads.
//! **Flags** carry the number of the launch (`epoch`), so nothing has to be cleared between launches.
//! **Bound.** A wait ends after `spins` polls: the tile then takes NaN for its state, raises the fault word,
//! and goes on, so that no launch can hang and no wrong number can pass for a right one.

use cubecl::prelude::*;

use super::chained::LANES;
use super::tile::*;

/// Words before the flags: the ticket and the fault.
pub(super) const CONTROL_WORDS: usize = 2;

/// What tells this launch's flags from older ones, and how long to wait for them. The words themselves
/// are: the ticket, the fault, a flag a tile, a flag a group and column.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Watch {
    pub epoch: u32,
    pub spins: u32,
}

/// A tile's place.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Place {
    pub chunk: usize,
    pub chunks: usize,
    pub tile: usize,
    pub tiles: usize,
    pub batch: usize,
    pub col: usize,
    pub first: usize,
    pub inside: bool,
    pub exists: bool,
}

/// The cube's number in order of starting. The last one puts the ticket back to zero for the next launch.
#[cube]
pub(super) fn draw_ticket(flags: &mut [Atomic<u32>]) -> usize {
    let mut ticket = Shared::<u32>::new();
    if UNIT_POS == 0 {
        let drawn = flags[0].fetch_add(1u32);
        *ticket = drawn;
        if drawn as usize + 1 == CUBE_COUNT {
            flags[0].store(0u32);
        }
    }
    sync_cube();
    *ticket as usize
}

/// Waits for a flag; returns its low bit ("the run holds a reset"), or 2 when the wait gave up.
#[cube]
fn wait(flags: &mut [Atomic<u32>], watch: &Watch, index: usize) -> u32 {
    let mut seen = flags[index].load();
    let mut polls = 0u32;
    while seen >> 1u32 != watch.epoch && polls < watch.spins {
        seen = flags[index].load();
        polls += 1;
    }
    let mut answer = seen & 1u32;
    if seen >> 1u32 != watch.epoch {
        flags[1].store(1u32);
        answer = 2u32;
    }
    answer
}

/// The planes' runs of a lane, one after another.
#[cube]
fn fold<N: Size>(
    a: &[Vector<f32, N>],
    h: &[Vector<f32, N>],
    cut: &[u32],
    lane: usize,
    #[comptime] planes: usize,
) -> Run<N> {
    let mut all_a = Vector::<f32, N>::new(1.0f32);
    let mut all_h = Vector::<f32, N>::new(0.0f32);
    let mut all_cut = 0u32;
    #[unroll]
    for p in 0..planes {
        let i = p * LANES + lane;
        let next = run_then::<N>(
            &Run::<N> {
                a: all_a,
                h: all_h,
                cut: all_cut,
            },
            &Run::<N> {
                a: a[i],
                h: h[i],
                cut: cut[p],
            },
        );
        all_a = next.a;
        all_h = next.h;
        all_cut = next.cut;
    }
    Run::<N> {
        a: all_a,
        h: all_h,
        cut: all_cut,
    }
}

/// The state before this unit's own steps, from the run of those steps and the state before all.
#[cube]
pub(super) fn hand_over<N: Size>(
    run: Run<N>,
    start: Vector<f32, N>,
    at: &Place,
    flags: &mut [Atomic<u32>],
    watch: &Watch,
    maps: &mut [Vector<f32, N>],
    states: &mut [Vector<f32, N>],
    #[comptime] planes: usize,
    #[comptime] share: usize,
) -> Vector<f32, N> {
    let lane = UNIT_POS_X as usize;
    let plane = UNIT_POS_Y as usize;
    let group_len = comptime!(planes * share);
    let group = at.chunk / group_len;
    let place = at.chunk % group_len;
    let slot = at.tile * LANES + lane;
    let row = at.tiles * LANES;
    let group_flags = comptime!(CONTROL_WORDS) + at.chunks * at.tiles;

    let mut run_a = Shared::<[Vector<f32, N>]>::new_slice(comptime!(planes * LANES));
    let mut run_h = Shared::<[Vector<f32, N>]>::new_slice(comptime!(planes * LANES));
    let mut run_cut = Shared::<[u32]>::new_slice(planes);
    let mut before_a = Shared::<[Vector<f32, N>]>::new_slice(comptime!(planes * LANES));
    let mut before_h = Shared::<[Vector<f32, N>]>::new_slice(comptime!(planes * LANES));
    let mut before_cut = Shared::<[u32]>::new_slice(planes);
    let mut tile_cut = Shared::<[u32]>::new_slice(group_len);
    let mut carry = Shared::<[Vector<f32, N>]>::new_slice(LANES);
    let mut failed = Shared::<u32>::new();

    run_a[UNIT_POS as usize] = run.a;
    run_h[UNIT_POS as usize] = run.h;
    if lane == 0 {
        run_cut[plane] = run.cut;
    }
    if UNIT_POS == 0 {
        *failed = 0u32;
    }
    sync_cube();

    // The tile's own map: published for the later tiles of the group, kept by plane 0 for the last one.
    let own = fold::<N>(&run_a, &run_h, &run_cut, lane, planes);
    if plane == 0 {
        let i = (at.chunk * 2) * row + slot;
        maps[i] = own.a;
        maps[i + row] = own.h;
    }
    sync_storage();
    if UNIT_POS == 0 {
        flags[comptime!(CONTROL_WORDS) + at.chunk * at.tiles + at.tile]
            .store(watch.epoch << 1u32 | own.cut);
    }
    // One unit waits for one tile.
    if (UNIT_POS as usize) < place {
        let tile = at.chunk - place + UNIT_POS as usize;
        let answer = wait(
            flags,
            watch,
            comptime!(CONTROL_WORDS) + tile * at.tiles + at.tile,
        );
        tile_cut[UNIT_POS as usize] = answer & 1u32;
        if answer == 2 {
            *failed = 1u32;
        }
    }
    sync_storage();

    // Each plane folds `share` of the tiles before; plane 0 then folds the planes' results.
    let mut part_a = Vector::<f32, N>::new(1.0f32);
    let mut part_h = Vector::<f32, N>::new(0.0f32);
    let mut part_cut = 0u32;
    #[unroll]
    for s in 0..share {
        let k = plane * share + s;
        if k < place {
            let i = ((at.chunk - place + k) * 2) * row + slot;
            let next = run_then::<N>(
                &Run::<N> {
                    a: part_a,
                    h: part_h,
                    cut: part_cut,
                },
                &Run::<N> {
                    a: maps[i],
                    h: maps[i + row],
                    cut: tile_cut[k],
                },
            );
            part_a = next.a;
            part_h = next.h;
            part_cut = next.cut;
        }
    }
    before_a[UNIT_POS as usize] = part_a;
    before_h[UNIT_POS as usize] = part_h;
    if lane == 0 {
        before_cut[plane] = part_cut;
    }
    sync_cube();
    let before = fold::<N>(&before_a, &before_h, &before_cut, lane, planes);
    // The state after the group before.
    if group > 0 && UNIT_POS == 0 {
        if wait(flags, watch, group_flags + (group - 1) * at.tiles + at.tile) == 2 {
            *failed = 1u32;
        }
    }
    sync_storage();
    if plane == 0 {
        let mut state = start;
        if group > 0 {
            state = states[(group - 1) * row + slot];
        }
        state = run_through::<N>(&before, state);
        if *failed != 0 {
            state = Vector::new(f32::NAN);
        }
        carry[lane] = state;
        if place + 1 == group_len {
            states[group * row + slot] = run_through::<N>(&own, state);
        }
    }
    sync_storage();
    if place + 1 == group_len && UNIT_POS == 0 {
        flags[group_flags + group * at.tiles + at.tile].store(watch.epoch << 1u32);
    }

    let mut state = carry[lane];
    for p in 0..plane {
        let i = p * LANES + lane;
        state = run_through::<N>(
            &Run::<N> {
                a: run_a[i],
                h: run_h[i],
                cut: run_cut[p],
            },
            state,
        );
    }
    state
}
