//! CubeCL kernels on the memory and the streams of another CUDA library, such as PyTorch.
//!
//! CubeCL's own CUDA runtime computes on memory that it allocated. Here a server in its place records the launches of a
//! call into a plan: kernels, cubes, and for each argument which buffer of the caller or which part of the scratch memory
//! it is. A plan is made once for each operation and its shapes; a `Guest` puts its launches on a stream with the
//! addresses of a call, without a thread of its own, an allocation or a wait.
//!
//! Everything is behind the feature `cuda`.
//!
//! | | |
//! | --- | --- |
//! | `server`, `Card` | the server that compiles kernels to CUDA C++ and hands launches to a `Device` |
//! | `Recorder`, `Plan` | launches as they are recorded, and as they are run again |
//! | `Guest` | an NVIDIA GPU: plans compiled by NVRTC, kept as files, and launched |
//! | `call` | operations on the caller's arrays, and the plans of a `Guest` |

#[cfg(feature = "cuda")]
pub mod call;
#[cfg(feature = "cuda")]
mod card;
#[cfg(feature = "cuda")]
mod compiler;
#[cfg(feature = "cuda")]
mod driver;
#[cfg(feature = "cuda")]
mod guest;
#[cfg(any(feature = "cuda", test))]
mod keep;
#[cfg(feature = "cuda")]
mod plan;
#[cfg(feature = "cuda")]
pub mod server;

#[cfg(feature = "cuda")]
pub use card::Card;
#[cfg(feature = "cuda")]
pub use compiler::add_header_folders;
#[cfg(feature = "cuda")]
pub use guest::{Guest, Ready};
#[cfg(feature = "cuda")]
pub use plan::{Kernel, Launch, Memory, Plan, Recorder, Refused};
#[cfg(feature = "cuda")]
pub use server::Device;
