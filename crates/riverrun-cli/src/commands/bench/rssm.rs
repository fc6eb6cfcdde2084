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
    /// `observe`, forward and backward, or `imagine`, forward.
    pass: &'static str,
    batch: usize,
    steps: usize,
    /// Seconds of the first call, which compiles.
    first: f64,
    time: Timing,
}

#[derive(Debug, Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    origin: Origin,
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
        "{}: {}; observe: forward and backward, imagine: forward",
        setup.origin.device, setup.origin.name
    )?;
    writeln!(
        out,
        "{:<6} {:<5} {:>12}  {:<8} {:>10}  {:>10} {:>6}  {:>8}",
        "size", "type", "parameters", "pass", "B x T", "ms", "±", "first s"
    )?;
    let mut rows = Vec::new();
    let mut refused = Refused::default();
    let default = match setup.is_cpu() {
        true => Storage::F32,
        false => Storage::Bf16,
    };
    let dtypes = match args.dtypes.is_empty() {
        true => vec![default],
        false => args.dtypes.clone(),
    };
    for size in &args.sizes {
        for &dtype in &dtypes {
            let (format, name) = match dtype {
                Storage::F32 => (FloatDType::F32, "f32"),
                Storage::Bf16 => (FloatDType::BF16, "bf16"),
                _ => return Err(Failure::User("an RSSM is measured in f32 and bf16".into())),
            };
            let model = config(size)?
                .init(&device.clone().autodiff())
                .map(&mut Cast(format));
            let parameters = model.num_params();
            let mut add = |pass: &'static str, [batch, steps]: [usize; 2], first, time: Timing| {
                if !refused.admits(|| format!("{size} {name} {pass}"), &time) {
                    return Ok(());
                }
                writeln!(
                    out,
                    "{size:<6} {name:<5} {parameters:>12}  {pass:<8} {:>10}  {:>10.3} {:>5.1}%  {first:>8.1}",
                    format!("{batch} x {steps}"),
                    time.median * 1e3,
                    time.spread() * 100.0
                )?;
                // What follows takes a while.
                out.flush()?;
                rows.push(Row {
                    size: size.clone(),
                    dtype: name,
                    parameters,
                    pass,
                    batch,
                    steps,
                    first,
                    time,
                });
                Ok::<(), Failure>(())
            };
            let (first, time) = time_imagine(&model, imagined, format, &device);
            add("imagine", imagined, first, time)?;
            let model = model.map(&mut Track);
            let (first, time) = time_observe(&model, observed, format, &device);
            add("observe", observed, first, time)?;
        }
    }
    let Some(path) = &args.common.json else {
        return Ok(());
    };
    let report = Report {
        origin: setup.origin,
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

/// Seconds of the first call, and the time of those after it.
fn timed(mut call: impl FnMut() -> f64) -> (f64, Timing) {
    let first = call();
    (first, repeat(Duration::from_secs(1), call))
}

fn time_imagine(
    model: &Rssm,
    [starts, steps]: [usize; 2],
    dtype: FloatDType,
    device: &Device,
) -> (f64, Timing) {
    let actions = noise([starts, steps, ACTIONS], dtype, device);
    let key = key(device);
    timed(|| {
        let start = Instant::now();
        let state = model.initial(starts, device, dtype);
        let found = model.imagine(actions.clone(), key.clone(), state);
        // A number read back waits for all.
        found.last.stoch.sum().into_data();
        start.elapsed().as_secs_f64()
    })
}

fn time_observe(
    model: &Rssm,
    [batch, steps]: [usize; 2],
    dtype: FloatDType,
    device: &Device,
) -> (f64, Timing) {
    let tokens = Tensor::from_inner(noise([batch, steps, TOKENS], dtype, device));
    let actions = Tensor::from_inner(noise([batch, steps, ACTIONS], dtype, device));
    let key = key(device);
    timed(|| {
        let start = Instant::now();
        let found = model.observe(
            tokens.clone(),
            actions.clone(),
            key.clone(),
            Sequence::new(),
        );
        let kl = found.kl(model, 1.0);
        let mean = |x: Tensor<3>| x.cast(FloatDType::F32).mean();
        let states = mean(found.deter) + mean(found.stoch);
        let gradients = (kl.total() + states).backward();
        let gradient = model.deter_input.weight.val().grad(&gradients);
        gradient.expect("a gradient").sum().into_data();
        start.elapsed().as_secs_f64()
    })
}
