//! The kernels: a pass by cubes alone, and by clusters of cubes.

use cubecl::prelude::*;

use super::backward::backward_pass;
use super::buffers::{BackwardInput, BackwardOutput, ForwardInput, ForwardOutput, Span};
use super::forward::forward_pass;
use super::plan::Config;

#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn persistent_forward<R: Numeric>(
    input: ForwardInput,
    reset: &[R],
    mut output: ForwardOutput,
    control: &[u32],
    launch_words: &mut [Atomic<u32>],
    span: Span,
    #[comptime] config: Config,
    #[define(R)] _storage: ElemType,
) {
    // A launch of no steps is for compiling.
    if span.steps == 0 {
        terminate!();
    }
    forward_pass::<R>(
        &input,
        reset,
        &mut output,
        control,
        launch_words,
        &span,
        config,
    );
}

#[cube(
    launch_unchecked,
    cluster_dim = CubeDim::new_1d(config.product.cluster as u32),
    address_type = "dynamic"
)]
pub(super) fn clustered_forward<R: Numeric>(
    input: ForwardInput,
    reset: &[R],
    mut output: ForwardOutput,
    control: &[u32],
    launch_words: &mut [Atomic<u32>],
    span: Span,
    #[comptime] config: Config,
    #[define(R)] _storage: ElemType,
) {
    if span.steps == 0 {
        terminate!();
    }
    forward_pass::<R>(
        &input,
        reset,
        &mut output,
        control,
        launch_words,
        &span,
        config,
    );
}

#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn persistent_backward<R: Numeric>(
    input: BackwardInput,
    reset: &[R],
    mut output: BackwardOutput,
    control: &[u32],
    launch_words: &mut [Atomic<u32>],
    span: Span,
    #[comptime] config: Config,
    #[define(R)] _storage: ElemType,
) {
    if span.steps == 0 {
        terminate!();
    }
    backward_pass::<R>(
        &input,
        reset,
        &mut output,
        control,
        launch_words,
        &span,
        config,
    );
}

#[cube(
    launch_unchecked,
    cluster_dim = CubeDim::new_1d(config.product.cluster as u32),
    address_type = "dynamic"
)]
pub(super) fn clustered_backward<R: Numeric>(
    input: BackwardInput,
    reset: &[R],
    mut output: BackwardOutput,
    control: &[u32],
    launch_words: &mut [Atomic<u32>],
    span: Span,
    #[comptime] config: Config,
    #[define(R)] _storage: ElemType,
) {
    if span.steps == 0 {
        terminate!();
    }
    backward_pass::<R>(
        &input,
        reset,
        &mut output,
        control,
        launch_words,
        &span,
        config,
    );
}
