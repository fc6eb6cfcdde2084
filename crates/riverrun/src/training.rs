//! What a trainer needs beside the operations. **Unstable**: any release may change it.
//!
//! - [`adamw`] steps the weights of many tensors at once, by [`square_sum`] and [`clip_factor`] with their gradients clipped.
//! - [`refill`] and [`overwrite`] put the inputs of a [`Recording`](crate::Recording) where its launches read them.
//! - [`to_flat`], [`from_flat`] and [`add_directions`] are between tensors and one vector of all their numbers.
//! - [`enqueue`] puts the work of a library on a CUDA stream, in its order with launches, and into recordings.

pub use crate::device::failure::execution_error;
pub use crate::nn::attention::Turn;
pub use crate::ops::adamw::{
    AdamwStep, AdamwTensors, LossScaleNumbers, adamw, adamw_numbers, clip_factor, square_sum,
};
pub use crate::ops::attention::attention_scratch;
pub use crate::ops::enqueue::{ENQUEUED, StreamWork, enqueue, on_device, uuid};
pub use crate::ops::flat::{FlatPlace, FlatTensor, add_directions, from_flat, to_flat};
pub use crate::ops::refill::{overwrite, refill, refill_int};
