//! How the tiles of a chain learn the state before them.
//!
//! **Chain.** With `lookback = 0`, each tile waits for the state after the tile before it in time and passes its own
//! on: one hop a tile. **Groups.** Where lanes are few, the hops would be the time. So with `lookback > 0`, tiles are
//! taken in groups of `planes · lookback`; each publishes its affine map at once, folds the maps of the tiles before it
//! in its group, and only then needs the state after the group before: one hop a group. Either way the order of every
//! product and sum is fixed, and results are bit-equal from run to run. Maps are composed in `f32`: where the factors of a
//! whole tile, or with groups of a whole group, multiply to more than `f32` holds, the state after it is infinite or NaN, even
//! if it was 0 before.
//!
//! **Words.** What tiles hand over are 64-bit words, written and read whole: a number and a tag. The tag is the number
//! of the launch (`epoch`) and one bit for "the run holds a reset". A word is there when its tag is this launch's, so
//! there is nothing to clear between launches and no order between words to enforce.
//!
//! **Bound.** A wait ends after [`PATIENCE`], by the device's clock where the device runs PTX and after [`POLLS`] polls
//! elsewhere: the state is then NaN and the fault word is raised, so no launch hangs and no wrong number passes for a
//! right one ([`take_fault`](crate::gpu::take_fault)).

use cubecl::prelude::*;

use super::buffers::HandoverWords;
use super::tile::*;
use crate::gpu::fault::{PATIENCE, nanoseconds};

/// Threads a plane, as the kernels lay them out; nothing in them depends on the hardware's plane size.
pub(super) const LANES: usize = 32;

/// Polls between two looks at the clock; a power of two.
const CHECK: u32 = 1 << 12;

/// Polls that a wait may take where there is no clock: seconds.
const POLLS: u32 = 1 << 24;

/// A tile among those of the launch, and the steps of this thread in it.
#[derive(CubeType, Clone, Copy)]
pub(super) struct TilePosition {
    pub chunk: usize,
    pub chunks: usize,
    pub tile: usize,
    pub tiles: usize,
    pub place: Place,
    pub exists: bool,
}

/// The cube's number in order of starting. The last one puts the ticket back to zero for the next launch.
#[cube]
pub(super) fn draw_ticket(ticket: &mut [Atomic<u32>]) -> u32 {
    let mut own = Shared::<u32>::new();
    if UNIT_POS == 0 {
        let drawn = ticket[0].fetch_add(1u32);
        *own = drawn;
        if drawn as usize + 1 == CUBE_COUNT {
            ticket[0].store(0u32);
        }
    }
    sync_cube();
    *own
}

/// Publishes a vector, a word for each channel.
#[cube]
fn publish<N: Size>(
    words: &mut [Atomic<u64>],
    at: usize,
    value: Vector<f32, N>,
    epoch: u32,
    cut: u32,
) {
    let tag = u64::cast_from(epoch << 1u32 | cut);
    #[unroll]
    for i in 0..N::value() {
        let bits = u64::cast_from(u32::reinterpret(value.extract(i)));
        words[at * N::value() + i].store(bits << 32u64 | tag);
    }
}

/// A received vector and its "holds a reset" bit.
#[derive(CubeType, Clone, Copy)]
struct Received<N: Size> {
    value: Vector<f32, N>,
    cut: u32,
}

/// Waits for a published vector.
#[cube]
fn receive<N: Size>(
    words: &mut [Atomic<u64>],
    fault: &mut [Atomic<u32>],
    at: usize,
    epoch: u32,
    #[comptime] ptx: bool,
) -> Received<N> {
    let mut value = Vector::<f32, N>::new(0.0f32);
    let mut cut = 0u32;
    let mut there = false;
    let mut polls = 0u32;
    let mut since = 0u64;
    while !there {
        there = true;
        #[unroll]
        for i in 0..N::value() {
            let word = words[at * N::value() + i].load();
            let tag = u32::cast_from(word);
            there = there && tag >> 1u32 == epoch;
            cut = tag & 1u32;
            value.insert(i, f32::reinterpret(u32::cast_from(word >> 32u64)));
        }
        polls += 1;
        if !there && polls % CHECK == 0u32 {
            let mut late = polls >= POLLS;
            if comptime!(ptx) {
                let now = nanoseconds();
                if since == 0u64 {
                    since = now;
                }
                late = now - since > PATIENCE;
            }
            if late {
                fault[0].store(1u32);
                value = Vector::new(f32::NAN);
                there = true;
            }
        }
    }
    Received::<N> { value, cut }
}

/// The planes' runs of a lane, one after another. With `prefixes`, the run of the planes before each takes its place.
#[cube]
fn fold<N: Size>(
    a: &mut [Vector<f32, N>],
    h: &mut [Vector<f32, N>],
    cut: &[u32],
    cut_before: &mut [u32],
    lane: usize,
    #[comptime] planes: usize,
    #[comptime] prefixes: bool,
    #[comptime] resets: bool,
) -> Run<N> {
    let mut all_a = Vector::<f32, N>::new(1.0f32);
    let mut all_h = Vector::<f32, N>::new(0.0f32);
    let mut all_cut = 0u32;
    #[unroll]
    for p in 0..planes {
        let i = p * LANES + lane;
        let before = Run::<N> {
            a: all_a,
            h: all_h,
            cut: all_cut,
        };
        let own = Run::<N> {
            a: a[i],
            h: h[i],
            cut: cut[p],
        };
        if comptime!(prefixes) {
            a[i] = all_a;
            h[i] = all_h;
            if comptime!(resets) && lane == 0 {
                cut_before[p] = all_cut;
            }
        }
        let next = run_then::<N>(&before, &own, resets);
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

/// The state before this thread's own steps, from their composed map and the state before the sequence.
#[cube]
pub(super) fn hand_over<N: Size>(
    run: Run<N>,
    start: Vector<f32, N>,
    at: &TilePosition,
    handover: &mut HandoverWords,
    epoch: u32,
    #[comptime] planes: usize,
    #[comptime] lookback: usize,
    #[comptime] config: Config,
) -> Vector<f32, N> {
    let resets = comptime!(config.reset);
    let ptx = comptime!(config.ptx);
    let words = &mut handover.words;
    let fault = &mut handover.fault;
    let lane = UNIT_POS_X as usize;
    let plane = UNIT_POS_Y as usize;
    let group_len = comptime!(if lookback == 0 { 1 } else { planes * lookback });
    let group = at.chunk / group_len;
    let place = at.chunk % group_len;
    let slot = at.tile * LANES + lane;
    let row = at.tiles * LANES;
    // States come first, one row a group; then maps, two rows a tile.
    let maps = at.chunks.div_ceil(group_len) * row;

    let mut run_a = Shared::<[Vector<f32, N>]>::new_slice(comptime!(planes * LANES));
    let mut run_h = Shared::<[Vector<f32, N>]>::new_slice(comptime!(planes * LANES));
    let mut run_cut = Shared::<[u32]>::new_slice(planes);
    let mut cut_before = Shared::<[u32]>::new_slice(planes);
    let mut carry = Shared::<[Vector<f32, N>]>::new_slice(LANES);
    run_a[UNIT_POS as usize] = run.a;
    run_h[UNIT_POS as usize] = run.h;
    if lane == 0 {
        run_cut[plane] = run.cut;
    }
    sync_cube();

    let mut own_a = Vector::<f32, N>::new(1.0f32);
    let mut own_h = Vector::<f32, N>::new(0.0f32);
    let mut own_cut = 0u32;
    if plane == 0 {
        let own = fold::<N>(
            &mut run_a,
            &mut run_h,
            &run_cut,
            &mut cut_before,
            lane,
            planes,
            true,
            resets,
        );
        own_a = own.a;
        own_h = own.h;
        own_cut = own.cut;
    }
    let mut before_a = Vector::<f32, N>::new(1.0f32);
    let mut before_h = Vector::<f32, N>::new(0.0f32);
    let mut before_cut = 0u32;
    if comptime!(lookback > 0) {
        if plane == 0 && place + 1 < group_len {
            let i = maps + at.chunk * 2 * row + slot;
            publish::<N>(words, i, own_a, epoch, own_cut);
            publish::<N>(words, i + row, own_h, epoch, own_cut);
        }
        // Each plane folds `lookback` of the tiles before; plane 0 then folds the planes' results.
        let mut part_a = Vector::<f32, N>::new(1.0f32);
        let mut part_h = Vector::<f32, N>::new(0.0f32);
        let mut part_cut = 0u32;
        #[unroll]
        for s in 0..lookback {
            let k = plane * lookback + s;
            if k < place {
                let i = maps + (at.chunk - place + k) * 2 * row + slot;
                let a = receive::<N>(words, fault, i, epoch, ptx);
                let h = receive::<N>(words, fault, i + row, epoch, ptx);
                let next = run_then::<N>(
                    &Run::<N> {
                        a: part_a,
                        h: part_h,
                        cut: part_cut,
                    },
                    &Run::<N> {
                        a: a.value,
                        h: h.value,
                        cut: h.cut,
                    },
                    resets,
                );
                part_a = next.a;
                part_h = next.h;
                part_cut = next.cut;
            }
        }
        let mut parts_a = Shared::<[Vector<f32, N>]>::new_slice(comptime!(planes * LANES));
        let mut parts_h = Shared::<[Vector<f32, N>]>::new_slice(comptime!(planes * LANES));
        let mut parts_cut = Shared::<[u32]>::new_slice(planes);
        parts_a[UNIT_POS as usize] = part_a;
        parts_h[UNIT_POS as usize] = part_h;
        if lane == 0 {
            parts_cut[plane] = part_cut;
        }
        sync_cube();
        if plane == 0 {
            let before = fold::<N>(
                &mut parts_a,
                &mut parts_h,
                &parts_cut,
                &mut cut_before,
                lane,
                planes,
                false,
                resets,
            );
            before_a = before.a;
            before_h = before.h;
            before_cut = before.cut;
        }
    }
    if plane == 0 {
        let mut state = start;
        if group > 0 {
            state = receive::<N>(words, fault, (group - 1) * row + slot, epoch, ptx).value;
        }
        if comptime!(lookback > 0) {
            state = run_through::<N>(
                &Run::<N> {
                    a: before_a,
                    h: before_h,
                    cut: before_cut,
                },
                state,
                resets,
            );
        }
        if place + 1 == group_len {
            let after = run_through::<N>(
                &Run::<N> {
                    a: own_a,
                    h: own_h,
                    cut: own_cut,
                },
                state,
                resets,
            );
            publish::<N>(words, group * row + slot, after, epoch, 0u32);
        }
        carry[lane] = state;
    }
    sync_cube();
    // One step for every plane, however many are before it.
    let i = UNIT_POS as usize;
    run_through::<N>(
        &Run::<N> {
            a: run_a[i],
            h: run_h[i],
            cut: cut_before[plane],
        },
        carry[lane],
        resets,
    )
}
