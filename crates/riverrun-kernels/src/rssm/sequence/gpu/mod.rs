//! The GPU form: all steps in one launch, on NVIDIA's tensor cores.
//!
//! | file | contents |
//! | --- | --- |
//! | `plan` | which cube computes what, and which weights it holds |
//! | `pack` | the weights in the order in which threads read them |
//! | `product` | rows of a matrix times the numbers of a few sequences |
//! | `norm` | the norm of an input with its activation, and its gradient |
//! | `parts` | what both kernels do in a phase |
//! | `forward`, `backward` | the kernels |
//! | `scales` | the scales of the norms, for the backward pass |
//! | `categorical`, `draw` | the samples of a step from its logits, and the logits' gradient |
//! | `buffers`, `pass`, `launch` | from a problem to launches |
//!
//! Cubes exchange results as in `gpu::exchange`; a step has five hand-overs forward: `e`, `x`, `d'`, `p`, `s'`; and six
//! backward. The norms are computed by those who read: of `e` and `p` every reader has the whole row, of `x` the cubes also publish
//! the sums of their squares. Backward gives the gradients of the layers' values; those of the weights are products over all steps,
//! outside of the launch.
//!
//! **Predicted, not measured.** In 16 bits a step of the size 12M (`D` 2048, `H` 256, `L` 512, `W` 256) multiplies by 4.3 M
//! weights, 8.6 MB, which 128 cubes hold in shared memory, 112 KiB at most: nothing but states is read in a step, 64 KB by the
//! cubes of `e₁` and `p`, 24 KB by the others. At 16 sequences its products are 0.14 GFLOP, under 1 µs of an H200's tensor cores.
//! What is left are the hand-overs, which with reading, partial sums and norms are expected to take 2 to 3 µs each: 10 to 15
//! µs a step forward and 12 to 20 backward, 0.7 to 1 ms and 0.8 to 1.3 ms for 64. The size 50M has 34 MB: `B`, `V` and `R` in shared
//! memory, the rest from the L2 cache.

mod backward;
mod buffers;
mod categorical;
mod draw;
mod forward;
mod launch;
mod norm;
mod pack;
mod parts;
mod pass;
mod plan;
mod product;
mod scales;

pub use buffers::{Backward, Forward, Gradients};
pub use launch::{backward, forward};
pub use plan::missing;
