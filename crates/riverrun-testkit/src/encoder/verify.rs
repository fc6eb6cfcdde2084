//! The features of training runs against their formulas: one run at a time on the CPU, many at once on any device.

use burn::tensor::Device;
use riverrun::ops::{RunStates, encode_states};
use riverrun_kernels::encoder::{Config, FEATURES};

use crate::encoder::check::{compare, encoded, random_run, reference};
use crate::{Failure, Part, Report, Row, Target};

/// One run at a time, where the encoder lives, and many at once.
pub fn forms(target: &Target) -> Vec<&'static str> {
    match target.is_cpu() {
        true => vec!["encoder", "encoder-batch"],
        false => vec!["encoder-batch"],
    }
}

/// Checks histories of every length.
pub fn verify(part: &Part<'_>, table: &mut dyn Report) -> Result<(), Failure> {
    let mut row = Row::default();
    let device: &Device = &part.target.device;
    for (losses, gradients) in [(256, 64), (1000, 1000), (32, 33)] {
        let config = Config::default().with_history(losses, gradients);
        let runs: Vec<_> = [0, 1, 2, 15, 16, 17, 31, 32, 33, 64, 100, 256, 500, 1100]
            .into_iter()
            .enumerate()
            .map(|(seed, steps)| random_run(steps, seed as u64))
            .collect();
        let encoders: Vec<_> = runs.iter().map(|run| encoded(config, run)).collect();
        if part.form == "encoder" {
            for (run, encoder) in runs.iter().zip(&encoders) {
                let found = encoder.encode();
                let comparison = compare(&found, &reference(&config, run), false);
                row.case(&[comparison], found == encoder.encode());
            }
            continue;
        }
        let states = RunStates::from_encoders(&encoders, device)?;
        let encode = || -> Result<Vec<f32>, Failure> {
            Ok(encode_states(states.clone())?.into_data().iter().collect())
        };
        let (found, again) = (encode()?, encode()?);
        for (n, run) in runs.iter().enumerate() {
            let at = n * FEATURES..(n + 1) * FEATURES;
            let single = !part.target.is_cpu();
            let comparison = compare(&found[at.clone()], &reference(&config, run), single);
            row.case(&[comparison], found[at.clone()] == again[at]);
        }
    }
    let routine = if part.target.is_cpu() { "cpu" } else { "gpu" };
    table.row(part.device(), part.form, "f32", routine, row)
}
