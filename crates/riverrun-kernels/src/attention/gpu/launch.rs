//! From shapes and buffers to launches.

use cubecl::client::Client;
use cubecl::ir::AddressType;
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::backward::{attention_keys, attention_queries};
use super::bounds::{attention_bounds, attention_delta};
use super::forward::attention_forward;
use super::score::{Rule, SizesLaunch};
use super::tensor;
use super::tile::Config;
use crate::Error;
use crate::attention::Problem;
use crate::gpu::{Dtype, address, buffer, expect, grid, ptx};

/// Buffers of a forward pass, all contiguous.
#[derive(Debug, Clone)]
pub struct Forward {
    /// `[B, T, H, D]`.
    pub q: Handle,
    /// `[B, S, Hk, D]`.
    pub k: Handle,
    /// `[B, S, Hk, D]`.
    pub v: Handle,
    /// `[B, S]`, in the storage type; not 0 means that a document starts.
    pub reset: Option<Handle>,
    /// `[B, T, H, D]`, written.
    pub o: Handle,
    /// `[B, H, T]`, `f32`, written.
    pub lse: Handle,
}

/// Buffers of a backward pass, all contiguous.
#[derive(Debug, Clone)]
pub struct Backward {
    /// `[B, T, H, D]`, as in the forward pass.
    pub q: Handle,
    /// `[B, S, Hk, D]`, as in the forward pass.
    pub k: Handle,
    /// `[B, S, Hk, D]`, as in the forward pass.
    pub v: Handle,
    /// `[B, S]`, as in the forward pass.
    pub reset: Option<Handle>,
    /// `[B, T, H, D]`, what the forward pass wrote.
    pub o: Handle,
    /// `[B, H, T]`, what the forward pass wrote.
    pub lse: Handle,
    /// `[B, T, H, D]`, `∂L/∂o`.
    pub d_o: Handle,
    /// `[B, T, H, D]`, written.
    pub d_q: Handle,
    /// `[B, S, Hk, D]`, written.
    pub d_k: Handle,
    /// `[B, S, Hk, D]`, written.
    pub d_v: Handle,
}

/// The numbers that shape a launch of the form with plain units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuning {
    /// Units of a side of a cube: 8 or 16, for tiles of 32 or 64.
    pub side: usize,
    /// Channels in shared memory at a time: 16 or 32.
    pub chunk: usize,
}

impl Tuning {
    /// The tunings that there are, best first.
    pub const ALL: [Tuning; 3] = [
        Tuning {
            side: 16,
            chunk: 32,
        },
        Tuning {
            side: 16,
            chunk: 16,
        },
        Tuning { side: 8, chunk: 16 },
    ];

    /// The best for a problem on a device. It needs shared memory and units, of which WebGPU promises enough for the last.
    pub fn default_for(client: &Client, problem: &Problem) -> Self {
        let [_, _, last] = Self::ALL;
        // A tile of 64 queries would be half empty.
        if problem.shape.queries <= 32 {
            return last;
        }
        let fits = |tuning: &&Self| tuning.fits(client, problem);
        Self::ALL.iter().find(fits).copied().unwrap_or(last)
    }

    /// Whether the device has room for it.
    pub fn fits(&self, client: &Client, problem: &Problem) -> bool {
        let hardware = &client.properties().hardware;
        // Above this a CUDA kernel has to ask for shared memory, and fewer cubes share a multiprocessor.
        let room = hardware.max_shared_memory_size.min(48 << 10);
        self.config(problem, rule(problem, false, false)).shared() <= room
            && self.side * self.side <= hardware.max_units_per_cube as usize
    }

    fn config(self, problem: &Problem, rule: Rule) -> Config {
        Config {
            side: self.side,
            chunk: self.chunk,
            dim: problem.shape.dim,
            rule,
        }
    }
}

fn rule(problem: &Problem, reset: bool, ptx: bool) -> Rule {
    Rule {
        causal: problem.causal,
        window: problem.window.is_some(),
        softcap: problem.softcap.is_some(),
        reset,
        ptx,
    }
}

/// Values that the launches derive from their arguments.
pub(super) struct Plan<'a> {
    pub client: &'a Client,
    pub problem: &'a Problem,
    pub dtype: Dtype,
    pub config: Config,
    pub address: AddressType,
    pub cube: CubeDim,
}

impl<'a> Plan<'a> {
    fn new(
        client: &'a Client,
        problem: &'a Problem,
        dtype: Dtype,
        reset: bool,
        tuning: Option<Tuning>,
    ) -> Result<Self, Error> {
        dtype.check(client)?;
        problem.check(reset)?;
        let shape = problem.shape;
        if shape.keys.max(shape.queries) > u32::MAX as usize {
            let reason = "expected fewer than 2^32 queries and keys".into();
            return Err(Error::Attention { reason });
        }
        let tuning = tuning.unwrap_or_else(|| Tuning::default_for(client, problem));
        if !Tuning::ALL.contains(&tuning) || !tuning.fits(client, problem) {
            return Err(Error::Routine {
                routine: "attention",
                reason: format!("the device has no room for {tuning:?}"),
            });
        }
        let side = tuning.side as u32;
        let largest = shape.query_elements().max(shape.key_elements());
        Ok(Self {
            client,
            problem,
            dtype,
            config: tuning.config(problem, rule(problem, reset, ptx(client))),
            address: address(largest, dtype),
            cube: CubeDim::new_2d(side, side),
        })
    }

    pub(super) fn sizes(&self) -> SizesLaunch {
        let shape = self.problem.shape;
        // A window of all positions there are hides nothing.
        let all = shape.keys.saturating_add(shape.queries).max(1);
        SizesLaunch::new(
            shape.queries,
            shape.keys,
            shape.heads,
            shape.key_heads,
            self.problem.window.unwrap_or(all).min(all),
            self.problem.scale as f32,
            self.problem.softcap.unwrap_or(1.0) as f32,
        )
    }

    /// The range of keys of each query, where documents are marked; else a buffer that is not read.
    pub(super) fn bounds(&self, reset: Option<&Handle>) -> (Handle, usize) {
        let shape = self.problem.shape;
        let Some(reset) = reset else {
            return (self.client.empty(8), 2);
        };
        let rows = shape.batch * shape.queries;
        let bounds = self.client.empty(rows * 8);
        // SAFETY: the buffers have been checked or made for the shape, and the kernel checks its position.
        unsafe {
            attention_bounds::launch_unchecked(
                self.client,
                grid(self.client, rows.div_ceil(64)),
                CubeDim::new_1d(64),
                self.address,
                buffer(reset, shape.marks(), 1),
                buffer(&bounds, rows * 2, 1),
                rows,
                self.sizes(),
                self.config.rule,
                self.dtype.elem(),
            );
        }
        (bounds, rows * 2)
    }
}

/// Computes `o` and `lse`: on tensor cores where [`tensor_cores`](super::tensor_cores) are for the problem, and by plain units
/// elsewhere and with a `tuning`, which is of that form.
///
/// # Errors
/// Those of [`Problem::check`], [`Error::Dtype`], [`Error::Length`], [`Error::Routine`] for a tuning that the device has no room
/// for; nothing has been launched then.
pub fn forward(
    client: &Client,
    problem: &Problem,
    dtype: Dtype,
    args: &Forward,
    tuning: Option<Tuning>,
) -> Result<(), Error> {
    let plan = Plan::new(client, problem, dtype, args.reset.is_some(), tuning)?;
    let shape = problem.shape;
    let (queries, keys) = (shape.query_elements(), shape.key_elements());
    let buffers = [
        ("q", Some(&args.q), queries),
        ("k", Some(&args.k), keys),
        ("v", Some(&args.v), keys),
        ("reset", args.reset.as_ref(), shape.marks()),
        ("o", Some(&args.o), queries),
    ];
    expect(dtype.size(), buffers)?;
    expect(4, [("lse", Some(&args.lse), shape.rows())])?;
    if shape.rows() == 0 {
        return Ok(());
    }
    if tuning.is_none()
        && let Some(config) = tensor::Config::choose(&plan, tensor::Pass::Forward)
    {
        tensor::forward(&plan, args, config);
        return Ok(());
    }
    let (bounds, count) = plan.bounds(args.reset.as_ref());
    // Without keys they are not read, but a binding has a size.
    let key = |handle: &Handle| match keys {
        0 => buffer(&args.q, queries, 1),
        _ => buffer(handle, keys, 1),
    };
    let lanes = shape.batch * shape.heads;
    let cubes = lanes * shape.queries.div_ceil(plan.config.tile());
    // SAFETY: the buffers have been checked or made for the shape, and cubes past the last end at once.
    unsafe {
        attention_forward::launch_unchecked(
            client,
            grid(client, cubes),
            plan.cube,
            plan.address,
            buffer(&args.q, queries, 1),
            key(&args.k),
            key(&args.v),
            buffer(&bounds, count, 1),
            buffer(&args.o, queries, 1),
            buffer(&args.lse, shape.rows(), 1),
            cubes,
            plan.sizes(),
            plan.config,
            dtype.elem(),
        );
    }
    Ok(())
}

/// Computes the gradients.
///
/// # Errors
/// As [`forward`].
pub fn backward(
    client: &Client,
    problem: &Problem,
    dtype: Dtype,
    args: &Backward,
    tuning: Option<Tuning>,
) -> Result<(), Error> {
    let plan = Plan::new(client, problem, dtype, args.reset.is_some(), tuning)?;
    let shape = problem.shape;
    let (queries, keys, rows) = (shape.query_elements(), shape.key_elements(), shape.rows());
    let buffers = [
        ("q", Some(&args.q), queries),
        ("k", Some(&args.k), keys),
        ("v", Some(&args.v), keys),
        ("reset", args.reset.as_ref(), shape.marks()),
        ("o", Some(&args.o), queries),
        ("d_o", Some(&args.d_o), queries),
        ("d_q", Some(&args.d_q), queries),
        ("d_k", Some(&args.d_k), keys),
        ("d_v", Some(&args.d_v), keys),
    ];
    expect(dtype.size(), buffers)?;
    expect(4, [("lse", Some(&args.lse), rows)])?;
    let tile = plan.config.tile();
    let key = |handle: &Handle| match keys {
        0 => buffer(&args.q, queries, 1),
        _ => buffer(handle, keys, 1),
    };
    // Without queries they are not read.
    let query = |handle: &Handle| match queries {
        0 => buffer(&args.k, keys, 1),
        _ => buffer(handle, queries, 1),
    };
    let delta = client.empty(rows.max(1) * 4);
    let (bounds, count) = match rows {
        0 => plan.bounds(None),
        _ => plan.bounds(args.reset.as_ref()),
    };
    let none = client.empty(4);
    let lse = || match rows {
        0 => buffer(&none, 1, 1),
        _ => buffer(&args.lse, rows, 1),
    };
    // SAFETY: the buffers have been checked or made for the shape, and what is past the last row or cube ends at once.
    unsafe {
        if rows > 0 {
            attention_delta::launch_unchecked(
                client,
                grid(client, rows.div_ceil(64)),
                CubeDim::new_1d(64),
                plan.address,
                buffer(&args.o, queries, 1),
                buffer(&args.d_o, queries, 1),
                buffer(&delta, rows, 1),
                rows,
                plan.sizes(),
                shape.dim,
                dtype.elem(),
            );
        }
        let config = |pass| match tuning {
            None => tensor::Config::choose(&plan, pass),
            Some(_) => None,
        };
        if rows > 0
            && let Some(config) = config(tensor::Pass::Queries)
        {
            tensor::queries(&plan, args, &delta, (&bounds, count), config);
        } else if rows > 0 {
            let cubes = shape.batch * shape.heads * shape.queries.div_ceil(tile);
            attention_queries::launch_unchecked(
                client,
                grid(client, cubes),
                plan.cube,
                plan.address,
                buffer(&args.q, queries, 1),
                key(&args.k),
                key(&args.v),
                buffer(&args.d_o, queries, 1),
                buffer(&bounds, count, 1),
                lse(),
                buffer(&delta, rows, 1),
                buffer(&args.d_q, queries, 1),
                cubes,
                plan.sizes(),
                plan.config,
                dtype.elem(),
            );
        }
        if keys > 0
            && let Some(config) = config(tensor::Pass::Keys)
        {
            tensor::keys(&plan, args, &delta, (&bounds, count), config);
        } else if keys > 0 {
            let cubes = shape.batch * shape.key_heads * shape.keys.div_ceil(tile);
            attention_keys::launch_unchecked(
                client,
                grid(client, cubes),
                plan.cube,
                plan.address,
                query(&args.q),
                buffer(&args.k, keys, 1),
                buffer(&args.v, keys, 1),
                query(&args.d_o),
                buffer(&bounds, count, 1),
                lse(),
                buffer(&delta, rows.max(1), 1),
                buffer(&args.d_k, keys, 1),
                buffer(&args.d_v, keys, 1),
                cubes,
                plan.sizes(),
                plan.config,
                dtype.elem(),
            );
        }
    }
    Ok(())
}
