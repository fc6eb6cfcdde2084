//! NVIDIA kernels on a machine without an NVIDIA card, for tests.
//!
//! | | |
//! | --- | --- |
//! | [`Recorder`] | keeps the CUDA C++ of every kernel that is launched and runs nothing; the example `sources` writes it to files, which NVRTC then compiles for each architecture (`check_nvrtc.sh`) |
//! | [`simulated`] | runs kernels on the CPU: the CUDA C++ is translated to C++, every thread is a fiber, inline PTX becomes function calls |
//!
//! The simulation shows wrong numbers, waits that never end and races at barriers. It models neither the order in which
//! memory shows writes, nor occupancy, nor speed. It finds bugs; it is no evidence that a kernel works on a card.
#![cfg(feature = "cuda")]

mod recorder;
pub mod simulated;

pub use recorder::{Recorder, Source};
pub use riverrun_guest::Card;
