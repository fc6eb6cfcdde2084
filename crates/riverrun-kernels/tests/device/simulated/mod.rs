//! An NVIDIA GPU that is not there: kernels are compiled to CUDA C++ as for a real one, translated to C++ for this machine
//! and run here, every unit a fiber of its own. For the kernels that no other device runs: slow, and exact in what units and
//! cubes do with each other, but not in the order in which memory shows writes, of which the kernels assume nothing.
//!
//! Wants a C++ compiler, `c++` or what `CXX` names, and an x86-64 machine.

mod library;
mod memory;
mod translate;

use std::sync::OnceLock;

use cubecl::client::Client;

use super::stand_in;
use memory::Simulation;

/// The device's client.
pub fn client() -> Client {
    static CLIENT: OnceLock<Client> = OnceLock::new();
    CLIENT
        .get_or_init(|| stand_in::client(Simulation::default()))
        .clone()
}
