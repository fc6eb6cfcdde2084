//! From a problem and its buffers to a launch.

use cubecl::client::Client;
use cubecl::prelude::*;

use super::cluster::{CUBES, UNITS, rollout_cluster};
use super::cube::rollout_cube;
use super::{Buffers, Routine, cluster, cube};
use crate::Error;
use crate::gpu::group::Group;
use crate::gpu::{Dtype, address, buffer, grid, ptx, vector_width};
use crate::rollout::{Decode, LARGEST_HIDDEN, Problem};

/// Units of a cube that has a member to itself.
const CUBE: usize = 256;
/// Planes of a cube of a cluster, at most; beyond, each has more hidden units.
const PLANES: usize = 16;
/// Registers of a multiprocessor.
const REGISTERS: usize = 65_536;

/// Why a routine cannot run a problem on this device, if it cannot.
pub fn missing(client: &Client, problem: &Problem, routine: Routine) -> Option<String> {
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
        Routine::Cluster => {
            let clusters = ptx(client) && client.properties().features.cube_cluster;
            let most = client.properties().hardware.max_cube_count.0 as usize / CUBES;
            if !clusters {
                Some("the device has no clusters of cubes".into())
            } else if problem.members > most {
                Some(format!("a launch has {most} clusters at most"))
            } else {
                None
            }
        }
    }
}

/// The routine that runs where none is asked for.
pub fn choose(client: &Client, problem: &Problem) -> Routine {
    match missing(client, problem, Routine::Cluster) {
        None => Routine::Cluster,
        Some(_) => Routine::Cube,
    }
}

/// How the planes of a cluster share a member.
fn share(problem: &Problem) -> cluster::Config {
    let planes = problem.hidden.div_ceil(CUBES * UNITS);
    let groups = planes.div_ceil(PLANES);
    let config = cluster::Config {
        hidden: problem.hidden,
        stochastic: problem.stochastic,
        features: problem.features,
        linear: problem.decode == Decode::Linear,
        planes: planes.div_ceil(groups),
        groups,
        resident: false,
    };
    debug_assert!(CUBES * config.units() >= problem.hidden);
    // Weights, heads and state, and what the rest of the kernel takes.
    let columns = config.columns();
    let registers = 3 * groups * UNITS * columns + 5 * columns + 60;
    let most = (REGISTERS / (32 * config.planes)).min(255);
    cluster::Config {
        resident: registers <= most,
        ..config
    }
}

/// Numbers of the longest buffer.
fn longest(problem: &Problem) -> usize {
    let lengths = problem.lengths().map(|(_, length)| length);
    let rows = problem.members * problem.row();
    lengths.into_iter().fold(rows, usize::max)
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
        Routine::Cluster => run_cluster(client, problem, args),
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
            address(longest(problem), Dtype::F32),
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

fn run_cluster(client: &Client, problem: &Problem, args: &Buffers) {
    let config = share(problem);
    let [w, u, bias, heads, h0, features, loss] = problem.lengths().map(|(_, length)| length);
    // Safety: as in `run_cube`.
    unsafe {
        rollout_cluster::launch_unchecked(
            client,
            CubeCount::Static((problem.members * CUBES) as u32, 1, 1),
            CubeDim::new_2d(32, config.planes as u32),
            address(longest(problem), Dtype::F32),
            buffer(&args.w, w, 1),
            buffer(&args.u, u, 1),
            buffer(&args.bias, bias, 1),
            buffer(&args.heads, heads, 1),
            buffer(&args.h0, h0, 1),
            buffer(&args.features, features, 1),
            buffer(&args.loss, loss, 1),
            buffer(&args.rows, problem.members * problem.row(), 1),
            problem.steps,
            config,
        );
    }
}

#[cfg(test)]
mod tests {
    use cubecl::ir::AddressType;

    use super::*;

    #[test]
    fn indices_reach_the_longest_buffer() {
        let width = |problem: &Problem| address(longest(problem), Dtype::F32);
        let problem = Problem::new(4, 64, 10);
        assert_eq!(width(&problem), AddressType::U32);
        let long = Problem {
            steps: 1 << 28,
            ..problem
        };
        assert_eq!(width(&long), AddressType::U64);
        let wide = Problem {
            features: 1 << 26,
            ..problem
        };
        assert_eq!(width(&wide), AddressType::U64);
    }
}
