//! Attention on tensor cores: `f16` and `bf16` on NVIDIA GPUs of compute capability 8.0 and later. Of capability 9.0, heads of 65 to
//! 128 channels, and backward of 33 to 128, are computed by products of four planes ([`warpgroup`]); what follows is for the others.
//!
//! A cube owns a tile of rows (queries, or keys for `dk` and `dv`), 16 rows to a plane or twice that, and goes through tiles of
//! the other side. Those come to shared memory by `cp.async`, two stages deep: the next tile is under way while the cube
//! computes with this one. `ldmatrix` takes operands from shared memory, `mma.m16n8k16` multiplies, sums are `f32` in registers.
//! The scores never leave registers: what a thread holds of a sum is what it has to hold of the operand `A` of the next product
//! (FlashAttention-2, section 3.3), so `p` and `ds` are rounded to storage and multiplied at once. Rows in shared memory are
//! an odd number of 16-byte vectors apart, so that the eight rows of a block of `ldmatrix` lie in different banks.
//!
//! A row is 4 threads of a plane; the maximum takes two shuffles, the sum of the weights two at the end. Scores carry a factor
//! `log2 e`, so that a weight is one subtraction and one `ex2`.
//!
//! | pass | channels | rows | columns | shared memory at the most channels | registers | products |
//! | --- | --- | --- | --- | --- | --- | --- |
//! | forward | to 64 | 128 | 64 | 54 KiB | 218 | `q kᵀ`, `p v` |
//! | forward | to 128 | 128 | 64 | 102 KiB | 255 | the same |
//! | forward | to 256 | 64 | 32 | 99 KiB | 243 | the same |
//! | `dq` | to 64 | 64 | 64 | 54 KiB | 163 | `q kᵀ`, `do vᵀ`, `ds k` |
//! | `dq` | to 128 | 64 | 32 | 68 KiB | 128 | the same |
//! | `dq` | to 256 | 64 | 16 | 99 KiB | 229 | the same |
//! | `dk`, `dv` | to 64 | 64 | 64 | 55 KiB | 186 | `k qᵀ`, `v doᵀ`, `pᵀ do`, `dsᵀ q` |
//! | `dk`, `dv` | to 128 | 64 | 32 | 69 KiB | 239 | the same |
//! | `dk`, `dv` | to 256 | 64 | 16 | 100 KiB | 227 | once for `dk`, once for `dv`: registers hold one of the sums |
//!
//! Registers are those of NVRTC 13.5 for compute capability 9.0, with no spills: of all options to 64 channels, causal to 128,
//! causal with a window to 256. Cubes have 4 planes, so two or more of them fit a
//! multiprocessor of an H200. Where shared memory is smaller (99 KiB for compute capability 8.6, 8.9 and 12.0), the next smaller
//! tile is taken.
//!
//! **Floor.** The forward pass is `4·B·H·T·S·D` operations, half of that under a causal mask. A block of 16 × 64 scores with
//! `D = 128` is 128 `mma` of 4096 operations. By the instruction's rate on an H200, about 2600 operations a clock and
//! multiprocessor, that is 200 clocks of one; its 64 `ldmatrix.x4` read 32 KiB at 128 bytes a clock, 256 clocks, which two blocks
//! to a plane share: 128 each; its 1024 exponentials at 16 a clock are 64 clocks beside them. So the `mma` bounds it, at about
//! 600 TF/s at 1.75 GHz. Keys and values come from the L2 cache: to a tile of 128 queries 8 KiB in a million operations, at 400 TF/s
//! 3.1 TB/s.
//!
//! Two cubes of 4 planes to a multiprocessor do not hide all of the softmax behind the products of others. Backward counts 5 products
//! and makes 7 (no atomics, so `s` and `dp` are computed in both kernels), with one block to a plane, where shared memory bounds: at 32
//! columns 3 `ldmatrix.x4` to 4 `mma` for scores and 1 to 2 for sums, about 1600 operations a clock, 370 TF/s of 7 products, 260
//! counted.
//!
//! **NaN.** `0 · NaN` is NaN on a tensor core, so where a mask cuts a tile, its NaN and infinities are brought to the rows that
//! see them, as NaN, and are zeros in the product ([`isolate`]). Tiles that all rows see whole are not searched.

mod config;
mod forward;
mod isolate;
mod keys;
mod launch;
mod queries;
mod tile;
mod warpgroup;

pub use config::tensor_cores;
pub(super) use config::{Config, Pass};
pub(super) use launch::{forward, keys, queries};
