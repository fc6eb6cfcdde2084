//! The GPU kernel against the formulas, over histories of every length at once.

use riverrun_kernels::gpu::Dtype;
use riverrun_testkit::check::transfer::{download, poison};
use riverrun_testkit::encoder::check::{compare, encoded, random_run, reference};
use riverrun_testkit::encoder::gpu::{Buffers, encode};
use riverrun_testkit::encoder::{Config, FEATURES, FlatStates, Observation};

use crate::device::client;

fn run(client: &cubecl::client::Client, flat: &FlatStates) -> Vec<f32> {
    let up = |x: &[f32]| client.create_from_slice(bytemuck::cast_slice(x));
    let length = flat.runs() * FEATURES;
    let args = Buffers {
        losses: up(&flat.losses),
        gradients: up(&flat.gradients),
        scalars: up(&flat.scalars),
        features: poison(client, Dtype::F32, length),
    };
    let each = [flat.losses_each, flat.gradients_each];
    encode(client, flat.runs(), each, &args).unwrap();
    let found = download(client, Dtype::F32, args.features, length);
    found.into_iter().map(|x| x as f32).collect()
}

#[test]
fn many_runs_at_once() {
    let Some(client) = client() else { return };
    for (losses, gradients) in [(256, 64), (1000, 1000), (32, 33)] {
        let config = Config::default().with_history(losses, gradients);
        let histories = [0, 1, 2, 15, 16, 31, 32, 33, 64, 100, 256, 500, 1100];
        let runs: Vec<_> = histories
            .iter()
            .enumerate()
            .map(|(seed, steps)| random_run(*steps, seed as u64))
            .collect();
        let encoders: Vec<_> = runs.iter().map(|run| encoded(config, run)).collect();
        let flat = FlatStates::new(&encoders).unwrap();
        let found = run(&client, &flat);
        for (n, history) in runs.iter().enumerate() {
            let found = &found[n * FEATURES..(n + 1) * FEATURES];
            let comparison = compare(found, &reference(&config, history), true);
            assert!(
                comparison.passes(),
                "{} steps: {comparison:?}",
                history.len()
            );
        }
        assert_eq!(found, run(&client, &flat), "two runs differ");
    }
}

#[test]
fn a_constant_series_has_no_trend() {
    let Some(client) = client() else { return };
    let constant: Vec<_> = (0..300)
        .map(|step| Observation::new(step, 2.3, 0.7, 1e-3))
        .collect();
    let encoder = encoded(Config::default(), &constant);
    let found = run(&client, &FlatStates::new([&encoder]).unwrap());
    for n in [
        2, 10, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 40, 41, 46, 47, 49, 51,
    ] {
        assert_eq!(found[n], 0.0, "feature {n}");
    }
}
