//! The kernels of every operation, on the CPU and, where there is one, on a GPU, a software one too.

mod adamw;
mod attention;
mod block_diagonal;
mod cell;
mod cross_entropy;
#[cfg(feature = "gpu")]
mod device;
mod elementwise;
mod embedding;
mod encoder;
mod gemm;
mod matrix_state;
mod norm;
mod random;
mod recurrence;
mod rollout;
mod shared;
mod table;
