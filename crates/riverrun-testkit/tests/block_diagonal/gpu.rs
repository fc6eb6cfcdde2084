//! What the GPU kernels refuse, and what does not pass a reset. Runs on a software Vulkan driver too.

use riverrun_kernels::Error;
use riverrun_kernels::gpu::Dtype;
use riverrun_testkit::Case;
use riverrun_testkit::block_diagonal::Blocks;
use riverrun_testkit::block_diagonal::gpu::LARGEST;
use riverrun_testkit::recurrence::check::Options;

use crate::device::client;

#[test]
fn infinity_does_not_pass_a_reset() {
    let Some(client) = client() else { return };
    let mut clean = Blocks::random([1, 6, 2, 3], Options::nth(9), 5).rounded::<f32>();
    clean.reset = Some(vec![false, false, false, true, false, false]);
    let mut spoilt = clean.clone();
    spoilt.b[..3 * 6].fill(f64::INFINITY);
    spoilt.h0 = Some(vec![f64::NAN; 6]);
    let run = |case: &Blocks| case.gpu(&client, Dtype::F32).expect("a problem it can run");
    let (expected, found) = (run(&clean), run(&spoilt));
    assert_eq!(found.get("h")[18..], expected.get("h")[18..]);
    assert_eq!(found.get("d_a")[54..], expected.get("d_a")[54..]);
}

#[test]
fn blocks_too_large_are_refused() {
    let Some(client) = client() else { return };
    let case = Blocks::random([1, 3, 2, LARGEST + 1], Options::default(), 7);
    let refused = case.gpu(&client, Dtype::F32);
    assert!(matches!(refused, Err(Error::Routine { .. })), "{refused:?}");
}
