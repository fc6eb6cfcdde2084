//! Rows of the inputs on their way through registers to shared memory, where they are vectors of four `f32`.

use cubecl::prelude::*;

use crate::gpu::storage::{Storage, widen};

/// Channels in a vector.
pub(super) const FOUR: usize = 4;

/// Four neighbouring channels.
pub(super) type Four = Vector<f32, Const<4>>;

/// How the rows of a tensor are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Rows {
    /// Channels of a row.
    pub len: usize,
    /// Vectors of a row in shared memory; past the end of the row they are 0.
    pub fours: usize,
    /// Rows that are staged at a time.
    pub count: usize,
    /// Threads that stage them.
    pub threads: usize,
    /// The buffer is seen as vectors of four channels; else of one.
    pub wide: bool,
    pub storage: Storage,
}

impl Rows {
    /// Vectors that the rows have in the buffer.
    fn present(self) -> usize {
        self.len.div_ceil(FOUR)
    }

    /// Vectors that a thread stages.
    fn each(self) -> usize {
        (self.count * self.present()).div_ceil(self.threads)
    }

    /// Elements of the buffer in such a vector.
    fn parts(self) -> usize {
        if self.wide { 1 } else { FOUR }
    }

    /// Elements of the buffer that a thread holds.
    pub fn held(self) -> usize {
        self.each() * self.parts()
    }
}

/// The rows of one head in a tensor `[B, T, heads, ..]`.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Lane {
    pub sequence: usize,
    pub head: usize,
    pub heads: usize,
    pub steps: usize,
}

/// The row of a step; that of the last step for a later one.
#[cube]
pub(super) fn row_of(lane: &Lane, t: usize) -> usize {
    (lane.sequence * lane.steps + t.min(lane.steps - 1)) * lane.heads + lane.head
}

/// Reads the rows from step `first` on into the registers of the threads.
#[cube]
pub(super) fn fetch<S: Numeric, W: Size>(
    x: &[Vector<S, W>],
    held: &mut Array<Vector<S, W>>,
    lane: &Lane,
    first: usize,
    #[comptime] rows: Rows,
) {
    let present = comptime!(rows.present());
    #[unroll]
    for u in 0..comptime!(rows.each()) {
        let n = (UNIT_POS_X as usize + comptime!(u * rows.threads))
            .min(comptime!(rows.count * present - 1));
        let start = row_of(lane, first + n / present) * comptime!(rows.len);
        let c = n % present * FOUR;
        #[unroll]
        for part in 0..comptime!(rows.parts()) {
            let at = if comptime!(rows.wide) {
                (start + c) / FOUR
            } else {
                start + (c + part).min(comptime!(rows.len - 1))
            };
            held[comptime!(u * rows.parts() + part)] = x[at];
        }
    }
}

/// Writes what [`fetch`] read to shared memory, as log decays where `decay` is true: `e^g`, NaN where `g` is positive.
#[cube]
pub(super) fn put<S: Numeric, W: Size>(
    held: &Array<Vector<S, W>>,
    shared: &mut [Four],
    #[comptime] decays: bool,
    #[comptime] rows: Rows,
) {
    let present = comptime!(rows.present());
    #[unroll]
    for u in 0..comptime!(rows.each()) {
        let n = UNIT_POS_X as usize + comptime!(u * rows.threads);
        let c = n % present * FOUR;
        let mut value = Four::new(0.0f32);
        if comptime!(rows.wide) {
            value = widen::<S, W, Const<4>>(held[u], rows.storage);
        } else {
            #[unroll]
            for part in 0..FOUR {
                let number =
                    widen::<S, W, Const<1>>(held[comptime!(u * FOUR + part)], rows.storage);
                let number = select(c + part < rows.len, number.extract(0usize), 0.0f32);
                value.insert(part, number);
            }
        }
        if comptime!(decays) {
            #[unroll]
            for part in 0..FOUR {
                value.insert(part, decay(value.extract(part)));
            }
        }
        if n < comptime!(rows.count * present) {
            shared[n / present * comptime!(rows.fours) + n % present] = value;
        }
    }
}

/// Four channels of a row from channel `c` on; 0 past its end.
#[cube]
pub(super) fn four<S: Numeric, W: Size>(
    x: &[Vector<S, W>],
    row: usize,
    c: usize,
    #[comptime] rows: Rows,
) -> Four {
    let mut value = Four::new(0.0f32);
    let start = row * comptime!(rows.len);
    if comptime!(rows.wide) {
        if c < rows.len {
            value = widen::<S, W, Const<4>>(x[(start + c) / FOUR], rows.storage);
        }
    } else {
        #[unroll]
        for part in 0..FOUR {
            if c + part < rows.len {
                let number = widen::<S, W, Const<1>>(x[start + c + part], rows.storage);
                value.insert(part, number.extract(0usize));
            }
        }
    }
    value
}

/// Sets shared memory to 0, for what [`put`] leaves out.
#[cube]
pub(super) fn clear(shared: &mut [Four], #[comptime] count: usize, #[comptime] threads: usize) {
    #[unroll]
    for u in 0..comptime!(count.div_ceil(threads)) {
        let n = UNIT_POS_X as usize + comptime!(u * threads);
        if n < count {
            shared[n] = Four::new(0.0f32);
        }
    }
}

/// The sum of four numbers.
#[cube]
pub(super) fn sum(x: Four) -> f32 {
    (x.extract(0usize) + x.extract(1usize)) + (x.extract(2usize) + x.extract(3usize))
}

/// `e^g` of a log decay; NaN of a positive one.
#[cube]
pub(super) fn decay(g: f32) -> f32 {
    // Shading languages have no word for NaN.
    select(g > 0.0f32, (0.0f32 - g).sqrt(), g.exp())
}
