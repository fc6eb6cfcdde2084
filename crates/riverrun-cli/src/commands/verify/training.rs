//! Training steps that are recorded and run again, against the same steps as usual; those against themselves.

use burn::tensor::Device;
use riverrun::device::DeviceInfo;
use riverrun::models::CellKind;
use riverrun_kernels::check::Comparison;
use riverrun_train::{Learner, Precision, RunConfig, weights};

use super::table::{Row, Table};
use super::wanted;
use crate::args::VerifyArgs;
use crate::failure::Failure;
use crate::model_shape::ModelShape;

/// Long enough for the routines that hand states over between tiles.
const SHAPE: ModelShape = ModelShape::new([64, 2, 8, 320, 65]);
/// Some as usual, one recorded, some run again.
const STEPS: u64 = 8;

pub(super) fn verify(
    args: &VerifyArgs,
    info: &DeviceInfo,
    table: &mut Table,
) -> Result<(), Failure> {
    if info.spec == "cpu" {
        return table.skip(&info.spec, "training", "there are no launches to record");
    }
    // Step by step through hundreds of launches, a GRU takes minutes where the CPU imitates a GPU.
    let cells: &[CellKind] = match info.software {
        true => &[CellKind::MinGru],
        false => &[CellKind::MinGru, CellKind::Gru],
    };
    for dtype in [Precision::F32, Precision::Bf16] {
        if !wanted(args, &dtype.to_string()) || !info.device.supports_dtype(dtype.dtype()) {
            continue;
        }
        let mut row = Row::default();
        for &cell in cells {
            let mut config = RunConfig::selective_copy();
            config.model = SHAPE.model(cell);
            config.training.dtype = dtype;
            let usual = train(&config, &info.device, false)?;
            let again = train(&config, &info.device, false)?;
            let recorded = train(&config, &info.device, true)?;
            let verdict = |tensor: &str, found: &[f32], expected: &[f32]| Comparison {
                tensor: tensor.into(),
                error: difference(found, expected),
                allowed: 0.0,
            };
            let verdicts = [
                verdict("losses", &recorded.losses, &usual.losses),
                verdict("weights", &recorded.weights, &usual.weights),
            ];
            row.case(&verdicts, usual == again);
        }
        table.row(
            &info.spec,
            "recorded steps",
            &dtype.to_string(),
            "graph",
            row,
        )?;
    }
    Ok(())
}

/// What a run of some steps gave.
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

/// The largest difference; NaN where one side alone is NaN.
fn difference(found: &[f32], expected: &[f32]) -> f64 {
    let pairs = found.iter().zip(expected);
    let apart = pairs.filter(|(found, expected)| found.to_bits() != expected.to_bits());
    let sizes = apart.map(|(found, expected)| f64::from((found - expected).abs()));
    sizes.fold(0.0, |worst, size| {
        if size.is_nan() || size > worst {
            size
        } else {
            worst
        }
    })
}
