//! How a problem is cut into cubes.

use cubecl::client::Client;
use cubecl::prelude::*;

use super::product::{Product, UNITS};
use crate::cell::{Activation, Cell, Problem, ResetGate};
use crate::recurrence::gpu::Dtype;
use crate::recurrence::gpu::storage::Storage;

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
    /// Blocks that forward saves; backward, that it saved.
    pub saved: usize,
}

impl Config {
    /// Pairs of units that a unit of the cube works on after the product.
    pub(super) fn items(&self) -> usize {
        (UNITS / 2 * 8 * self.product.cols).div_ceil(32 * self.product.planes)
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
    if dtype == Dtype::F32 {
        return Some("its products take f16 and bf16".into());
    }
    if !dtype.supported(client) {
        return Some(format!("the device has no {}", dtype.name()));
    }
    if !problem.hidden.is_multiple_of(8) {
        return Some("the hidden size must be a multiple of 8".into());
    }
    let cubes = problem.hidden.div_ceil(UNITS);
    let processors = processors(client);
    if cubes > processors {
        return Some(format!(
            "{cubes} cubes must run at once, and the device has {processors} multiprocessors"
        ));
    }
    let (forward, backward) = (
        cut(client, problem, dtype, false),
        cut(client, problem, dtype, true),
    );
    if forward.is_none() || backward.is_none() {
        return Some("the weights do not fit in registers".into());
    }
    None
}

fn processors(client: &Client) -> usize {
    let hardware = &client.properties().hardware;
    hardware.num_streaming_multiprocessors.unwrap_or(0) as usize
}

/// Registers that a unit may spend on weights and sums, of 255.
const REGISTERS: usize = 208;

/// The cut for a pass, if the weights fit in registers.
pub(super) fn cut(client: &Client, problem: &Problem, dtype: Dtype, backward: bool) -> Option<Cut> {
    let (tiles, depth) = match backward {
        false => (problem.cell.gates(), problem.hidden),
        true => (1, problem.gate_width()),
    };
    let storage = Storage::choose(dtype, 2, true);
    let cubes = problem.hidden.div_ceil(UNITS);
    let at_once = (processors(client) / cubes).max(1);
    let blocks = depth.div_ceil(32);
    // As many planes as divide the depth evenly, up to 8: 256 units may use every register they can name.
    let planes = (1..=8usize)
        .rev()
        .find(|planes| blocks.is_multiple_of(*planes) && *planes >= 4)
        .unwrap_or(blocks.min(8));
    let product = |cols: usize| Product {
        tiles,
        hidden: problem.hidden,
        depth,
        planes,
        cols,
        storage,
    };
    let fits = |product: &Product| {
        let weights = tiles * product.pairs() * 8;
        let sums = tiles * product.cols * 4;
        let words = (16 / product.cols).max(1).min(product.pairs()) * product.cols * 4;
        weights + sums + words <= REGISTERS
    };
    // The fewest sequences to a cube that let all run at once; where that is too many, as many as fit.
    let wanted = [1usize, 2, 4].map(product);
    let all = wanted
        .iter()
        .find(|product| problem.batch.div_ceil(8 * product.cols) <= at_once && fits(product));
    let product = *all.or_else(|| wanted.iter().rev().find(|product| fits(product)))?;
    let groups = problem.batch.div_ceil(8 * product.cols).min(at_once);
    Some(Cut {
        product,
        cubes,
        groups,
    })
}
