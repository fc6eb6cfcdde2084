//! From a plan to launches.

use cubecl::prelude::*;
use cubecl::server::Handle;

use super::config::Config;
use super::forward::attention_forward_tensor;
use super::keys::attention_keys_tensor;
use super::queries::attention_queries_tensor;
use super::warpgroup::{attention_forward_groups, attention_keys_groups, attention_queries_groups};
use crate::attention::gpu::args::{Backward, Forward};
use crate::attention::gpu::plan::Plan;
use crate::gpu::{buffer, grid};

/// The most channels for which a plane has registers for the sums of `dk` and of `dv`.
const BOTH: usize = 128;

impl Config {
    fn cube(&self) -> CubeDim {
        CubeDim::new_2d(32, self.planes as u32)
    }
}

/// Computes `o` and `lse`. There are queries, and the buffers have been checked.
pub(in crate::attention::gpu) fn forward(plan: &Plan, args: &Forward, config: Config) {
    let shape = plan.problem.shape;
    let (queries, keys) = (shape.query_elements(), shape.key_elements());
    let (bounds, count) = plan.bounds(args.reset.as_ref());
    // Without keys they are not read, but a binding has a size.
    let key = |handle: &Handle| match keys {
        0 => buffer(&args.q, queries, 2),
        _ => buffer(handle, keys, 2),
    };
    let cubes = shape.batch * shape.heads * shape.queries.div_ceil(config.rows());
    macro_rules! launch {
        ($form:ident, $width:expr) => {
            $form::launch_unchecked(
                plan.client,
                grid(plan.client, cubes),
                config.cube(),
                plan.address,
                buffer(&args.q, queries, 2),
                key(&args.k),
                key(&args.v),
                buffer(&bounds, count, 1),
                buffer(&args.o, queries, $width),
                buffer(&args.lse, shape.rows(), 1),
                cubes,
                plan.sizes(),
                config,
            )
        };
    }
    // SAFETY: the buffers have been checked or made for the shape, and cubes past the last end at once.
    unsafe {
        match config.panels {
            true => launch!(attention_forward_groups, 8),
            false => launch!(attention_forward_tensor, 2),
        }
    }
}

/// Computes `d_q`. There are queries, and the buffers have been checked; `delta` is there.
pub(in crate::attention::gpu) fn queries(
    plan: &Plan,
    args: &Backward,
    delta: &Handle,
    bounds: (&Handle, usize),
    config: Config,
) {
    let shape = plan.problem.shape;
    let (queries, keys, rows) = (shape.query_elements(), shape.key_elements(), shape.rows());
    let key = |handle: &Handle| match keys {
        0 => buffer(&args.q, queries, 2),
        _ => buffer(handle, keys, 2),
    };
    let cubes = shape.batch * shape.heads * shape.queries.div_ceil(config.rows());
    macro_rules! launch {
        ($form:ident, $width:expr) => {
            $form::launch_unchecked(
                plan.client,
                grid(plan.client, cubes),
                config.cube(),
                plan.address,
                buffer(&args.q, queries, 2),
                key(&args.k),
                key(&args.v),
                buffer(&args.d_o, queries, 2),
                buffer(bounds.0, bounds.1, 1),
                buffer(&args.lse, rows, 1),
                buffer(delta, rows, 1),
                buffer(&args.d_q, queries, $width),
                cubes,
                plan.sizes(),
                config,
            )
        };
    }
    // SAFETY: as above.
    unsafe {
        match config.panels {
            true => launch!(attention_queries_groups, 8),
            false => launch!(attention_queries_tensor, 2),
        }
    }
}

/// Computes `d_k` and `d_v`. There are keys, and the buffers have been checked; `delta` is there, if there are queries.
pub(in crate::attention::gpu) fn keys(
    plan: &Plan,
    args: &Backward,
    delta: &Handle,
    bounds: (&Handle, usize),
    config: Config,
) {
    let shape = plan.problem.shape;
    let (queries, keys, rows) = (shape.query_elements(), shape.key_elements(), shape.rows());
    // Without queries they are not read.
    let query = |handle: &Handle| match queries {
        0 => buffer(&args.k, keys, 2),
        _ => buffer(handle, queries, 2),
    };
    let number = |handle: &Handle| match rows {
        0 => buffer(delta, 1, 1),
        _ => buffer(handle, rows, 1),
    };
    let cubes = shape.batch * shape.key_heads * shape.keys.div_ceil(config.rows());
    macro_rules! launch {
        ($form:ident, $width:expr $(, $wanted:expr)?) => {
            $form::launch_unchecked(
                plan.client,
                grid(plan.client, cubes),
                config.cube(),
                plan.address,
                query(&args.q),
                buffer(&args.k, keys, 2),
                buffer(&args.v, keys, 2),
                query(&args.d_o),
                buffer(bounds.0, bounds.1, 1),
                number(&args.lse),
                number(delta),
                buffer(&args.d_k, keys, $width),
                buffer(&args.d_v, keys, $width),
                cubes,
                plan.sizes(),
                config,
                $($wanted,)?
            )
        };
    }
    // SAFETY: as above.
    unsafe {
        match (config.panels, shape.dim) {
            (true, _) => launch!(attention_keys_groups, 8),
            (false, ..=BOTH) => launch!(attention_keys_tensor, 2, [true; 2]),
            (false, _) => {
                launch!(attention_keys_tensor, 2, [true, false]);
                launch!(attention_keys_tensor, 2, [false, true]);
            }
        }
    }
}
