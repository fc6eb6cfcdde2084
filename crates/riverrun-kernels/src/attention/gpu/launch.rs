//! From buffers to launches.

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::args::{Backward, Forward};
use super::backward::{attention_keys, attention_queries};
use super::bounds::attention_delta;
use super::forward::attention_forward;
use super::plan::{Plan, Tuning};
use super::tensor;
use crate::Error;
use crate::attention::Problem;
use crate::gpu::{Dtype, buffer, expect, grid, vector_width};

/// Computes `o` and `lse`: on tensor cores where [`tensor_cores`](super::tensor_cores) are for the problem, and by plain units
/// elsewhere and with a `tuning`, which is of that form.
///
/// # Errors
/// The errors of [`Problem::check`], [`Error::Dtype`], [`Error::Length`], [`Error::Routine`] for a tuning that the device has no room
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
    let vector = vector_width(client, dtype, 16, shape.dim);
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
                vector,
                buffer(&args.o, queries, vector),
                buffer(&args.d_o, queries, vector),
                buffer(&delta, rows, 1),
                rows,
                plan.sizes(),
                shape.dim / vector,
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
