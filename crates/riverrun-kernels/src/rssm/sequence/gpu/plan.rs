//! Which cube computes what, and which weights it holds.
//!
//! The 16 units of a tile are a group. Groups of `d` are spread over all cubes, `per` neighbouring ones to a cube, which
//! computes `x` and `d'` of its units. Backward is the same with the transposed matrices. The groups of `e₁`, `p`, `e₂` and the logits are given to one cube each, one kind after the
//! other, so that as few cubes as possible have two of them. Cubes hold their weights in shared memory, the matrices that all
//! cubes have first, as far as it reaches; the others are read at every step.

use cubecl::client::Client;

use super::product::Product;
use crate::gpu::storage::Storage;
use crate::gpu::{Dtype, capability};
use crate::rssm::sequence::Problem;

/// Planes of a cube.
pub(super) const PLANES: usize = 8;
/// Units of a group.
pub(super) const GROUP: usize = 16;
/// Logits of a cube, at most.
const LOGITS: usize = 128;
/// Quads of words of inputs that wait for each other in a thread's registers, at most: more of them spill.
const WORDS: usize = 20;

/// The values that change the generated code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Config {
    pub deter: usize,
    pub hidden: usize,
    pub logits: usize,
    pub classes: usize,
    /// Numbers of a block of `d`.
    pub width: usize,
    pub storage: Storage,
    /// Groups of 8 sequences that a cube takes.
    pub cols: usize,
    /// Groups of `d` that a cube takes.
    pub per: usize,
    /// Cubes for each group of 8 · `cols` sequences.
    pub cubes: usize,
    pub reset: bool,
    pub products: Products,
    /// Vectors of four words that weights take in shared memory.
    pub held: usize,
    /// Quads of words of all packed weights.
    pub packed: usize,
}

/// The matrices; in the backward pass, their transposes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Products {
    pub gates: Product,
    pub blocks: Product,
    pub inputs_deter: Product,
    pub inputs_stoch: Product,
    pub logits: Product,
    pub stoch: Product,
    pub posterior: Product,
    pub deter: Product,
}

/// A kind of groups that are given to one cube each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Deter,
    Posterior,
    Stoch,
    Logits,
}

impl Config {
    /// Logits of a group: whole categoricals.
    pub(super) fn draws(&self) -> usize {
        self.classes.max(GROUP)
    }

    /// Groups of `d`.
    pub(super) fn groups(&self) -> usize {
        self.deter / GROUP
    }

    /// Words of a row of sums of squares.
    pub(super) fn squares(&self) -> usize {
        self.groups().next_multiple_of(4)
    }

    /// Numbers of a step's states.
    pub(super) fn row(&self) -> usize {
        self.deter + 2 * self.logits
    }

    /// Sequences of a cube.
    pub(super) fn sequences(&self) -> usize {
        8 * self.cols
    }

    /// The first cube of a role.
    pub(super) fn first(&self, role: Role) -> usize {
        let groups = self.hidden / GROUP;
        let first = match role {
            Role::Deter => 0,
            Role::Posterior => groups,
            Role::Stoch => 2 * groups,
            Role::Logits => 3 * groups,
        };
        first % self.cubes
    }

    /// Words between the partial sums of two units: a plane's accesses fall on different banks.
    pub(super) fn stride(&self) -> usize {
        16 * self.cols.div_ceil(2) + 2
    }

    /// Shared words that partial sums take.
    pub(super) fn sums(&self) -> usize {
        PLANES * (self.draws() / GROUP).max(3) * 16 * self.stride()
    }

    /// Shared words that sums of squares take, of two inputs.
    pub(super) fn norms(&self) -> usize {
        2 * PLANES * self.sequences()
    }

    /// Logits of a cube: shared words that scores take, and exponentials once more.
    pub(super) fn scores(&self) -> usize {
        self.draws() * self.sequences()
    }

    /// Pairs of logits that a thread has.
    pub(super) fn items(&self) -> usize {
        (self.scores() / 2).div_ceil(32 * PLANES)
    }

    fn shared_bytes(&self) -> usize {
        (self.sums() + self.norms() + 2 * self.scores()) * 4 + self.held.max(1) * 16
    }
}

/// The reason why the device or the problem does not allow the launch.
pub fn missing(client: &Client, problem: &Problem, dtype: Dtype) -> Option<String> {
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
    let planned = |backward| plan(client, problem, dtype, false, backward).err();
    planned(false).or_else(|| planned(true))
}

/// Blocks of a plane in a product of this depth.
fn product_blocks(depth: usize, storage: Storage) -> usize {
    depth.div_ceil(64 / storage.size()).div_ceil(PLANES)
}

/// The plan of a problem, or the reason why there is none.
pub(super) fn plan(
    client: &Client,
    problem: &Problem,
    dtype: Dtype,
    reset: bool,
    backward: bool,
) -> Result<Config, String> {
    let hardware = &client.properties().hardware;
    let processors = hardware.num_streaming_multiprocessors.unwrap_or(0) as usize;
    let (deter, hidden, logits) = (problem.deter, problem.hidden, problem.logits());
    let (width, classes) = (problem.width(), problem.classes);
    for (what, size) in [
        ("a block of the deterministic state", width),
        ("the dense layers", hidden),
        ("the stochastic state", logits),
    ] {
        if size == 0 || !size.is_multiple_of(GROUP) {
            return Err(format!("{what} must have a multiple of {GROUP} numbers"));
        }
    }
    let draws = classes.max(GROUP);
    if classes % 2 != 0 || !draws.is_multiple_of(classes) || !draws.is_multiple_of(GROUP) {
        return Err(format!(
            "{classes} classes: it takes 2, 4, 8 or a multiple of 16"
        ));
    }
    if draws > LOGITS {
        return Err(format!("{classes} classes: it takes up to {LOGITS}"));
    }
    let cols = if problem.batch <= 8 { 1 } else { 2 };
    let storage = Storage::choose(client, dtype, 2);
    let per = [1, 2, 4]
        .into_iter()
        .find(|per| {
            width.is_multiple_of(per * GROUP) && (deter / GROUP).div_ceil(*per) <= processors
        })
        .ok_or("the deterministic state has more numbers than the device's cubes take")?;
    let roles = 3 * (hidden / GROUP) + logits / draws;
    let cubes = (deter / GROUP / per).max(roles.min(processors));
    if (hidden / GROUP).max(logits / draws) > cubes {
        return Err("the dense layers have more numbers than the device's cubes take".into());
    }
    let mut first = 0;
    let mut product = |tiles: usize, units: usize, depth: usize| {
        let product = Product {
            tiles,
            groups: units / GROUP,
            depth,
            planes: PLANES,
            storage,
            first,
            held: None,
        };
        first += product.vectors();
        product
    };
    // Tiles of a group of logits, and the units of as many groups of 16.
    let (tiles, of_logits) = (draws / GROUP, logits / (draws / GROUP));
    let products = match backward {
        false => Products {
            gates: product(3, deter, width),
            blocks: product(1, deter, width),
            inputs_deter: product(1, deter, hidden),
            inputs_stoch: product(1, deter, hidden),
            logits: product(tiles, of_logits, hidden),
            stoch: product(1, hidden, logits),
            posterior: product(1, hidden, deter),
            deter: product(1, hidden, deter),
        },
        true => Products {
            gates: product(1, deter, 3 * width),
            blocks: product(1, deter, width),
            posterior: product(1, deter, hidden),
            deter: product(1, deter, hidden),
            stoch: product(tiles, of_logits, hidden),
            logits: product(1, hidden, logits),
            inputs_deter: product(1, hidden, deter),
            inputs_stoch: product(1, hidden, deter),
        },
    };
    // What a thread has in registers of inputs that are normalized, backward with the numbers before the norm.
    let of_dense = product_blocks(hidden, storage);
    let of_block = product_blocks(width, storage);
    let live = match backward {
        false => of_block + 2 * of_dense,
        true => of_block + 3 * of_dense,
    };
    if live * cols > WORDS {
        return Err("a block or a dense layer has more numbers than the registers take".into());
    }
    let mut config = Config {
        deter,
        hidden,
        logits,
        classes,
        width,
        storage,
        cols,
        per,
        cubes,
        reset,
        products,
        held: 0,
        packed: first,
    };
    let mut all = config.products;
    let each = match backward {
        false => [
            (&mut all.gates, per),
            (&mut all.blocks, per),
            (&mut all.inputs_deter, per),
            (&mut all.inputs_stoch, per),
            (&mut all.logits, 1),
            (&mut all.stoch, 1),
            (&mut all.posterior, 1),
            (&mut all.deter, 1),
        ],
        true => [
            (&mut all.gates, per),
            (&mut all.blocks, per),
            (&mut all.posterior, per),
            (&mut all.deter, per),
            (&mut all.stoch, 1),
            (&mut all.logits, 1),
            (&mut all.inputs_deter, 1),
            (&mut all.inputs_stoch, 1),
        ],
    };
    let room = hardware.max_shared_memory_size;
    if config.shared_bytes() > room {
        return Err("its partial sums do not fit in the device's shared memory".into());
    }
    for (product, groups) in each {
        let held = groups * product.group();
        let more = Config {
            held: config.held + held,
            ..config
        };
        if more.shared_bytes() <= room {
            product.held = Some(config.held);
            config.held += held;
        }
    }
    config.products = all;
    Ok(config)
}
