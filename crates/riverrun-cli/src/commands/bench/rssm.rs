//! `riverrun bench rssm`: the recurrent state-space model over sequences of observations, forward and backward, and imagining.

use std::io::{Write, stdout};
use std::time::{Duration, Instant};

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Device, Distribution, FloatDType, Int, Tensor};
use riverrun::Sequence;
use riverrun::nn::{Rssm, RssmConfig};
use serde::Serialize;

use super::setup::Setup;
use super::stats::{Refused, Timing, repeat};
use crate::args::{BenchRssmArgs, Storage};
use crate::failure::Failure;
use crate::origin::Origin;

/// Numbers of encoded observations and of actions.
const TOKENS: usize = 1024;
const ACTIONS: usize = 6;

#[derive(Debug, Serialize)]
struct Row {
    size: String,
    dtype: &'static str,
    parameters: usize,
    /// `observe`, forward and backward, of sequences and steps.
    observe: Timing,
    /// `imagine` of starts and steps.
    imagine: Timing,
}

#[derive(Debug, Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    origin: Origin,
    observed: [usize; 2],
    imagined: [usize; 2],
    rows: Vec<Row>,
    refused: &'a [String],
}

/// Puts the weights into a format.
struct Cast(FloatDType);

impl ModuleMapper for Cast {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        Param::from_tensor(param.val().inner().cast(self.0))
    }
}

/// As the leaves of a backward pass.
struct Track;

impl ModuleMapper for Track {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        Param::from_tensor(Tensor::from_inner(param.val()).require_grad())
    }
}

fn config(size: &str) -> Result<RssmConfig, Failure> {
    Ok(match size {
        "12m" => RssmConfig::size_12m(TOKENS, ACTIONS),
        "50m" => RssmConfig::size_50m(TOKENS, ACTIONS),
        "200m" => RssmConfig::size_200m(TOKENS, ACTIONS),
        "small" => RssmConfig::new(TOKENS, ACTIONS)
            .with_deter(256)
            .with_hidden(64)
            .with_classes(16),
        other => {
            return Err(Failure::User(format!(
                "unknown size `{other}`; one of: small, 12m, 50m, 200m"
            )));
        }
    })
}

/// Measures and prints.
pub fn run(args: &BenchRssmArgs) -> Result<(), Failure> {
    let setup = Setup::new(&args.common)?;
    let device = setup.device.clone().without_autodiff();
    let (observed, imagined) = (args.observe.0, args.imagine.0);
    let mut out = stdout();
    writeln!(
        out,
        "{}: {}; observe {} x {} forward and backward, imagine {} x {}",
        setup.origin.device, setup.origin.name, observed[0], observed[1], imagined[0], imagined[1]
    )?;
    writeln!(
        out,
        "{:<6} {:<5} {:>12}  {:>12} {:>6}  {:>12} {:>6}",
        "size", "type", "parameters", "observe ms", "±", "imagine ms", "±"
    )?;
    let mut rows = Vec::new();
    let mut refused = Refused::default();
    for size in &args.sizes {
        for &dtype in &args.dtypes {
            let (format, name) = match dtype {
                Storage::F32 => (FloatDType::F32, "f32"),
                Storage::Bf16 => (FloatDType::BF16, "bf16"),
                _ => return Err(Failure::User("an RSSM is measured in f32 and bf16".into())),
            };
            let model = config(size)?
                .init(&device.clone().autodiff())
                .map(&mut Cast(format));
            let parameters = model.num_params();
            let imagine = time_imagine(&model, imagined, format, &device);
            let observe = time_observe(model.map(&mut Track), observed, format, &device);
            let what = || format!("{size} {name}");
            if !refused.admits(what, &observe) || !refused.admits(what, &imagine) {
                continue;
            }
            writeln!(
                out,
                "{size:<6} {name:<5} {parameters:>12}  {:>12.3} {:>5.1}%  {:>12.3} {:>5.1}%",
                observe.median * 1e3,
                observe.spread() * 100.0,
                imagine.median * 1e3,
                imagine.spread() * 100.0
            )?;
            rows.push(Row {
                size: size.clone(),
                dtype: name,
                parameters,
                observe,
                imagine,
            });
        }
    }
    let Some(path) = &args.common.json else {
        return Ok(());
    };
    let report = Report {
        origin: setup.origin,
        observed,
        imagined,
        rows,
        refused: refused.names(),
    };
    super::write_json(path, &report)
}

fn noise(shape: [usize; 3], dtype: FloatDType, device: &Device) -> Tensor<3> {
    Tensor::<3>::random(shape, Distribution::Normal(0.0, 1.0), device).cast(dtype)
}

fn key(device: &Device) -> Tensor<1, Int> {
    Tensor::from_ints([1, 2, 3, 4], device)
}

fn time_imagine(
    model: &Rssm,
    [starts, steps]: [usize; 2],
    dtype: FloatDType,
    device: &Device,
) -> Timing {
    let actions = noise([starts, steps, ACTIONS], dtype, device);
    let key = key(device);
    repeat(Duration::from_secs(2), || {
        let start = Instant::now();
        let state = model.initial(starts, device, dtype);
        let found = model.imagine(actions.clone(), key.clone(), state);
        // A number read back waits for all.
        found.last.stoch.sum().into_data();
        start.elapsed().as_secs_f64()
    })
}

fn time_observe(
    model: Rssm,
    [batch, steps]: [usize; 2],
    dtype: FloatDType,
    device: &Device,
) -> Timing {
    let tokens = Tensor::from_inner(noise([batch, steps, TOKENS], dtype, device));
    let actions = Tensor::from_inner(noise([batch, steps, ACTIONS], dtype, device));
    let key = key(device);
    repeat(Duration::from_secs(4), || {
        let start = Instant::now();
        let found = model.observe(
            tokens.clone(),
            actions.clone(),
            key.clone(),
            Sequence::new(),
        );
        let kl = found.kl(&model, 1.0);
        let mean = |x: Tensor<3>| x.cast(FloatDType::F32).mean();
        let states = mean(found.deter) + mean(found.stoch);
        let gradients = (kl.total() + states).backward();
        let gradient = model.deter_input.weight.val().grad(&gradients);
        gradient.expect("a gradient").sum().into_data();
        start.elapsed().as_secs_f64()
    })
}
