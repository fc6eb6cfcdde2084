//! Single steps of attention over a ring, against the oracle.

use riverrun_gpu_sim::simulated::client;
use riverrun_testkit::attention::step;
use riverrun_testkit::{Target, assert_right};

#[test]
fn every_ring() {
    assert_right(&step::OPERATION, &Target::gpu(client()));
}
