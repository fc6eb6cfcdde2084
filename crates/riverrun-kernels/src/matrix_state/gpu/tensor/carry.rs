//! From segment to segment of a long sequence.

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::Form;
use super::chunks::Chunks;
use super::segments::Segments;
use super::tile::Sums;
use crate::gpu::buffer;
use crate::gpu::buffer::grid;
use crate::matrix_state::Problem;

/// What a pass over the segments found, all `f32`.
pub(super) struct Ends {
    /// `B` or `E`: `[.., K, V]`.
    pub states: Handle,
    /// `A`: `[.., K, K]`.
    pub maps: Handle,
}

impl Ends {
    pub fn new(client: &Client, problem: &Problem, segments: Segments) -> Self {
        let (shape, pieces) = (problem.shape, segments.pieces(problem));
        Self {
            states: client.empty(4 * pieces * shape.key * shape.value),
            maps: client.empty(4 * pieces * shape.key * shape.key),
        }
    }
}

/// Columns of a state that a cube carries.
const COLUMNS: usize = 8;

/// A cube takes some columns of a head, a row a thread. `starts`: the state before every segment or, in `reverse`, its gradient after
/// every one.
#[cube(launch_unchecked, address_type = "dynamic")]
fn carry(
    maps: &[Sums],
    ends: &[Sums],
    given: &[Sums],
    starts: &mut [Sums],
    segments: usize,
    cubes: usize,
    #[comptime] form: Form,
    #[comptime] reverse: bool,
) {
    if CUBE_POS >= cubes {
        terminate!();
    }
    let (key, value) = comptime!((form.key, form.value));
    // In vectors of four numbers: the cube's columns, and a row of a map.
    let (columns, length) = comptime!((COLUMNS / 4, key / 4));
    let mut before = Shared::<[Sums]>::new_slice(comptime!(key * columns));
    let mut map = Shared::<[f32]>::new_slice(comptime!(key * (key + 1)));
    let tiles = comptime!(value / COLUMNS);
    let (lane, column) = (CUBE_POS / tiles, CUBE_POS % tiles * columns);
    let row = UNIT_POS as usize;
    let own = row * comptime!(value / 4) + column;
    let mut state = Array::<Sums>::new(columns);
    #[unroll]
    for n in 0..columns {
        state[n] = Sums::new(0.0f32);
        if comptime!(form.state) {
            state[n] = given[lane * comptime!(key * value / 4) + own + n];
        }
    }
    for n in 0..segments {
        let segment = if comptime!(reverse) {
            segments - 1 - n
        } else {
            n
        };
        let piece = lane * segments + segment;
        let at = piece * comptime!(key * value / 4) + own;
        let first = piece * comptime!(key * length) + row;
        sync_cube();
        // The threads share out the vectors of the map.
        #[unroll]
        for i in 0..length {
            let four = maps[first + comptime!(i * key)];
            let place = row + comptime!(i * key);
            let to = place / length * comptime!(key + 1) + place % length * 4;
            #[unroll]
            for j in 0..4usize {
                map[to + j] = four.extract(j);
            }
        }
        #[unroll]
        for n in 0..columns {
            starts[at + n] = state[n];
            before[row * columns + n] = state[n];
            state[n] = ends[at + n];
        }
        sync_cube();
        for i in 0..key {
            let weight = if comptime!(reverse) {
                map[i * comptime!(key + 1) + row]
            } else {
                map[row * comptime!(key + 1) + i]
            };
            #[unroll]
            for n in 0..columns {
                state[n] = fma(Sums::new(weight), before[i * columns + n], state[n]);
            }
        }
    }
}

/// Computes the states before the segments from the one `given` before the first, or from zeros; in `reverse` their gradients after
/// the segments from that after the last.
pub(super) fn starts(
    client: &Client,
    problem: &Problem,
    chunks: &Chunks,
    ends: &Ends,
    given: Option<&Handle>,
    segments: Segments,
    form: Form,
    reverse: bool,
) -> Handle {
    let (shape, pieces) = (problem.shape, segments.pieces(problem));
    let (of_states, of_maps) = (
        pieces * shape.key * shape.value,
        pieces * shape.key * shape.key,
    );
    let starts = client.empty(4 * of_states);
    let cubes = shape.states() * shape.value / COLUMNS;
    let form = Form {
        state: given.is_some(),
        ..form
    };
    // SAFETY: the buffers have been made for the shape, and cubes past the last end at once.
    unsafe {
        carry::launch_unchecked(
            client,
            grid(client, cubes),
            CubeDim::new_1d(shape.key as u32),
            chunks.addresses,
            buffer(&ends.maps, of_maps, 4),
            buffer(&ends.states, of_states, 4),
            match given {
                Some(given) => buffer(given, shape.state(), 4),
                None => chunks.stand_in(),
            },
            buffer(&starts, of_states, 4),
            segments.count,
            cubes,
            form,
            reverse,
        );
    }
    starts
}
