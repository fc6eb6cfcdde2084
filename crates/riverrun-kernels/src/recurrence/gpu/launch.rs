//! From a problem and its buffers to launches.

use cubecl::client::Client;
use cubecl::ir::AddressType;
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::chained::{LANES, chained_backward, chained_forward};
use super::chunked::{carry_chunks, reduce_chunks_backward, reduce_chunks_forward};
use super::handover::CONTROL_WORDS;
use super::tile::{Config, GeometryLaunch};
use super::unit::{unit_backward, unit_forward};
use super::{Dtype, Routine, workspace};
use crate::Error;
use crate::recurrence::{Gate, Problem};

/// A `[B, T, D]` view of a buffer, channels contiguous. Everything counts in elements.
#[derive(Debug, Clone)]
pub struct Strided {
    /// The buffer.
    pub handle: Handle,
    /// Elements in it.
    pub len: usize,
    /// Where the view starts.
    pub offset: usize,
    /// From one sequence to the next.
    pub batch_stride: usize,
    /// From one step to the next.
    pub step_stride: usize,
}

/// The gate's inputs.
#[derive(Debug, Clone)]
pub enum Inputs {
    /// One view for each input ([`Gate::Raw`]: `a`, `b`).
    Separate(Vec<Strided>),
    /// One `[B, T, G·D]` view with the inputs side by side; gradients come back in the same layout.
    Packed(Strided),
}

/// Buffers of a forward pass. All but the inputs are contiguous.
#[derive(Debug, Clone)]
pub struct Forward {
    /// The gate's inputs.
    pub inputs: Inputs,
    /// `[B, D]`.
    pub h0: Option<Handle>,
    /// `[B, T]`, in the storage type; not 0 means reset.
    pub reset: Option<Handle>,
    /// `[B, T, D]`, written.
    pub h: Handle,
}

/// Buffers of a backward pass. All but the inputs are contiguous.
#[derive(Debug, Clone)]
pub struct Backward {
    /// The gate's inputs, as in the forward pass.
    pub inputs: Inputs,
    /// `[B, D]`, as in the forward pass.
    pub h0: Option<Handle>,
    /// `[B, T]`, as in the forward pass.
    pub reset: Option<Handle>,
    /// `[B, T, D]`, what the forward pass wrote.
    pub h: Handle,
    /// `[B, T, D]`, `∂L/∂h`.
    pub d_h: Handle,
    /// `[B, D]`, `∂L/∂h_last`.
    pub d_h_last: Option<Handle>,
    /// Written: one `[B, T, D]` for each separate input, or one `[B, T, G·D]`.
    pub d_inputs: Vec<Handle>,
    /// `[B, D]`, written.
    pub d_h0: Handle,
}

/// The numbers that shape a launch; [`Tuning::default_for`] holds the measured ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuning {
    /// Channels a unit works on (a vector), at most; the largest that divides the layout is taken.
    pub vector: usize,
    /// Steps a unit keeps in registers.
    pub len: usize,
    /// Chained: planes of 32 units a cube.
    pub planes: usize,
    /// Chained: tiles of a group, a plane; 0 for a chain without groups.
    pub share: usize,
    /// Chunked: steps a chunk (a multiple of `len`).
    pub chunk: usize,
    /// Units a cube, for the routines that are not chained.
    pub cube: u32,
}

impl Tuning {
    /// The tuning for a problem.
    pub fn default_for(problem: &Problem, dtype: Dtype, backward: bool, routine: Routine) -> Self {
        let lanes = problem.shape.state();
        // Enough chunks that 256 k units have work, but none so short that its map costs more than it.
        let chunk = (lanes * problem.shape.steps).div_ceil(1 << 18).clamp(32, 256);
        let (vector, len, planes) = match (routine, dtype.size(), backward) {
            (Routine::Chained, _, _) if lanes <= 4096 => (2, 16, 16),
            (Routine::Chained, 4, _) => (2, 16, 8),
            (Routine::Chained, _, false) => (4, 8, 8),
            (Routine::Chained, _, true) => (4, 8, 4),
            (_, _, false) => (1, 8, 8),
            (_, _, true) => (2, 16, 8),
        };
        Self { vector, len, planes, share: 0, chunk: chunk.next_multiple_of(len), cube: 64 }
    }
}

/// About three seconds of polling: far beyond any hand-over, short of a driver's patience.
const SPINS: u32 = 1 << 22;

/// What both passes derive from their arguments.
struct Plan {
    config: Config,
    tuning: Tuning,
    vector: usize,
    cols: usize,
    buffers: [(Handle, usize); 3],
    geometry: [(usize, usize, usize); 3],
    address: AddressType,
}

impl Plan {
    fn new(
        client: &Client,
        problem: &Problem,
        dtype: Dtype,
        inputs: &Inputs,
        tuning: Tuning,
        flags: (bool, bool, bool),
    ) -> Result<Self, Error> {
        let (initial, h0, reset) = flags;
        if !dtype.supported(client) {
            return Err(Error::Dtype {
                dtype: dtype.name(),
                device: client.name().into(),
            });
        }
        let shape = problem.shape;
        let (views, packed): (Vec<Strided>, bool) = match inputs {
            Inputs::Separate(views) => (views.clone(), false),
            Inputs::Packed(view) => {
                let view = |i| Strided {
                    offset: view.offset + i * shape.dim,
                    ..view.clone()
                };
                ((0..problem.gate.inputs()).map(view).collect(), true)
            }
        };
        problem.check(views.len())?;
        if !packed && problem.gate != Gate::Raw {
            return Err(Error::Inputs {
                gate: problem.gate.name(),
                expected: 1,
                found: views.len(),
            });
        }
        for view in &views {
            let end = view.offset
                + (shape.batch - 1) * view.batch_stride
                + (shape.steps - 1) * view.step_stride
                + shape.dim;
            if end > view.len {
                return Err(Error::Length {
                    what: "gate input",
                    expected: end,
                    found: view.len,
                });
            }
        }
        let widest = tuning
            .vector
            .min(client.properties().hardware.max_vector_size as usize);
        let vector = (0..=3)
            .rev()
            .map(|power| 1usize << power)
            .find(|v| {
                *v <= widest
                    && shape.dim % v == 0
                    && views.iter().all(|view| {
                        [view.offset, view.batch_stride, view.step_stride, view.len]
                            .iter()
                            .all(|n| n % v == 0)
                    })
            })
            .unwrap_or(1);
        let at = |i: usize| &views[i.min(views.len() - 1)];
        let most = views
            .iter()
            .map(|view| view.len)
            .max()
            .unwrap_or(0)
            .max(shape.elements());
        Ok(Self {
            config: Config {
                gate: problem.gate,
                reverse: problem.reverse,
                packed,
                initial,
                h0,
                reset,
                len: tuning.len,
            },
            tuning,
            vector,
            cols: shape.dim / vector,
            buffers: [0, 1, 2].map(|i| (at(i).handle.clone(), at(i).len / vector)),
            geometry: [0, 1, 2].map(|i| {
                (
                    at(i).offset / vector,
                    at(i).batch_stride / vector,
                    at(i).step_stride / vector,
                )
            }),
            // Indices count vectors, but the bytes behind them must be in reach too.
            address: if most * dtype.size() < (1 << 31) {
                AddressType::U32
            } else {
                AddressType::U64
            },
        })
    }

    fn geometry(&self, steps: usize) -> GeometryLaunch {
        let [g0, g1, g2] = self.geometry;
        GeometryLaunch::new(
            self.cols, steps, g0.0, g0.1, g0.2, g1.0, g1.1, g1.2, g2.0, g2.1, g2.2,
        )
    }

    fn input(&self, i: usize) -> BufferArg {
        // Safety: `Plan::new` has checked that the view ends inside the buffer.
        unsafe { BufferArg::from_raw_parts(self.buffers[i].0.clone(), self.buffers[i].1) }
    }

    /// An optional buffer; where it is absent, some buffer that is there and that the kernel will not read.
    fn optional(&self, handle: &Option<Handle>, elements: usize, vector: usize) -> BufferArg {
        match handle {
            Some(handle) => buffer(handle, elements, vector),
            None => self.input(0),
        }
    }

    /// The coefficients are held in the storage type where they are the inputs themselves.
    fn held(&self, dtype: Dtype) -> Dtype {
        if self.config.gate == Gate::Raw {
            dtype
        } else {
            Dtype::F32
        }
    }
}

/// A contiguous buffer of `elements`, seen as vectors.
fn buffer(handle: &Handle, elements: usize, vector: usize) -> BufferArg {
    // Safety: callers pass the number of elements that the problem's shape gives the buffer.
    unsafe { BufferArg::from_raw_parts(handle.clone(), elements / vector) }
}

/// A one-dimensional grid, folded where a dimension of the grid ends.
fn grid(client: &Client, cubes: usize) -> CubeCount {
    let limit = client.properties().hardware.max_cube_count.0 as usize;
    if cubes <= limit {
        CubeCount::Static(cubes as u32, 1, 1)
    } else {
        let rows = cubes.div_ceil(limit);
        CubeCount::Static(cubes.div_ceil(rows) as u32, rows as u32, 1)
    }
}

/// Runs the recurrence forward, writing `h`. Returns the routine that ran.
///
/// # Errors
/// Wrong lengths, a gate with the wrong inputs, a type or a forced routine that the device lacks.
pub fn forward(
    client: &Client,
    problem: &Problem,
    dtype: Dtype,
    args: &Forward,
    routine: Option<Routine>,
    tuning: Option<Tuning>,
) -> Result<Routine, Error> {
    let routine = Routine::choose(client, problem, routine)?;
    let shape = problem.shape;
    if shape.elements() == 0 {
        return Ok(routine);
    }
    let tuning = tuning.unwrap_or_else(|| Tuning::default_for(problem, dtype, false, routine));
    let flags = (args.h0.is_some(), false, args.reset.is_some());
    let plan = Plan::new(client, problem, dtype, &args.inputs, tuning, flags)?;
    let v = plan.vector;
    let held = plan.held(dtype);
    let config = plan.config;
    let initial = || plan.optional(&args.h0, shape.state(), v);
    let reset = || plan.optional(&args.reset, shape.batch * shape.steps, 1);
    let h = buffer(&args.h, shape.elements(), v);
    let dim = CubeDim::new_1d(tuning.cube);
    let units = |n: usize| grid(client, n.div_ceil(tuning.cube as usize));
    // Safety of the launches: buffers have the lengths that the kernels index, checked or made above.
    unsafe {
        match routine {
            Routine::Unit => unit_forward::launch_unchecked(
                client,
                units(plan.cols * shape.batch),
                dim,
                plan.address,
                v,
                plan.input(0),
                plan.input(1),
                plan.input(2),
                initial(),
                reset(),
                buffer(&plan.buffers[0].0, v, v),
                h,
                plan.geometry(shape.steps),
                shape.batch,
                shape.steps.next_multiple_of(tuning.len),
                false,
                config,
                [dtype.elem(), held.elem()],
            ),
            Routine::Chunked => {
                let chunks = shape.steps.div_ceil(tuning.chunk);
                let rows = chunks * shape.batch;
                let maps = client.empty(rows * 2 * shape.dim * 4);
                let cuts = client.empty(rows * 4);
                let carries = client.empty(rows * shape.dim * 4);
                reduce_chunks_forward::launch_unchecked(
                    client,
                    units(plan.cols * rows),
                    dim,
                    plan.address,
                    v,
                    plan.input(0),
                    plan.input(1),
                    plan.input(2),
                    reset(),
                    buffer(&maps, rows * 2 * shape.dim, v),
                    buffer(&cuts, rows, 1),
                    plan.geometry(shape.steps),
                    shape.batch,
                    tuning.chunk,
                    config,
                    [dtype.elem(), held.elem()],
                );
                carry_chunks::launch_unchecked(
                    client,
                    units(plan.cols * shape.batch),
                    dim,
                    plan.address,
                    v,
                    initial(),
                    buffer(&maps, rows * 2 * shape.dim, v),
                    buffer(&cuts, rows, 1),
                    buffer(&carries, rows * shape.dim, v),
                    plan.cols,
                    shape.batch,
                    chunks,
                    config.initial,
                    dtype.elem(),
                );
                unit_forward::launch_unchecked(
                    client,
                    units(plan.cols * rows),
                    dim,
                    plan.address,
                    v,
                    plan.input(0),
                    plan.input(1),
                    plan.input(2),
                    initial(),
                    reset(),
                    buffer(&carries, rows * shape.dim, v),
                    h,
                    plan.geometry(shape.steps),
                    shape.batch,
                    tuning.chunk,
                    true,
                    config,
                    [dtype.elem(), held.elem()],
                );
            }
            Routine::Chained => {
                let chain = Chain::new(client, &plan, problem);
                let lease = &chain.lease;
                chained_forward::launch_unchecked(
                    client,
                    grid(client, chain.cubes),
                    chain.dim,
                    plan.address,
                    v,
                    plan.input(0),
                    plan.input(1),
                    plan.input(2),
                    initial(),
                    reset(),
                    buffer(&lease.words, lease.word_count, 1),
                    buffer(&lease.control, CONTROL_WORDS, 1),
                    h,
                    plan.geometry(shape.steps),
                    shape.batch,
                    chain.chunks,
                    lease.epoch,
                    SPINS,
                    tuning.planes,
                    tuning.share,
                    config,
                    [dtype.elem(), held.elem()],
                );
            }
        }
    }
    Ok(routine)
}

/// Runs the recurrence backward, writing the gradients of the inputs and of `h0`. Returns the routine that ran.
///
/// # Errors
/// As [`forward`].
pub fn backward(
    client: &Client,
    problem: &Problem,
    dtype: Dtype,
    args: &Backward,
    routine: Option<Routine>,
    tuning: Option<Tuning>,
) -> Result<Routine, Error> {
    let routine = Routine::choose(client, problem, routine)?;
    let shape = problem.shape;
    if shape.elements() == 0 {
        return Ok(routine);
    }
    let tuning = tuning.unwrap_or_else(|| Tuning::default_for(problem, dtype, true, routine));
    let flags = (
        args.d_h_last.is_some(),
        args.h0.is_some(),
        args.reset.is_some(),
    );
    let plan = Plan::new(client, problem, dtype, &args.inputs, tuning, flags)?;
    let outputs = if plan.config.packed {
        1
    } else {
        problem.gate.inputs()
    };
    if args.d_inputs.len() != outputs {
        return Err(Error::Inputs {
            gate: problem.gate.name(),
            expected: outputs,
            found: args.d_inputs.len(),
        });
    }
    let v = plan.vector;
    let config = plan.config;
    let reset = || plan.optional(&args.reset, shape.batch * shape.steps, 1);
    let all = shape.elements();
    let d0 = buffer(&args.d_inputs[0], all * problem.gate.inputs() / outputs, v);
    // A packed gradient is one buffer; two outputs must not be bound to the same one.
    let d1 = match args.d_inputs.get(1) {
        Some(d1) => buffer(d1, all, v),
        None => buffer(&client.empty(v * dtype.size()), v, v),
    };
    let d_h0 = buffer(&args.d_h0, shape.state(), v);
    let h = || buffer(&args.h, all, v);
    let d_h = || buffer(&args.d_h, all, v);
    let h0 = || plan.optional(&args.h0, shape.state(), v);
    let initial = || plan.optional(&args.d_h_last, shape.state(), v);
    let dim = CubeDim::new_1d(tuning.cube);
    let units = |n: usize| grid(client, n.div_ceil(tuning.cube as usize));
    // Safety of the launches: as in `forward`.
    unsafe {
        match routine {
            Routine::Unit => unit_backward::launch_unchecked(
                client,
                units(plan.cols * shape.batch),
                dim,
                plan.address,
                v,
                plan.input(0),
                plan.input(1),
                plan.input(2),
                h(),
                h0(),
                d_h(),
                initial(),
                reset(),
                buffer(&plan.buffers[0].0, v, v),
                d0,
                d1,
                d_h0,
                plan.geometry(shape.steps),
                shape.batch,
                shape.steps.next_multiple_of(tuning.len),
                false,
                config,
                dtype.elem(),
            ),
            Routine::Chunked => {
                let chunks = shape.steps.div_ceil(tuning.chunk);
                let rows = chunks * shape.batch;
                let maps = client.empty(rows * 2 * shape.dim * 4);
                let cuts = client.empty(rows * 4);
                let carries = client.empty(rows * shape.dim * 4);
                reduce_chunks_backward::launch_unchecked(
                    client,
                    units(plan.cols * rows),
                    dim,
                    plan.address,
                    v,
                    plan.input(0),
                    plan.input(1),
                    plan.input(2),
                    h(),
                    h0(),
                    d_h(),
                    reset(),
                    buffer(&maps, rows * 2 * shape.dim, v),
                    buffer(&cuts, rows, 1),
                    plan.geometry(shape.steps),
                    shape.batch,
                    tuning.chunk,
                    config,
                    dtype.elem(),
                );
                carry_chunks::launch_unchecked(
                    client,
                    units(plan.cols * shape.batch),
                    dim,
                    plan.address,
                    v,
                    initial(),
                    buffer(&maps, rows * 2 * shape.dim, v),
                    buffer(&cuts, rows, 1),
                    buffer(&carries, rows * shape.dim, v),
                    plan.cols,
                    shape.batch,
                    chunks,
                    config.initial,
                    dtype.elem(),
                );
                unit_backward::launch_unchecked(
                    client,
                    units(plan.cols * rows),
                    dim,
                    plan.address,
                    v,
                    plan.input(0),
                    plan.input(1),
                    plan.input(2),
                    h(),
                    h0(),
                    d_h(),
                    initial(),
                    reset(),
                    buffer(&carries, rows * shape.dim, v),
                    d0,
                    d1,
                    d_h0,
                    plan.geometry(shape.steps),
                    shape.batch,
                    tuning.chunk,
                    true,
                    config,
                    dtype.elem(),
                );
            }
            Routine::Chained => {
                let chain = Chain::new(client, &plan, problem);
                let lease = &chain.lease;
                chained_backward::launch_unchecked(
                    client,
                    grid(client, chain.cubes),
                    chain.dim,
                    plan.address,
                    v,
                    plan.input(0),
                    plan.input(1),
                    plan.input(2),
                    h(),
                    h0(),
                    d_h(),
                    initial(),
                    reset(),
                    buffer(&lease.words, lease.word_count, 1),
                    buffer(&lease.control, CONTROL_WORDS, 1),
                    d0,
                    d1,
                    d_h0,
                    plan.geometry(shape.steps),
                    shape.batch,
                    chain.chunks,
                    lease.epoch,
                    SPINS,
                    tuning.planes,
                    tuning.share,
                    config,
                    dtype.elem(),
                );
            }
        }
    }
    Ok(routine)
}

/// The grid and the scratch of a chained launch.
struct Chain {
    dim: CubeDim,
    cubes: usize,
    chunks: usize,
    lease: workspace::Lease,
}

impl Chain {
    fn new(client: &Client, plan: &Plan, problem: &Problem) -> Self {
        let Tuning {
            len, planes, share, ..
        } = plan.tuning;
        let tiles = problem.shape.batch * plan.cols.div_ceil(LANES);
        let chunks = problem.shape.steps.div_ceil(len * planes);
        let row = tiles * LANES * plan.vector;
        // One state a group; where there are groups, also two rows a tile for its map.
        let rows = match share {
            0 => chunks,
            _ => chunks.div_ceil(planes * share) + 2 * chunks,
        };
        Self {
            dim: CubeDim::new_2d(LANES as u32, planes as u32),
            cubes: tiles * chunks,
            chunks,
            lease: workspace::lease(client, rows * row),
        }
    }
}
