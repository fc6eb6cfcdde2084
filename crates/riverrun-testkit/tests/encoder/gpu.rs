//! The GPU kernel where the formulas have no value.

use riverrun_kernels::gpu::Dtype;
use riverrun_testkit::Case;
use riverrun_testkit::encoder::{Config, Observation, Runs};

use crate::device::client;

#[test]
fn a_constant_series_has_no_trend() {
    let Some(client) = client() else { return };
    let constant = (0..300)
        .map(|step| Observation::new(step, 2.3, 0.7, 1e-3))
        .collect();
    let case = Runs {
        config: Config::default(),
        runs: vec![constant],
        single: true,
    };
    let found = case.gpu(&client, Dtype::F32).unwrap();
    for n in [
        2, 10, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 40, 41, 46, 47, 49, 51,
    ] {
        assert_eq!(found.get("features")[n], 0.0, "feature {n}");
    }
}
