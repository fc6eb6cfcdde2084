//! Recorded training steps, compared with the same steps without recording, and these with a second run.

use burn::tensor::Device;
use riverrun_models::LanguageModelKind;
use riverrun_testkit::check::Comparison;
use riverrun_testkit::{Failure, Part, Report, Row, Storage, Target};
use riverrun_train::{Learner, Precision, RunConfig, weights};

use crate::model_shape::ModelShape;

/// Long enough for the routines that hand states over between tiles.
const SHAPE: ModelShape = ModelShape::new([64, 2, 8, 320, 65]);
/// Steps without recording, one recorded, and replayed ones.
const STEPS: u64 = 8;

/// The models.
pub(super) fn forms(target: &Target) -> Vec<&'static str> {
    match (target.is_cpu(), target.software) {
        (true, _) => Vec::new(),
        // Step by step through hundreds of launches, a GRU takes minutes where the CPU imitates a GPU.
        (false, true) => vec!["min-gru"],
        (false, false) => {
            let models = ["min-gru", "gru", "gated-delta-net", "mlstm", "rwkv7"];
            [&models[..], &["griffin", "gpt2"]].concat()
        }
    }
}

/// Checks the recorded steps of a model.
pub(super) fn verify(part: &Part<'_>, table: &mut dyn Report) -> Result<(), Failure> {
    let device = &part.target.device;
    let mut config = RunConfig::selective_copy();
    // Griffin's third block is the first with attention.
    let kind: LanguageModelKind = part.form.parse()?;
    let layers = if kind == LanguageModelKind::Griffin {
        3
    } else {
        2
    };
    config.model = ModelShape { layers, ..SHAPE }.model(kind);
    config.training.dtype = match part.storage {
        Storage::Bf16 => Precision::Bf16,
        _ => Precision::F32,
    };
    let usual = train(&config, device, false)?;
    let again = train(&config, device, false)?;
    let recorded = train(&config, device, true)?;
    let verdict = |tensor: &str, found: &[f32], expected: &[f32]| Comparison {
        tensor: tensor.into(),
        error: difference(found, expected),
        allowed: 0.0,
    };
    let verdicts = [
        verdict("losses", &recorded.losses, &usual.losses),
        verdict("weights", &recorded.weights, &usual.weights),
    ];
    let mut row = Row::default();
    row.case(&verdicts, usual == again);
    let what = format!("recorded {}", part.form);
    table.row(part.device(), &what, part.storage.name(), "graph", row)
}

/// The results of some steps.
#[derive(PartialEq)]
struct Outcome {
    losses: Vec<f32>,
    weights: Vec<f32>,
}

fn train(config: &RunConfig, device: &Device, recorded: bool) -> Result<Outcome, Failure> {
    let mut learner = Learner::language(config, device)?;
    if recorded {
        learner.record_steps()?;
    }
    let mut losses = Vec::new();
    for step in 0..STEPS {
        let loss = learner.step(&SHAPE.batch(step), 1e-3, &mut |_| ())?;
        losses.extend(loss.into_data().iter::<f32>());
    }
    Ok(Outcome {
        losses,
        weights: weights(learner.model()),
    })
}

/// The largest difference; NaN where a number is NaN, and infinite for another count of numbers.
fn difference(found: &[f32], expected: &[f32]) -> f64 {
    if found.len() != expected.len() {
        return f64::INFINITY;
    }
    let pairs = found.iter().zip(expected);
    let sizes = pairs.map(|(found, expected)| f64::from((found - expected).abs()));
    sizes.fold(0.0, |worst: f64, size| {
        match worst.is_nan() || size <= worst {
            true => worst,
            false => size,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::difference;

    #[test]
    fn a_nan_or_a_missing_number_is_a_difference() {
        assert_eq!(difference(&[1.0, 2.5], &[1.0, 2.0]), 0.5);
        assert_eq!(difference(&[1.0], &[1.0, 2.0]), f64::INFINITY);
        let nan = f32::NAN;
        for (found, expected) in [
            ([nan, 9.0], [nan, 1.0]),
            ([1.0, nan], [1.0, 2.0]),
            ([nan, 0.0], [0.0, 0.0]),
        ] {
            assert!(difference(&found, &expected).is_nan());
        }
    }
}
