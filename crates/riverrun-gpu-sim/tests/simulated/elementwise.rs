//! Activations, the short convolution with the activation behind it, and sums of columns, against their oracles.

use riverrun_gpu_sim::simulated::client;
use riverrun_testkit::{
    Target, activation, assert_right, column_sums, log_decay, short_convolution,
};

#[test]
fn activations() {
    assert_right(&activation::OPERATION, &Target::gpu(client()));
}

#[test]
fn convolutions() {
    assert_right(&short_convolution::OPERATION, &Target::gpu(client()));
}

#[test]
fn column_sums() {
    assert_right(&column_sums::OPERATION, &Target::gpu(client()));
}

#[test]
fn log_decays() {
    assert_right(&log_decay::OPERATION, &Target::gpu(client()));
}
