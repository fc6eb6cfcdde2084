//! The recurrent state-space model against itself in float64 on the CPU, with the same weights and the same random numbers.

use burn::module::Module;
use burn::tensor::{Device, FloatDType, Int, Tensor, TensorData};
use riverrun::Sequence;
use riverrun::nn::{Rssm, RssmConfig};

use crate::check::{Comparison, distance, largest};
use crate::op::Copied;
use crate::{Failure, Part, Report, Row, Storage, Target};

/// Observing and imagining. One part: they share most of their kernels, which take longer to
/// compile than all else takes.
const FORMS: [&str; 2] = ["observe", "imagine"];

pub fn forms(_: &Target) -> Vec<&'static str> {
    vec!["rssm"]
}

/// Sequences and steps: a step from zero and one from a state. Backends that fuse operations compile kernels for every further
/// one.
const SIZES: [usize; 2] = [3, 2];

/// Deterministic states, logits and samples of one step after the other.
fn run(model: &Rssm, form: &str, device: &Device, dtype: FloatDType) -> [Vec<f64>; 3] {
    let [batch, steps] = SIZES;
    let wave = |width: usize| -> Tensor<3> {
        let n = batch * steps * width;
        let data: Vec<f32> = (0..n)
            .map(|i| ((i * 37) % 23) as f32 / 16.0 - 0.6875)
            .collect();
        Tensor::<3>::from_data(TensorData::new(data, [batch, steps, width]), device).cast(dtype)
    };
    let key = Tensor::<1, Int>::from_ints([9, 8, 7, 6], device);
    let numbers = |x: Tensor<3>| x.into_data().iter::<f64>().collect::<Vec<f64>>();
    if form != "imagine" {
        let found = model.observe(wave(12), wave(3), key, Sequence::new());
        let logits = Tensor::cat(vec![found.posterior_logits, found.prior_logits], 2);
        [numbers(found.deter), numbers(logits), numbers(found.stoch)]
    } else {
        let start = model.initial(batch, device, dtype);
        let found = model.imagine(wave(3), key, start);
        [
            numbers(found.deter),
            numbers(found.prior_logits),
            numbers(found.stoch),
        ]
    }
}

/// Checks a format.
pub fn verify(part: &Part<'_>, table: &mut dyn Report) -> Result<(), Failure> {
    let device = &part.target.device;
    let (dtype, epsilon) = match part.storage {
        Storage::Bf16 => (FloatDType::BF16, 2f64.powi(-8)),
        _ => (FloatDType::F32, f64::from(f32::EPSILON)),
    };
    let config = RssmConfig::new(12, 3)
        .with_deter(64)
        .with_hidden(32)
        .with_stoch(4)
        .with_classes(8)
        .with_blocks(4)
        .with_prior_layers(1);
    let Ok(host) = riverrun::device::parse("cpu") else {
        let reason = "there is no CPU in this build to compare with";
        return table.skip(part.device(), part.form, reason);
    };
    host.seed(3);
    // The weights are those that the format has room for.
    let start = config.init(&host).map(&mut Copied {
        device: &host,
        dtype,
    });
    let exact = start.clone().map(&mut Copied {
        device: &host,
        dtype: FloatDType::F64,
    });
    let model = start.map(&mut Copied { device, dtype });
    for form in FORMS {
        let in_one = form == "observe" && model.one_launch_missing(SIZES[0]).is_none();
        let routine = if in_one { "one launch" } else { "tensors" };
        let models = [&exact, &model];
        let (comparisons, same) = compare(models, form, [&host, device], dtype, epsilon);
        let mut row = Row::default();
        row.case(&comparisons, same);
        let name = match part.storage {
            Storage::Bf16 => "bf16",
            _ => "f32",
        };
        table.row(part.device(), form, name, routine, row)?;
    }
    #[cfg(feature = "gpu")]
    crate::by_storage!(part.storage, one_launch(part, table))?;
    Ok(())
}

/// The steps in one launch: states and logits, the draws, and every gradient, in `f64` with the samples that were found.
#[cfg(feature = "gpu")]
fn one_launch<E: riverrun_kernels::Element>(
    part: &Part<'_>,
    table: &mut dyn Report,
) -> Result<(), Failure> {
    use crate::rssm::sequence::check::Case;
    use riverrun_kernels::rssm::sequence::{Problem, gpu};

    let Some((client, dtype)) = part.gpu() else {
        return Ok(());
    };
    let small = |batch, steps| Problem {
        batch,
        steps,
        deter: 64,
        hidden: 32,
        stoch: 4,
        classes: 8,
        blocks: 2,
        unimix: 0.01,
        epsilons: [1e-4; 4],
    };
    if let Some(reason) = gpu::missing(client, &small(1, 1), dtype) {
        return table.skip(part.device(), "one launch", &reason);
    }
    let mut row = Row::default();
    for (seed, (problem, resets)) in [
        (small(3, 7), true),
        (small(9, 2), false),
        (small(17, 3), true),
    ]
    .into_iter()
    .enumerate()
    {
        let case = Case::random::<E>(problem, resets, seed as u64);
        let forward = || {
            case.gpu(client, dtype)
                .map_err(|error| Failure(error.to_string()))
        };
        let (found, again) = (forward()?, forward()?);
        let redrawn = case.redrawn(client, dtype, &found);
        let redrawn = redrawn.map_err(|error| Failure(error.to_string()))?;
        let samples = case.columns(&found, problem.deter..problem.deter + problem.logits());
        row.case(
            &case.compare::<E>(&found),
            found == again && samples == redrawn,
        );
        let backward = || {
            let gradients = case.gpu_backward::<E>(client, dtype, &found);
            gradients.map_err(|error| Failure(error.to_string()))
        };
        let (gradients, again) = (backward()?, backward()?);
        row.case(
            &case.compare_backward::<E>(&found, &gradients),
            gradients == again,
        );
    }
    table.row(part.device(), "gradients", E::NAME, "one launch", row)
}

/// The model beside the exact one, and whether two runs of it give the same bits.
fn compare(
    [exact, model]: [&Rssm; 2],
    form: &str,
    [host, device]: [&Device; 2],
    dtype: FloatDType,
    epsilon: f64,
) -> (Vec<Comparison>, bool) {
    let reference = run(exact, form, host, FloatDType::F64);
    let (found, again) = (
        run(model, form, device, dtype),
        run(model, form, device, dtype),
    );
    // A step rounds a dozen times on its way to the logits, and each rounding may be doubled by the norms.
    let roundings = 24.0 * (SIZES[1] as f64).sqrt();
    // A sample that differs changes all that follows: only steps before one are compared.
    let mut same = 0;
    let [batch, steps] = SIZES;
    let classes = reference[2].len() / (batch * steps);
    while same < steps
        && (0..batch).all(|b| {
            let at = (b * steps + same) * classes..(b * steps + same + 1) * classes;
            found[2][at.clone()] == reference[2][at]
        })
    {
        same += 1;
    }
    let comparisons: Vec<Comparison> = ["deter", "logits"]
        .into_iter()
        .enumerate()
        .map(|(n, tensor)| {
            let width = reference[n].len() / (batch * steps);
            let until = |x: &[f64]| -> Vec<f64> {
                let rows = (0..batch).flat_map(|b| {
                    let start = b * steps * width;
                    x[start..start + (same + 1).min(steps) * width].to_vec()
                });
                rows.collect()
            };
            let (found, reference) = (until(&found[n]), until(&reference[n]));
            let scale = largest(reference.iter().map(|x| x.abs()));
            Comparison {
                tensor: tensor.into(),
                error: distance(&found, &reference),
                allowed: roundings * epsilon / 2.0 * scale.max(1.0),
            }
        })
        .collect();
    (comparisons, found == again)
}
