//! On GPUs: a group of threads divides the rows of `W` among them for a few columns, and adds up their sums in a fixed order. The
//! squares of the norm are added up with them.

mod kernel;

use cubecl::client::Client;
use cubecl::server::Handle;

use super::{Problem, Then};
use crate::Error;
use crate::gpu::buffer::{address, expect, grid, vector_width};
use crate::gpu::group::Group;
use crate::gpu::storage::Storage;
use crate::gpu::{Dtype, buffer};
use kernel::{Config, SizesLaunch, few_rows};

/// Rows at most.
pub const ROWS: usize = 8;

/// Sums of a thread at most: more do not fit into its registers.
const SUMS: usize = 64;

/// Rows of `W` for a thread: few, so that all its loads are on their way at once.
const PER_THREAD: usize = 4;

/// Threads of a cube that has several groups.
const CUBE: usize = 128;

/// Whether the kernel takes a problem.
pub fn takes(problem: &Problem) -> bool {
    (1..=ROWS).contains(&problem.rows)
        && problem.inputs > 0
        && problem.width > 0
        && problem.rows * problem.then.parts() <= SUMS
}

/// Buffers, all contiguous but for the rows of `W`.
#[derive(Debug, Clone)]
pub struct Buffers {
    /// `[rows, inputs]`.
    pub x: Handle,
    /// `[inputs]`, where there is a norm.
    pub gamma: Option<Handle>,
    /// `[inputs, parts * width]`.
    pub weight: Handle,
    /// `[parts * width]`, where there is a bias.
    pub bias: Option<Handle>,
    /// `[rows, width]`: what is added, or the state, which is overwritten.
    pub with: Option<Handle>,
    /// `[rows, width]`, written.
    pub y: Handle,
}

/// Computes `y`, and the next state in the place of the state.
///
/// # Errors
/// [`Error::Dtype`], [`Error::Length`], [`Error::Routine`] for a problem that the kernel does not [take](takes); nothing has been
/// launched then.
pub fn run(
    client: &Client,
    problem: &Problem,
    dtype: Dtype,
    buffers: &Buffers,
) -> Result<(), Error> {
    dtype.check(client)?;
    let refuse = |reason: String| Error::Routine {
        routine: "few rows",
        reason,
    };
    if !takes(problem) {
        return Err(refuse(format!("not from 1 to {ROWS} rows, or no columns")));
    }
    let &Problem {
        rows,
        inputs,
        width,
        stride,
        then,
        ..
    } = problem;
    let (parts, products) = (then.parts(), problem.products());
    let steps = matches!(then, Then::Step(_));
    if stride < products || steps && inputs != width {
        return Err(refuse("rows that do not fit each other".into()));
    }
    let needed = |wanted: bool, handle: Option<&Handle>| match wanted == handle.is_some() {
        true => Ok(()),
        false => Err(refuse("a buffer too few or too many".into())),
    };
    needed(problem.norm.is_some(), buffers.gamma.as_ref())?;
    needed(problem.bias, buffers.bias.as_ref())?;
    needed(steps || then == Then::Add, buffers.with.as_ref())?;
    let (all, out) = (rows * inputs, rows * width);
    expect(
        dtype.size(),
        [
            ("x", Some(&buffers.x), all),
            ("gamma", buffers.gamma.as_ref(), inputs),
            ("weight", Some(&buffers.weight), problem.weights()),
            ("bias", buffers.bias.as_ref(), products),
            ("the rows beside it", buffers.with.as_ref(), out),
            ("y", Some(&buffers.y), out),
        ],
    )?;
    let most = SUMS / (rows * parts);
    let vector = vector_width(client, dtype, 16, width).min(1 << stride.trailing_zeros().min(4));
    let vector = vector.min(1 << most.ilog2());
    let columns = width / vector;
    // Two vectors of 16 bytes are what the memory gives at once.
    let vectors = if 2 * vector <= most && columns.is_multiple_of(2) {
        2
    } else {
        1
    };
    let group = Group::choose(client, inputs, PER_THREAD, CUBE);
    let storage = Storage::choose(client, dtype, vector);
    let per_thread = inputs.div_ceil(group.units);
    let ptx = client.name() == "cuda";
    let config = Config {
        rows,
        parts,
        vectors,
        vector,
        per_thread,
        whole: inputs == per_thread * group.units,
        norm: problem.norm.is_some(),
        bias: problem.bias,
        then,
        storage,
        ptx,
        group,
    };
    let cubes = (columns / vectors).div_ceil(group.rows);
    let x = || buffer(&buffers.x, all, 1);
    let wide_x = || match steps {
        true => buffer(&buffers.x, all, vector),
        // Neither is read, but an argument has a size.
        false => buffer(&buffers.weight, problem.weights(), vector),
    };
    let (added, state) = match (then, &buffers.with) {
        (Then::Step(_), Some(state)) => (wide_x(), buffer(state, out, vector)),
        (_, Some(added)) => (
            buffer(added, out, vector),
            // An output may not share a buffer with another argument.
            buffer(&client.empty(vector * dtype.size()), vector, vector),
        ),
        (_, None) => (
            wide_x(),
            buffer(&client.empty(vector * dtype.size()), vector, vector),
        ),
    };
    // SAFETY: the buffers have been checked or made for the shape, and groups past the last column write nothing.
    unsafe {
        few_rows::launch_unchecked(
            client,
            grid(client, cubes),
            group.dim(),
            address(problem.weights(), dtype),
            storage.width(vector),
            vector,
            x(),
            match &buffers.gamma {
                Some(gamma) => buffer(gamma, inputs, 1),
                None => x(),
            },
            buffer(&buffers.weight, problem.weights(), vector),
            match &buffers.bias {
                Some(bias) => buffer(bias, products, vector),
                None => wide_x(),
            },
            added,
            state,
            buffer(&buffers.y, out, vector),
            SizesLaunch::new(
                inputs,
                columns,
                stride / vector,
                (1.0 / inputs as f64) as f32,
                problem.norm.unwrap_or_default() as f32,
            ),
            config,
            dtype.elem(),
            storage.elem(dtype),
        );
    }
    Ok(())
}
