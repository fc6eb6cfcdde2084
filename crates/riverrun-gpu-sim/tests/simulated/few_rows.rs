//! Products of a few rows, against the oracle.

use riverrun_gpu_sim::simulated::client;
use riverrun_testkit::{Target, assert_right, few_rows};

#[test]
fn every_form() {
    assert_right(&few_rows::OPERATION, &Target::gpu(client()));
}
