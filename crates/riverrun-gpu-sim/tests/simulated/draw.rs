//! Draws of symbols, against their definition.

use riverrun_gpu_sim::simulated::client;
use riverrun_testkit::{Target, assert_right, draw};

#[test]
fn symbols() {
    assert_right(&draw::OPERATION, &Target::gpu(client()));
}
