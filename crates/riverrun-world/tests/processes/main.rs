//! Worlds of real processes over loopback. The processes are this test binary again, in the roles of `role.rs`.

#![cfg(unix)]

mod collectives;
mod failures;
mod joining;
mod launch;
#[cfg(feature = "nccl")]
mod nccl;
mod process;
mod role;

/// What the processes run; without a role, as a test among the others, it does nothing.
#[test]
fn role() {
    role::play();
}
