//! The partition of a problem into cubes.

use cubecl::client::Client;
use cubecl::prelude::*;

use super::product::Product;
use super::tuning::Tuning;
use crate::cell::{Activation, Cell, Problem, ResetGate};
use crate::gpu::residency::clusters_at_once;
use crate::gpu::storage::Storage;
use crate::gpu::{Dtype, capability};

/// The formulas of the kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Form {
    /// Reset gate after the product.
    Gru,
    /// Reset gate before the product: two products a step, the second with the state gated by the first one's gates.
    GruResetBefore,
    Lstm,
    Tanh,
    Relu,
}

impl Form {
    pub(super) fn of(cell: Cell) -> Self {
        match cell {
            Cell::Gru {
                reset: ResetGate::After,
            } => Form::Gru,
            Cell::Gru {
                reset: ResetGate::Before,
            } => Form::GruResetBefore,
            Cell::Lstm => Form::Lstm,
            Cell::Elman {
                activation: Activation::Tanh,
            } => Form::Tanh,
            Cell::Elman {
                activation: Activation::Relu,
            } => Form::Relu,
        }
    }
}

/// The values that change the generated code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Config {
    pub form: Form,
    /// The product of a step.
    pub product: Product,
    /// A step's second product, with [`Form::GruResetBefore`]; otherwise the same as `product`, and unused.
    pub second: Product,
    pub reverse: bool,
    pub bias: bool,
    pub h0: bool,
    pub c0: bool,
    pub reset: bool,
    pub lengths: bool,
    pub d_h_last: bool,
    pub d_c_last: bool,
    pub backward: bool,
    /// The number of blocks that forward saves or has saved.
    pub saved: usize,
}

impl Config {
    /// Whether a step has a second product.
    pub(super) fn two_products(&self) -> bool {
        self.form == Form::GruResetBefore
    }

    /// Pairs of hidden units that each thread processes after the product.
    pub(super) fn items(&self) -> usize {
        self.product.items()
    }

    /// Pairs of sums that each thread keeps where the cubes of a cluster add them up.
    pub(super) fn own_sums(&self) -> usize {
        match self.product.cluster {
            1 => 1,
            _ => self.items() * self.product.gates.max(self.second.gates),
        }
    }

    /// Shared words of 64 bits in which the sums of the others of a cluster arrive.
    pub(super) fn exchanged(&self) -> usize {
        self.product.exchanged().max(self.second.exchanged())
    }

    /// Shared words that the partial sums of a product take.
    pub(super) fn sums(&self) -> usize {
        self.product.sums().max(self.second.sums())
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
pub(super) struct Partition {
    pub product: Product,
    /// As [`Config::second`].
    pub second: Product,
    /// Cubes for each group of 8 · `cols` sequences, those of a cluster one by one.
    pub cubes: usize,
    /// Groups of sequences that run at once.
    pub groups: usize,
}

impl Partition {
    /// Bytes of states that all cubes of a launch read in a step, of a batch of `batch`.
    pub(super) fn read_bytes(&self, batch: usize) -> usize {
        let product = &self.product;
        let sequences = batch.min(self.groups * 8 * product.cols);
        sequences * self.cubes * product.depth / product.cluster * product.size()
    }

    /// Its sizes.
    pub(super) fn tuning(&self) -> Tuning {
        let product = &self.product;
        Tuning::new(product.units, 8 * product.cols, product.planes)
            .with_cluster(product.cluster)
            .with_scouts(product.scouts)
    }
}

/// The reason why the device or the problem does not allow the routine.
pub(super) fn missing(client: &Client, problem: &Problem, dtype: Dtype) -> Option<String> {
    if client.name() != "cuda" {
        return Some("it is written in PTX".into());
    }
    if let Some(capability) = capability(client).filter(|&capability| capability < 80) {
        return Some(format!(
            "its tensor-core products need compute capability 8.0, the device has {}.{}",
            capability / 10,
            capability % 10
        ));
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
        Tuning::whole()
            .iter()
            .any(|tuning| partition(client, problem, dtype, backward, *tuning).is_some())
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

/// Registers of a thread for weights and sums, of 255.
const REGISTERS: usize = 200;

/// The partition of a pass by a tuning, if its cubes fit on the device.
pub(super) fn partition(
    client: &Client,
    problem: &Problem,
    dtype: Dtype,
    backward: bool,
    tuning: Tuning,
) -> Option<Partition> {
    let (processors, shared) = device(client);
    let own = problem.depth();
    let two_products = Form::of(problem.cell) == Form::GruResetBefore;
    let gates = problem.cell.gates();
    let cubes = tuning.cluster * problem.hidden.div_ceil(tuning.units);
    let astride = problem.heads > 1 && !own.is_multiple_of(tuning.units);
    let uneven = !tuning.units.is_multiple_of(2 * tuning.cluster);
    let at_once = match tuning.cluster {
        1 => processors,
        _ if !client.features().cube_cluster => return None,
        cluster => cluster * clusters_at_once(client, cluster),
    };
    if cubes > at_once || astride || uneven {
        return None;
    }
    // Forward, the groups of rows of the weights; backward, those of the transposed weights' columns.
    let groups_of = |first: usize, count: usize| Product {
        gates: if backward { 1 } else { count },
        first_gate: if backward { 0 } else { first },
        units: tuning.units,
        cluster: tuning.cluster,
        scouts: tuning.scouts,
        hidden: problem.hidden,
        own,
        row: if backward { gates * own } else { own },
        column: if backward { first * own } else { 0 },
        depth: if backward { count * own } else { own },
        planes: 1,
        cols: tuning.rows.div_ceil(8),
        kept: 0,
        storage: Storage::choose(client, dtype, 2),
    };
    let (mut product, mut second) = match two_products {
        true => (groups_of(0, 2), groups_of(2, 1)),
        false => (groups_of(0, gates), groups_of(0, gates)),
    };
    let blocks = product.depth.div_ceil(product.block());
    let blocks = blocks.div_ceil(tuning.cluster);
    // A number of planes that divides the depth evenly, if there is one near the number asked for.
    product.planes = (tuning.planes.div_ceil(2)..=tuning.planes)
        .rev()
        .find(|planes| blocks.is_multiple_of(*planes))
        .unwrap_or(tuning.planes)
        .min(blocks);
    second.planes = product.planes;
    let cols = product.cols;
    let words = |product: &Product| (16 / cols).max(1).min(product.blocks()) * cols * 4;
    let live = |product: &Product| product.tiles() * cols * 4 + words(product);
    let mut room = REGISTERS.checked_sub(live(&product).max(live(&second)))?;
    product.kept = (room / (product.tiles() * 8)).min(product.blocks());
    let mut shared_bytes = product.spilled() * 16 + product.sums().max(second.sums()) * 4;
    if two_products {
        room -= product.kept * product.tiles() * 8;
        second.kept = (room / (second.tiles() * 8)).min(second.blocks());
        shared_bytes += second.spilled() * 16;
    } else {
        second = product;
    }
    shared_bytes += product.exchanged().max(second.exchanged()) * 8;
    if shared_bytes > shared {
        return None;
    }
    let groups = problem.batch.div_ceil(8 * cols).min(at_once / cubes);
    Some(Partition {
        product,
        second,
        cubes,
        groups,
    })
}
