//! The passes by products of four planes, which read `B` from shared memory: compute capability 9.0, 65 to 128 channels, backward 33 to
//! 128, a scale above 0.
//!
//! A group of four planes owns 64 rows; a cube has two groups, or one where 64 rows are enough. Tiles of the other side lie in panels
//! and come by `cp.async` while the cube computes with those before: one barrier a tile. Products run while a group computes: in the
//! forward pass and for `dq`, a tile's scores are begun, then the sums of the tile before, and the softmax of the scores runs beside
//! those sums; for `dk` and `dv`, weights are computed beside `do vᵀ`, and `ds` beside `pᵀ do`. Scores never leave registers: rounded,
//! they are the operand `A` of the next product. The largest score of a row is taken before the scale, so that a weight is one
//! multiply-add and one `ex2`.
//!
//! | pass | channels | columns | own rows | shared memory | registers |
//! | --- | --- | --- | --- | --- | --- |
//! | forward | to 128 | 128 | registers | 161 KiB | 250 |
//! | `dq` | to 64 | 64 | registers | 81 KiB | 183 |
//! | `dq` | to 128 | 64 | registers | 161 KiB | 254 |
//! | `dk`, `dv` | to 64 | 64 | shared memory | 67 KiB | 224 |
//! | `dk`, `dv` | to 128 | 64 | shared memory | 131 KiB | 245 |
//!
//! Registers are those of NVRTC 13.5, with no spills: of all options to 64 channels, causal to 128.
//!
//! **Floor.** A tile of 128 queries and 128 keys with 128 channels is 8.4 million operations, 2048 clocks of a multiprocessor's tensor
//! cores at 4096 a clock, and 16 384 exponentials, 1024 clocks at 16. An H200 takes about 5500 clocks for such a
//! tile forward; by Nsight Compute planes stand at the barrier in 11 % of them, and wait for their own earlier instructions in about
//! 20 %.

mod forward;
mod keys;
mod queries;
mod tile;

pub(super) use forward::attention_forward_groups;
pub(super) use keys::attention_keys_groups;
pub(super) use queries::attention_queries_groups;
