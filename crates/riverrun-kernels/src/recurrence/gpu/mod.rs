//! The GPU forms: three routines, one rule that chooses among them.
//!
//! | routine | reads inputs | needs | good for |
//! | --- | --- | --- | --- |
//! | [`Routine::Sequential`] | once | nothing | short sequences; in 16 bits, gates with lanes for every thread of the device |
//! | [`Routine::LookBack`] | once | CUDA or ROCm, atomic 64-bit words | everything longer |
//! | [`Routine::Chunked`] | twice | nothing | long sequences elsewhere |

mod args;
mod buffers;
mod choice;
mod chunked;
mod class;
mod handover;
mod launch;
mod look_back;
mod plan;
mod sequential;
mod tile;
mod tuning;
mod workspace;

pub use args::{Backward, Forward, Inputs, Strided};
pub use class::{Class, Lanes};
pub use launch::{backward, forward};
use tuning::SEQUENTIAL_CUBE;
pub use tuning::{Registers, Tuning};

use cubecl::client::Client;
use cubecl::ir::features::AtomicUsage;
use cubecl::ir::{ElemType, Type, UIntKind};

use super::{Gate, Problem, Routine};
use crate::Error;
use crate::gpu::{Dtype, storage};

impl Routine {
    /// Why this device cannot run the routine, if it cannot.
    pub fn missing(self, client: &Client) -> Option<String> {
        if self != Routine::LookBack {
            return None;
        }
        if !matches!(client.name(), "cuda" | "hip") {
            return Some(
                "the runtime does not promise that a waiting cube lets others go on".into(),
            );
        }
        let properties = client.properties();
        if !properties.features.device_memory_scope {
            return Some("the device promises no memory order between cubes".into());
        }
        let word = Type::atomic(ElemType::UInt(UIntKind::U64));
        if !properties
            .atomic_type_usage(word)
            .contains(AtomicUsage::LoadStore)
        {
            return Some("the device has no atomic 64-bit words".into());
        }
        let units = properties.hardware.max_units_per_cube;
        if units < 256 {
            return Some(format!("needs 256 units a cube, the device has {units}"));
        }
        None
    }

    /// The routine for a problem: the forced one if there is one, else by measured rule.
    ///
    /// # Errors
    /// [`Error::Routine`] when the forced routine cannot run on the device.
    pub fn choose(
        client: &Client,
        problem: &Problem,
        dtype: Dtype,
        forced: Option<Routine>,
    ) -> Result<Self, Error> {
        if let Some(routine) = forced {
            return match routine.missing(client) {
                Some(reason) => Err(Error::Routine {
                    routine: routine.name(),
                    reason,
                }),
                None => Ok(routine),
            };
        }
        let shape = problem.shape;
        // One thread runs a short sequence before look-back could pass on its first state; where there are many threads, a
        // longer one too.
        let short = if shape.state() >= 1 << 14 { 128 } else { 64 };
        let routine = if shape.steps <= short {
            Routine::Sequential
        } else if problem.gate != Gate::Raw && dtype.size() == 2 && fills(client, shape.state()) {
            // Coefficients are then computed once for each pass, where look-back computes them twice, and in 16 bits instructions
            // are what bounds the kernels.
            Routine::Sequential
        } else if Routine::LookBack.missing(client).is_none() {
            Routine::LookBack
        } else if shape.state() >= 1 << 16 {
            Routine::Sequential
        } else {
            Routine::Chunked
        };
        tracing::debug!(
            routine = routine.name(),
            batch = shape.batch,
            steps = shape.steps,
            dim = shape.dim,
            gate = problem.gate.name(),
            "recurrence routine"
        );
        Ok(routine)
    }
}

/// Whether one thread for every two lanes keeps all multiprocessors of a device busy to the end.
fn fills(client: &Client, lanes: usize) -> bool {
    let Some(multiprocessors) = client.properties().hardware.num_streaming_multiprocessors else {
        return false;
    };
    let cubes = lanes / (2 * SEQUENTIAL_CUBE as usize);
    let at_once = RESIDENT * multiprocessors as usize;
    let waves = cubes.div_ceil(at_once).max(1);
    // The last wave may leave a seventh of the device idle.
    7 * cubes >= 6 * waves * at_once
}

/// Cubes of [`SEQUENTIAL_CUBE`] threads that a multiprocessor holds at 255 registers a thread.
const RESIDENT: usize = 4;
