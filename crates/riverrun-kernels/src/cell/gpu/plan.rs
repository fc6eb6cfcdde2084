//! How a problem is cut into cubes, and the rule that chooses.

use cubecl::client::Client;
use cubecl::prelude::*;

use super::product::Product;
use super::tuning::Tuning;
use crate::cell::{Activation, Cell, Problem, ResetGate};
use crate::gpu::Dtype;
use crate::gpu::storage::Storage;

/// The cells that the persistent routine runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Form {
    /// Reset after the product.
    Gru,
    Lstm,
    Tanh,
    Relu,
}

impl Form {
    pub(super) fn of(cell: Cell) -> Option<Self> {
        match cell {
            Cell::Gru {
                reset: ResetGate::After,
            } => Some(Form::Gru),
            // Two products a step, one waiting for the other: twice the hand-over.
            Cell::Gru {
                reset: ResetGate::Before,
            } => None,
            Cell::Lstm => Some(Form::Lstm),
            Cell::Elman {
                activation: Activation::Tanh,
            } => Some(Form::Tanh),
            Cell::Elman {
                activation: Activation::Relu,
            } => Some(Form::Relu),
        }
    }
}

/// What changes the generated code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Config {
    pub form: Form,
    pub product: Product,
    pub reverse: bool,
    pub bias: bool,
    pub h0: bool,
    pub c0: bool,
    pub reset: bool,
    pub d_h_last: bool,
    pub d_c_last: bool,
    pub backward: bool,
    /// Blocks that forward saves; backward, that it saved.
    pub saved: usize,
}

impl Config {
    /// Pairs of units that a unit of the cube works on after the product.
    pub(super) fn items(&self) -> usize {
        (self.product.units / 2 * 8 * self.product.cols).div_ceil(32 * self.product.planes)
    }
}

/// The time of the `s`-th step in running order.
#[cube]
pub(super) fn time(s: usize, steps: usize, #[comptime] config: Config) -> usize {
    if comptime!(config.reverse) {
        steps - 1 - s
    } else {
        s
    }
}

/// Cubes, and the sequences that one launch takes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cut {
    pub product: Product,
    /// Cubes for each group of 8 · `cols` sequences.
    pub cubes: usize,
    /// Groups of sequences that run at once.
    pub groups: usize,
}

/// Why the device or the problem does not allow the routine.
pub(super) fn missing(client: &Client, problem: &Problem, dtype: Dtype) -> Option<String> {
    if client.name() != "cuda" {
        return Some("it is written in PTX".into());
    }
    if Form::of(problem.cell).is_none() {
        return Some("its gates need two products a step".into());
    }
    if !dtype.supported(client) {
        return Some(format!("the device has no {}", dtype.name()));
    }
    if !problem.hidden.is_multiple_of(8) {
        return Some("the hidden size must be a multiple of 8".into());
    }
    if problem.heads > 1 && !problem.depth().is_multiple_of(16) {
        return Some("each of several heads must have a multiple of 16 units".into());
    }
    let fits = |backward| {
        Tuning::candidates()
            .iter()
            .any(|tuning| cut(client, problem, dtype, backward, *tuning).is_some())
    };
    if !fits(false) || !fits(true) {
        return Some("the weights do not fit in the device's registers and shared memory".into());
    }
    None
}

/// Multiprocessors, and the shared bytes that a cube may have.
fn device(client: &Client) -> (usize, usize) {
    let hardware = &client.properties().hardware;
    (
        hardware.num_streaming_multiprocessors.unwrap_or(0) as usize,
        hardware.max_shared_memory_size,
    )
}

/// Registers that a unit may spend on weights and sums, of 255.
const REGISTERS: usize = 200;

/// The cut of a pass by a tuning, if its cubes fit on the device.
pub(super) fn cut(
    client: &Client,
    problem: &Problem,
    dtype: Dtype,
    backward: bool,
    tuning: Tuning,
) -> Option<Cut> {
    let (processors, shared) = device(client);
    let own = problem.depth();
    let (gates, depth) = match backward {
        false => (problem.cell.gates(), own),
        true => (1, problem.cell.gates() * own),
    };
    let cubes = problem.hidden.div_ceil(tuning.units);
    let astride = problem.heads > 1 && !own.is_multiple_of(tuning.units);
    if cubes > processors || astride {
        return None;
    }
    let mut product = Product {
        gates,
        units: tuning.units,
        hidden: problem.hidden,
        own,
        depth,
        planes: 1,
        cols: tuning.rows.div_ceil(8),
        kept: 0,
        peek: tuning.peek,
        storage: Storage::choose(client, dtype, 2),
    };
    let blocks = depth.div_ceil(product.block());
    // A number of planes that divides the depth evenly, if there is one near what is asked for.
    product.planes = (tuning.planes.div_ceil(2)..=tuning.planes)
        .rev()
        .find(|planes| blocks.is_multiple_of(*planes))
        .unwrap_or(tuning.planes)
        .min(blocks);
    let (tiles, blocks, cols) = (product.tiles(), product.blocks(), product.cols);
    let words = (16 / cols).max(1).min(blocks) * cols * 4;
    let room = REGISTERS.checked_sub(tiles * cols * 4 + words)?;
    product.kept = (room / (tiles * 8)).min(blocks);
    if product.spilled() * 16 + product.sums() * 4 > shared {
        return None;
    }
    let groups = problem.batch.div_ceil(8 * cols).min(processors / cubes);
    Some(Cut {
        product,
        cubes,
        groups,
    })
}

/// The best for a pass of a problem, if it fits on the device, by what an H200 measured: of the cuts that take the
/// fewest launches, the one whose cubes read the fewest bytes a step. Forward with few cubes, where reading is not
/// the time, many small ones: each has less to add up.
pub(super) fn choose(
    client: &Client,
    problem: &Problem,
    dtype: Dtype,
    backward: bool,
) -> Option<Cut> {
    let cost = |cut: &Cut| {
        let rows = 8 * cut.product.cols;
        let launches = problem.batch.div_ceil(rows).div_ceil(cut.groups);
        let cubes = cut.groups * cut.cubes;
        let read = match !backward && rows == 8 && cut.product.units == 16 && cubes <= 64 {
            true => 0,
            false => cubes * rows * cut.product.depth,
        };
        (launches, read, cut.product.units)
    };
    Tuning::candidates()
        .into_iter()
        .filter_map(|tuning| cut(client, problem, dtype, backward, tuning))
        .min_by_key(cost)
}
