//! An NVIDIA GPU that is not there: kernels are compiled to CUDA C++ as for a real one, translated to C++ for this machine
//! and run here, every unit a fiber of its own. For the kernels that no other device runs: slow, and exact in what units and
//! cubes do with each other, but not in the order in which memory shows writes, of which the kernels assume nothing.
//!
//! Wants a C++ compiler, `c++` or what `CXX` names, and an x86-64 machine.

mod library;
mod memory;
mod translate;

use std::cell::RefCell;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use cubecl::client::Client;

use crate::stand_in;
use memory::Simulation;

static TURN: Mutex<()> = Mutex::new(());

thread_local! {
    static HELD: RefCell<Option<MutexGuard<'static, ()>>> = const { RefCell::new(None) };
}

/// The device's client. Only one thread has it at a time, to its end: the device runs launches one after the other, so one
/// thread's launch that waits for another's would wait in vain.
pub fn client() -> Client {
    static CLIENT: OnceLock<Client> = OnceLock::new();
    HELD.with_borrow_mut(|held| {
        held.get_or_insert_with(|| TURN.lock().unwrap_or_else(PoisonError::into_inner));
    });
    CLIENT
        .get_or_init(|| stand_in::client(Simulation::default(), stand_in::Card::H200))
        .clone()
}
