//! From a problem and its buffers to a launch.

use cubecl::client::Client;

use super::cube::rollout_cube;
use super::{Buffers, Routine, cube};
use crate::Error;
use crate::gpu::group::Group;
use crate::gpu::{Dtype, address, buffer, grid, vector_width};
use crate::rollout::{Decode, LARGEST_HIDDEN, Problem};

/// Units of a cube that has a member to itself.
const CUBE: usize = 256;

/// Why a routine cannot run a problem on this device, if it cannot.
pub fn missing(_client: &Client, problem: &Problem, routine: Routine) -> Option<String> {
    if let Err(error) = problem.check() {
        return Some(error.to_string());
    }
    if problem.hidden > LARGEST_HIDDEN {
        return Some(format!(
            "H = {} hidden units, the kernels take up to {LARGEST_HIDDEN}",
            problem.hidden
        ));
    }
    match routine {
        Routine::Cube => None,
    }
}

/// The routine that runs where none is asked for.
pub fn choose(_client: &Client, _problem: &Problem) -> Routine {
    Routine::Cube
}

/// Runs every member; all results are written.
///
/// # Errors
/// [`Error::Rollout`] for sizes that do not fit, [`Error::Length`] for buffers that are too small, [`Error::Routine`] where
/// [`missing`] has a reason; nothing has been launched then.
pub fn run(
    client: &Client,
    problem: &Problem,
    args: &Buffers,
    routine: Option<Routine>,
) -> Result<(), Error> {
    problem.check()?;
    let routine = routine.unwrap_or_else(|| choose(client, problem));
    if let Some(reason) = missing(client, problem, routine) {
        return Err(Error::Routine {
            routine: routine.name(),
            reason,
        });
    }
    Dtype::F32.check(client)?;
    let buffers = [
        &args.w,
        &args.u,
        &args.bias,
        &args.heads,
        &args.h0,
        &args.features,
        &args.loss,
    ];
    let lengths = problem.lengths();
    let rows = ("rows", problem.members * problem.row());
    let all = lengths.into_iter().zip(buffers);
    for ((what, expected), handle) in all.chain([(rows, &args.rows)]) {
        let found = handle.size_in_used() as usize / 4;
        if found < expected {
            return Err(Error::Length {
                what,
                expected,
                found,
            });
        }
    }
    if problem.members == 0 {
        return Ok(());
    }
    tracing::debug!(
        routine = routine.name(),
        members = problem.members,
        hidden = problem.hidden,
        steps = problem.steps,
        "rollout"
    );
    match routine {
        Routine::Cube => run_cube(client, problem, args),
    }
    Ok(())
}

fn run_cube(client: &Client, problem: &Problem, args: &Buffers) {
    let vector = vector_width(client, Dtype::F32, 16, problem.hidden);
    let config = cube::Config {
        hidden: problem.hidden,
        stochastic: problem.stochastic,
        features: problem.features,
        linear: problem.decode == Decode::Linear,
        ptx: client.name() == "cuda",
        group: Group {
            rows: 1,
            ..Group::choose(client, problem.hidden.min(CUBE), 1, CUBE)
        },
    };
    let [w, u, bias, heads, h0, features, loss] = problem.lengths().map(|(_, length)| length);
    // Safety: the lengths have been checked by `run`; the kernel indexes within them.
    unsafe {
        rollout_cube::launch_unchecked(
            client,
            grid(client, problem.members),
            config.group.dim(),
            address(u.max(w), Dtype::F32),
            vector,
            buffer(&args.w, w, 1),
            buffer(&args.u, u, vector),
            buffer(&args.bias, bias, 1),
            buffer(&args.heads, heads, 1),
            buffer(&args.h0, h0, 1),
            buffer(&args.features, features, 1),
            buffer(&args.loss, loss, 1),
            buffer(&args.rows, problem.members * problem.row(), 1),
            problem.members,
            problem.steps,
            config,
        );
    }
}
