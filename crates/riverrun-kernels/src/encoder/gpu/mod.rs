//! The GPU form: one cube for each run. Its threads add up the history in parallel; one thread computes the formulas.

mod kernel;

use cubecl::client::Client;
use cubecl::server::Handle;

use super::flat::check_flat;
use super::{FEATURES, SCALARS};
use crate::Error;
use crate::gpu::group::Group;
use crate::gpu::{Dtype, address, buffer, grid};
use kernel::encode_states;

/// Threads of a cube.
const UNITS: usize = 64;

/// Buffers in `f32`, all contiguous; see [`FlatStates`](super::FlatStates).
#[derive(Debug, Clone)]
pub struct Buffers {
    /// `[N, L]`.
    pub losses: Handle,
    /// `[N, G]`.
    pub gradients: Handle,
    /// `[N, 24]`.
    pub scalars: Handle,
    /// `[N, 64]`, written.
    pub features: Handle,
}

/// The features of `runs` runs with rings of `each` losses and gradient norms.
///
/// # Errors
/// [`Error::Encoder`] for rings under 32, [`Error::Length`] for buffers that are too small; nothing has been launched then.
pub fn encode(client: &Client, runs: usize, each: [usize; 2], args: &Buffers) -> Result<(), Error> {
    Dtype::F32.check(client)?;
    let [losses, gradients] = each.map(|each| runs * each);
    check_flat(each, losses, gradients, runs * SCALARS)?;
    for (what, handle, expected) in [
        ("losses", &args.losses, losses),
        ("gradients", &args.gradients, gradients),
        ("scalars", &args.scalars, runs * SCALARS),
        ("features", &args.features, runs * FEATURES),
    ] {
        let found = handle.size_in_used() as usize / 4;
        if found < expected {
            return Err(Error::Length {
                what,
                expected,
                found,
            });
        }
    }
    if runs == 0 {
        return Ok(());
    }
    let group = Group {
        rows: 1,
        ..Group::choose(client, UNITS, 1, UNITS)
    };
    // Safety: the lengths have just been checked; the kernel indexes within them.
    unsafe {
        encode_states::launch_unchecked(
            client,
            grid(client, runs),
            group.dim(),
            address(losses.max(gradients).max(runs * FEATURES), Dtype::F32),
            buffer(&args.losses, losses, 1),
            buffer(&args.gradients, gradients, 1),
            buffer(&args.scalars, runs * SCALARS, 1),
            buffer(&args.features, runs * FEATURES, 1),
            runs,
            each[0],
            each[1],
            group,
        );
    }
    Ok(())
}
