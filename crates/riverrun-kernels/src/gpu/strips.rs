//! Walks along the rows of a matrix: a thread takes a vector of columns and a run of rows, and may add up numbers by column.
//!
//! A cube is a strip of columns times several runs. Its sums are one part; a second launch adds up the parts in order, so
//! results are bit-equal from run to run on a device.

use cubecl::client::Client;
use cubecl::ir::AddressType;
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::storage::Storage;
use super::{Dtype, address, buffer, grid, multiprocessors, vector_width};

/// Threads of a cube.
const CUBE: usize = 256;

/// Most vectors of columns in a strip.
const STRIP: usize = 64;

/// Fewest that a strip has for filling a row evenly: what a group of 32 threads reads stays in long pieces.
const NARROW: usize = 16;

/// The geometry of a walk over sequences of rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Strips {
    pub vector: usize,
    pub storage: Storage,
    /// Vectors of a row.
    cols: usize,
    /// Vectors of a strip, threads of a cube's first dimension.
    units: usize,
    /// Runs of a cube, threads of its second dimension.
    pub runs: usize,
    /// Rows of a run.
    len: usize,
    /// Runs of a sequence.
    chunks: usize,
    /// Sequences.
    batch: usize,
    steps: usize,
}

impl Strips {
    /// For `[batch, steps, dim]`, with `sums` sums by column; runs of 8 to 64 rows, and at least `shortest`. The columns of
    /// each part of a row, `dim = parts[0] + ..`, are whole vectors.
    pub fn new(
        client: &Client,
        dtype: Dtype,
        [batch, steps]: [usize; 2],
        parts: &[usize],
        shortest: usize,
        sums: usize,
    ) -> Self {
        let dim = parts.iter().sum::<usize>();
        let bits = parts.iter().fold(dim, |bits, part| bits | part);
        let vector = vector_width(client, dtype, 16, bits);
        let cols = dim / vector;
        let hardware = &client.properties().hardware;
        let most = hardware.max_units_per_cube as usize;
        // The sums of a strip meet in shared memory.
        let room = hardware.max_shared_memory_size.min(48 << 10);
        let widest = room / (sums.max(1) * vector * 4);
        let strip = STRIP.min(1 << widest.max(1).ilog2());
        // Strips that fill every part, if they are not narrow.
        let even = 1 << (bits / vector).trailing_zeros().min(STRIP.ilog2());
        let units = match even >= NARROW {
            true => strip.min(even),
            false => cols.next_power_of_two().min(strip),
        };
        let runs = (CUBE.min(most) / units).max(1);
        // Several times the threads that a device holds, so that no multiprocessor waits long for another.
        let threads = multiprocessors(client) * 2048;
        let own = parts.iter().max().map_or(0, |part| part / vector);
        let longest = batch.saturating_mul(steps).saturating_mul(own) / threads;
        let len = longest.clamp(8, 64).max(shortest).next_multiple_of(4);
        Self {
            vector,
            storage: Storage::choose(client, dtype, vector),
            cols,
            units,
            runs,
            len,
            chunks: steps.div_ceil(len),
            batch,
            steps,
        }
    }

    pub fn units(&self) -> usize {
        self.units
    }

    /// All columns of a row.
    pub fn whole(&self) -> Columns {
        Columns {
            first: 0,
            count: self.cols,
        }
    }

    /// `dim` columns from `first` on: a part of a row.
    pub fn columns(&self, first: usize, dim: usize) -> Columns {
        Columns {
            first: first / self.vector,
            count: dim / self.vector,
        }
    }

    fn strips(&self, columns: Columns) -> usize {
        columns.count.div_ceil(self.units)
    }

    /// Cubes along the rows, each of which makes one part of every sum.
    pub fn parts(&self) -> usize {
        (self.batch * self.chunks).div_ceil(self.runs)
    }

    pub fn count(&self, client: &Client, columns: Columns) -> CubeCount {
        grid(client, self.parts() * self.strips(columns))
    }

    pub fn dim(&self) -> CubeDim {
        CubeDim::new_2d(self.units as u32, self.runs as u32)
    }

    pub fn sizes(&self, columns: Columns) -> SizesLaunch {
        SizesLaunch::new(
            self.steps,
            self.cols,
            columns.first,
            columns.count,
            self.strips(columns),
            self.len,
            self.chunks,
            self.batch * self.chunks,
        )
    }

    /// The type of indices into `[batch, steps, times · dim]`.
    pub fn address(&self, times: usize, dtype: Dtype) -> AddressType {
        let dim = self.cols * self.vector;
        let elements = self.batch.saturating_mul(self.steps).saturating_mul(dim);
        address(elements.saturating_mul(times), dtype)
    }

    /// Memory for the parts of `sums` sums.
    pub fn scratch(&self, client: &Client, sums: usize) -> Handle {
        client.empty(self.elements(sums) * 4)
    }

    /// Numbers in that memory, which without rows has room for one part that nothing reads.
    pub fn elements(&self, sums: usize) -> usize {
        self.parts().max(1) * sums * self.cols * self.vector
    }

    /// Writes sums `first..first + count` of `sums`, `[count, dim]`, from their parts.
    pub fn total(
        &self,
        client: &Client,
        dtype: Dtype,
        parts: &Handle,
        sums: usize,
        [first, count]: [usize; 2],
        out: &Handle,
    ) {
        let dim = self.cols * self.vector;
        let width = count * dim;
        if width == 0 {
            return;
        }
        let most = client.properties().hardware.max_units_per_cube as usize;
        let planes = (most / COLUMNS).clamp(1, 32);
        // SAFETY: the parts were made by `scratch`, and callers check the length of `out`.
        unsafe {
            sum_parts::launch_unchecked(
                client,
                grid(client, width.div_ceil(COLUMNS)),
                CubeDim::new_2d(COLUMNS as u32, planes as u32),
                address(self.elements(sums), Dtype::F32),
                buffer(parts, self.elements(sums), 1),
                buffer(out, width, 1),
                self.parts(),
                sums * dim,
                first * dim,
                width,
                planes,
                dtype.elem(),
            );
        }
    }
}

/// Vectors of a row that one launch walks along.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Columns {
    first: usize,
    count: usize,
}

/// Sizes that are known at launch.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(crate) struct Sizes {
    pub steps: usize,
    /// Vectors of a row.
    pub cols: usize,
    /// The first vector of the launch, and their number.
    pub from: usize,
    pub own: usize,
    /// Strips of these.
    pub strips: usize,
    /// Rows of a run.
    pub len: usize,
    /// Runs of a sequence.
    pub chunks: usize,
    /// Runs of all sequences.
    pub lanes: usize,
}

/// A thread's part of the walk.
#[derive(CubeType, Clone, Copy)]
pub(crate) struct Lane {
    /// The vector of columns, among the launch's own even for threads without one.
    pub col: usize,
    pub sequence: usize,
    /// The run's first step and the step after its last; the same for threads without rows or columns.
    pub first: usize,
    pub end: usize,
}

#[cube]
pub(crate) fn lane(sizes: &Sizes, #[comptime] runs: usize) -> Lane {
    let strip = CUBE_POS % sizes.strips;
    let run = CUBE_POS / sizes.strips * runs + UNIT_POS_Y as usize;
    let col = strip * CUBE_DIM_X as usize + UNIT_POS_X as usize;
    let there = run < sizes.lanes && col < sizes.own;
    let run = run.min(sizes.lanes - 1);
    let first = run % sizes.chunks * sizes.len;
    Lane {
        col: sizes.from + col.min(sizes.own - 1),
        sequence: run / sizes.chunks,
        first,
        end: select(there, (first + sizes.len).min(sizes.steps), first),
    }
}

/// Adds up `sums`, `count` for each column, over the runs of a cube in order, into the cube's part: `parts` is `[parts, count,
/// cols]`. All threads of the cube call this.
#[cube]
pub(crate) fn write_parts<N: Size>(
    sums: &Array<Vector<f32, N>>,
    parts: &mut [Vector<f32, N>],
    lane: &Lane,
    sizes: &Sizes,
    #[comptime] count: usize,
    #[comptime] runs: usize,
    #[comptime] units: usize,
) {
    let mut meeting = Shared::<[Vector<f32, N>]>::new_slice(comptime!(count * units));
    let x = UNIT_POS_X as usize;
    for y in 0..runs {
        if UNIT_POS_Y as usize == y {
            #[unroll]
            for k in 0..count {
                let before = select(
                    y == 0,
                    Vector::<f32, N>::new(0.0f32),
                    meeting[k * units + x],
                );
                meeting[k * units + x] = before + sums[k];
            }
        }
        sync_cube();
    }
    let strip = CUBE_POS % sizes.strips;
    let part = CUBE_POS / sizes.strips;
    let inside = strip * units + x < sizes.own && part * runs < sizes.lanes;
    if UNIT_POS_Y == 0 && inside {
        #[unroll]
        for k in 0..count {
            parts[(part * count + k) * sizes.cols + lane.col] = meeting[k * units + x];
        }
    }
}

/// Columns of a cube of [`sum_parts`].
const COLUMNS: usize = 32;

/// Adds up columns `first..first + width` of `parts`, `[count, stride]`: a thread for each column, and `planes` of them, each
/// taking every `planes`-th part, whose sums are then added in order.
#[cube(launch_unchecked, address_type = "dynamic")]
fn sum_parts<F: Float>(
    parts: &[f32],
    out: &mut [F],
    count: usize,
    stride: usize,
    first: usize,
    width: usize,
    #[comptime] planes: usize,
    #[define(F)] _dtype: ElemType,
) {
    let at = CUBE_POS * COLUMNS + UNIT_POS_X as usize;
    let col = first + at.min(width - 1);
    let mut sum = 0.0f32;
    let mut part = UNIT_POS_Y as usize;
    while part < count {
        sum += parts[part * stride + col];
        part += planes;
    }
    let mut sums = Shared::<[f32]>::new_slice(comptime!(planes * COLUMNS));
    sums[UNIT_POS as usize] = sum;
    sync_cube();
    if UNIT_POS_Y == 0 && at < width {
        let mut all = 0.0f32;
        #[unroll]
        for p in 0..planes {
            all += sums[p * COLUMNS + UNIT_POS_X as usize];
        }
        out[at] = F::cast_from(all);
    }
}
