//! A simulated NVIDIA GPU: kernels are compiled to CUDA C++ as for a real one, translated to C++ for this machine and run
//! here, one fiber a thread. For the kernels that no other device runs. It is slow; it is exact in what threads and cubes do
//! with each other, but not in the order in which memory shows writes, of which the kernels assume nothing.
//!
//! It needs a C++ compiler, `c++` or the one that `CXX` names, and an x86-64 machine.

mod library;
mod memory;
pub mod plan;
mod translate;

use std::cell::RefCell;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use cubecl::client::Client;
use riverrun_guest::{Card, server};

use memory::Simulation;

static TURN: Mutex<()> = Mutex::new(());

thread_local! {
    static HELD: RefCell<Option<MutexGuard<'static, ()>>> = const { RefCell::new(None) };
}

/// Runs `work` on a device whose launches start without their cube of this number: it runs half a minute late by the
/// device's clock.
pub fn hold_back<T>(cube: u32, work: impl FnOnce() -> T) -> T {
    struct Release;
    impl Drop for Release {
        fn drop(&mut self) {
            memory::HELD_BACK.store(u32::MAX, Ordering::Relaxed);
        }
    }
    memory::HELD_BACK.store(cube, Ordering::Relaxed);
    let _release = Release;
    work()
}

/// The device's client. One thread of the host has it at a time, until that thread ends: the device runs launches one after
/// the other, so a launch of one thread that waits for one of another thread would wait in vain.
pub fn client() -> Client {
    static CLIENT: OnceLock<Client> = OnceLock::new();
    HELD.with_borrow_mut(|held| {
        held.get_or_insert_with(|| TURN.lock().unwrap_or_else(PoisonError::into_inner));
    });
    CLIENT
        .get_or_init(|| server::client(Simulation::default(), Card::H200, 0).0)
        .clone()
}
