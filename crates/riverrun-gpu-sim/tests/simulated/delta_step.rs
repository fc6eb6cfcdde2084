//! Steps of a Gated DeltaNet, against the oracle.

use riverrun_gpu_sim::simulated::client;
use riverrun_testkit::{Target, assert_right, delta_step};

#[test]
fn every_shape() {
    assert_right(&delta_step::OPERATION, &Target::gpu(client()));
}
