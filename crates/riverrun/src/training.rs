//! What a trainer needs beside the operations. **Unstable**: any release may change it.
//!
//! - [`adamw`] steps the weights of many tensors at once, by [`square_sum`] and [`clip_factor`] with their gradients clipped.
//! - [`Draws`] draws symbols in the memory of a GPU.
//! - [`refill`] and [`overwrite`] put the inputs of a [`Recording`](crate::Recording) where its launches read them.
//! - [`stays_wide`] names the parameters that a run in fewer bits leaves in `f32`.
//! - [`to_flat`], [`from_flat`] and [`add_directions`] are between tensors and one vector of all their numbers.
//! - [`enqueue`] puts the work of a library on a CUDA stream, in its order with launches, and into recordings.
//! - [`early_sums`] begins sums of gradients over ranks in the backward pass.

pub use crate::device::failure::execution_error;
pub use crate::nn::attention::{Place, Places};
pub use crate::ops::adamw::{
    AdamwNumbers, AdamwStep, AdamwTensors, LossScaleNumbers, adamw, adamw_numbers, clip_factor,
    sgd, square_sum,
};
pub use crate::ops::attention::attention_scratch;
pub use crate::ops::draw::Draws;
pub use crate::ops::early_sum::{Early, EarlySums, early_sums};
pub use crate::ops::enqueue::{ENQUEUED, StreamWork, enqueue, on_device, uuid};
pub use crate::ops::flat::{FlatPlace, FlatTensor, add_directions, from_flat, to_flat};
pub use crate::ops::refill::{overwrite, refill, refill_int};

/// Whether the parameters of a module stay in `f32` where a model is cast to fewer bits: those of
/// [`HeadDecay`](crate::nn::HeadDecay), `A_log` and `dt_bias`. `container` is the name that a `ModuleMapper` of Burn enters a
/// module's fields by, such as `Struct:HeadDecay`.
pub fn stays_wide(container: &str) -> bool {
    container == "Struct:HeadDecay"
}
