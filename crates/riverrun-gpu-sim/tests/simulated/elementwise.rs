//! Activations, and the short convolution with the activation behind it, against the oracle.

use riverrun_gpu_sim::simulated::client;
use riverrun_testkit::{Target, activation, assert_right, short_convolution};

#[test]
fn activations() {
    assert_right(&activation::OPERATION, &Target::gpu(client()));
}

#[test]
fn convolutions() {
    assert_right(&short_convolution::OPERATION, &Target::gpu(client()));
}
