//! On GPUs: a group of threads divides the rows of `W` among them for a few columns, and adds up their sums in a fixed order. The
//! squares of the norm are added up with them.

mod config;
mod kernel;
mod sums;

use cubecl::client::Client;
use cubecl::server::Handle;

use super::{MATRICES, Matrix, Problem, Then};
use crate::Error;
use crate::gpu::buffer::{address, expect, grid, vector_width};
use crate::gpu::group::{Group, has_planes};
use crate::gpu::overlap::{may_overlap, overlaps};
use crate::gpu::storage::Storage;
use crate::gpu::{Dtype, buffer};
use config::{Config, PlaceLaunch, SizesLaunch};
use kernel::{few_rows, few_rows_beside};

/// Rows at most.
pub const ROWS: usize = 8;

/// Sums of a thread at most: more do not fit into its registers.
const SUMS: usize = 64;

/// Rows of `W` that a thread reads at once, of long inputs: few, so that all loads are on their way. Half as many of short ones.
const PER_THREAD: usize = 8;

/// The most numbers of a short input.
const SHORT: usize = 512;

/// Bytes of shared memory that every device has.
const SHARED: usize = 16 << 10;

/// Columns of a group, in vectors, at most.
const LANES: usize = 4;

/// Threads of a cube that has several groups.
const CUBE: usize = 128;

/// Groups that keep a large GPU busy: with more of them, a group takes more columns at once. Half as many for more than two rows, which
/// every column reads again.
const GROUPS: usize = 192;

/// Whether the kernel takes a problem.
pub fn takes(problem: &Problem) -> bool {
    let Problem { then, .. } = problem;
    (1..=ROWS).contains(&problem.rows)
        && problem.inputs > 0
        && then.takes(problem.matrices.len())
        && problem.matrices.iter().all(|matrix| matrix.columns > 0)
        && !(problem.bias && problem.matrices.len() > 1)
        && problem.rows * then.parts() <= SUMS
}

/// Buffers, all contiguous but for the rows of matrices.
#[derive(Debug, Clone)]
pub struct Buffers {
    /// `[rows, inputs]`.
    pub x: Handle,
    /// `[inputs]`, where there is a norm.
    pub gamma: Option<Handle>,
    /// `[inputs, columns]` of each matrix.
    pub weights: Vec<Handle>,
    /// `[columns]`, where there is a bias.
    pub bias: Option<Handle>,
    /// `[rows, width]`: what is added, or the state, which is overwritten.
    pub with: Option<Handle>,
    /// `[rows, width]` of each `y`, written.
    pub y: Vec<Handle>,
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
    let refuse = |reason: &str| {
        Err(Error::Routine {
            routine: "few rows",
            reason: reason.into(),
        })
    };
    if !takes(problem) {
        return refuse("too many rows, no columns, or matrices that what follows does not take");
    }
    let (rows, inputs, then) = (problem.rows, problem.inputs, problem.then);
    let (matrices, widths) = (&problem.matrices, problem.widths());
    let steps = matches!(then, Then::Step(_));
    let gated = then == Then::Gated && matrices[0].columns != matrices[1].columns;
    if gated || matrices.iter().any(|matrix| matrix.stride < matrix.columns) {
        return refuse("matrices that do not fit each other");
    }
    if steps && inputs != widths[0] {
        return refuse("a state of another width");
    }
    let with = steps || then == Then::Add;
    let there = [
        problem.norm.is_some() == buffers.gamma.is_some(),
        problem.bias == buffers.bias.is_some(),
        with == buffers.with.is_some(),
        matrices.len() == buffers.weights.len(),
        widths.len() == buffers.y.len(),
    ];
    if there.contains(&false) {
        return refuse("a buffer too few or too many");
    }
    let size = dtype.size();
    let (all, out, products) = (rows * inputs, rows * widths[0], matrices[0].columns);
    expect(
        size,
        [
            ("x", Some(&buffers.x), all),
            ("gamma", buffers.gamma.as_ref(), inputs),
            ("bias", buffers.bias.as_ref(), products),
            ("the rows beside it", buffers.with.as_ref(), out),
        ],
    )?;
    for (matrix, weight) in matrices.iter().zip(&buffers.weights) {
        expect(size, [("weight", Some(weight), problem.weights(*matrix))])?;
    }
    for (width, y) in widths.iter().zip(&buffers.y) {
        expect(size, [("y", Some(y), rows * width)])?;
    }
    let config = config(client, problem, dtype);
    let (vector, group) = (config.vector, config.group);
    let mut end = 0;
    let mut places = matrices.iter().map(|matrix| {
        let columns = matrix.columns / then.parts() / vector;
        end += columns.div_ceil(group.lanes);
        PlaceLaunch::new(columns, matrix.stride / vector, end)
    });
    let mut place = || places.next().unwrap_or_else(|| PlaceLaunch::new(0, 0, 0));
    let sizes = SizesLaunch::new(
        inputs,
        place(),
        place(),
        place(),
        (1.0 / inputs as f64) as f32,
        problem.norm.unwrap_or_default() as f32,
    );
    let groups: usize = widths
        .iter()
        .map(|width| (width / vector).div_ceil(group.lanes))
        .sum();
    let x = || buffer(&buffers.x, all, 1);
    let weight = |n: usize| {
        // A matrix that is not there is not read, but an argument has a size.
        let n = if n < matrices.len() { n } else { 0 };
        buffer(&buffers.weights[n], problem.weights(matrices[n]), vector)
    };
    // An output may not share a buffer with another argument.
    let nothing = || buffer(&client.empty(vector * size), vector, vector);
    let y = |n: usize| match widths.get(n) {
        Some(width) => buffer(&buffers.y[n], rows * width, vector),
        None => nothing(),
    };
    let gamma = match &buffers.gamma {
        Some(gamma) => buffer(gamma, inputs, 1),
        None => x(),
    };
    let (cubes, at) = (
        grid(client, groups.div_ceil(group.rows)),
        address(weights(problem), dtype),
    );
    let (words, storage) = (config.storage.width(vector), config.storage.elem(dtype));
    let state = buffers.with.as_ref().filter(|_| steps);
    let weights = buffers.weights.iter().chain(&buffers.bias);
    let early: Vec<_> = weights.chain(&buffers.gamma).chain(state).collect();
    let writes: Vec<_> = buffers.y.iter().chain(state).collect();
    may_overlap(client, &early, &writes, config.let_first());
    // SAFETY: the buffers have been checked or made for the shape, and groups past the last column write nothing.
    unsafe {
        if widths.len() > 1 {
            few_rows_beside::launch_unchecked(
                client,
                cubes,
                group.dim(),
                at,
                words,
                vector,
                x(),
                gamma,
                weight(0),
                weight(1),
                weight(2),
                y(0),
                y(1),
                y(2),
                sizes,
                config,
                dtype.elem(),
                storage,
            );
            return Ok(());
        }
        let (added, state) = match (then, &buffers.with) {
            (Then::Step(_), Some(state)) => {
                (buffer(&buffers.x, all, vector), buffer(state, out, vector))
            }
            (_, Some(added)) => (buffer(added, out, vector), nothing()),
            // The second matrix, if there is one.
            (_, None) => (weight(1), nothing()),
        };
        few_rows::launch_unchecked(
            client,
            cubes,
            group.dim(),
            at,
            words,
            vector,
            x(),
            gamma,
            weight(0),
            match &buffers.bias {
                Some(bias) => buffer(bias, products, vector),
                None => weight(0),
            },
            added,
            state,
            y(0),
            sizes,
            config,
            dtype.elem(),
            storage,
        );
    }
    Ok(())
}

/// Numbers of the largest matrix.
fn weights(problem: &Problem) -> usize {
    let all = problem
        .matrices
        .iter()
        .map(|matrix| problem.weights(*matrix));
    all.max().unwrap_or(0)
}

fn config(client: &Client, problem: &Problem, dtype: Dtype) -> Config {
    let Problem {
        rows, inputs, then, ..
    } = *problem;
    let (matrices, parts) = (&problem.matrices, then.parts());
    let products = if then == Then::Gated { 2 } else { parts };
    // Of numbers that divide every row.
    let divide = |common: usize, matrix: &Matrix| {
        let numbers = 1 << (matrix.columns / parts).trailing_zeros().min(4);
        common
            .min(numbers)
            .min(1 << matrix.stride.trailing_zeros().min(4))
    };
    let width = matrices.iter().fold(16, divide);
    let vector = vector_width(client, dtype, 16, width);
    // Without planes they are in shared memory too.
    let sums = if has_planes(client) { SUMS } else { SUMS / 2 };
    let vector = vector.min(1 << (sums / (rows * products)).max(1).ilog2());
    let columns: usize = problem.widths().iter().map(|width| width / vector).sum();
    let groups = if rows > 2 { GROUPS / 2 } else { GROUPS };
    let mut lanes = 1;
    while lanes < LANES && columns / (2 * lanes) >= groups {
        lanes *= 2;
    }
    let each = if inputs > SHORT {
        PER_THREAD
    } else {
        PER_THREAD / 2
    };
    // A thread of a lane writes a row.
    let group = Group::choose(client, inputs.max(ROWS * each), each, CUBE);
    let mut group = group.with_lanes(client, lanes, CUBE);
    let count = rows * products * vector + if problem.norm.is_some() { rows } else { 0 };
    while !group.planes && 4 * group.scratch(count) > SHARED {
        if group.rows > 1 {
            group.rows /= 2;
        } else if group.units > ROWS * lanes {
            group.units /= 2;
        } else {
            break;
        }
    }
    let deep = group.units / lanes;
    let per_thread = inputs.div_ceil(deep);
    let batch = if per_thread > 2 * PER_THREAD {
        PER_THREAD
    } else {
        per_thread
    };
    let batches = per_thread.div_ceil(batch);
    let storage = Storage::choose(client, dtype, vector);
    Config {
        rows,
        matrices: matrices.len(),
        vector,
        batch,
        batches,
        whole: inputs == batches * batch * deep,
        norm: problem.norm.is_some(),
        bias: problem.bias,
        then,
        storage,
        ptx: client.name() == "cuda",
        overlaps: overlaps(client),
        words: storage.width(vector) == 4 && (dtype == Dtype::F32 || storage != Storage::Plain),
        group,
    }
}

const _: () = assert!(MATRICES == 3, "the kernel has three arguments for them");
