//! `riverrun bench rssm`: the recurrent state-space model over sequences of observations, forward and backward, and imagining.

use std::io::{Write, stdout};
use std::time::{Duration, Instant};

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Device, Distribution, FloatDType, Int, Tensor};
use riverrun::nn::{Rssm, RssmConfig};
use riverrun::{Recording, Sequence};
use serde::Serialize;

use super::launches;
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
    /// `observe`, forward and backward; `imagine`, forward.
    pass: &'static str,
    batch: usize,
    steps: usize,
    #[serde(flatten)]
    found: Found,
    /// The weights of a step, read once a step forward and once backward, over the time of the recorded call, or else of the
    /// other; and its part of the copy bandwidth, above 1 where they come from a cache.
    gb_per_s: f64,
    of_copy: f64,
}

/// The measurements of a pass.
#[derive(Debug, Serialize)]
struct Found {
    /// Seconds of the first call, which compiles.
    first: f64,
    /// The different kernels that it launches; on a GPU.
    kernels: Option<usize>,
    /// Launches of a later call; on a GPU.
    launches: Option<usize>,
    time: Timing,
    /// The call recorded and replayed.
    recorded: Option<Timing>,
    /// The reason why it is not recorded.
    not_recorded: Option<String>,
    /// The reason why its steps do not run in one launch.
    not_in_one_launch: Option<String>,
}

impl Found {
    /// The shortest of both ways.
    fn best(&self) -> f64 {
        let recorded = self.recorded.map_or(f64::INFINITY, |time| time.median);
        recorded.min(self.time.median)
    }
}

#[derive(Debug, Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    origin: Origin,
    copy_gb_per_s: f64,
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
    let copy = setup.copy()?;
    let mut out = stdout();
    writeln!(
        out,
        "{}: {}; copy {:.0} GB/s; observe: forward and backward, imagine: forward",
        setup.origin.device,
        setup.origin.name,
        copy / 1e9
    )?;
    writeln!(
        out,
        "{:<6} {:<5} {:>12}  {:<8} {:>10}  {:>10} {:>6}  {:>11} {:>6}  {:>8} {:>8} {:>8} {:>7}  {:>8}",
        "size",
        "type",
        "parameters",
        "pass",
        "B x T",
        "ms",
        "±",
        "recorded ms",
        "±",
        "launches",
        "kernels",
        "GB/s",
        "of copy",
        "first s"
    )?;
    out.flush()?;
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
            let width = if dtype == Storage::F32 { 4 } else { 2 };
            let model = config(size)?
                .init(&device.clone().autodiff())
                .map(&mut Cast(format));
            let mut add = |pass: &'static str, [batch, steps]: [usize; 2], read, found: Found| {
                if !refused.admits(|| format!("{size} {name} {pass}"), &found.time) {
                    return Ok(());
                }
                let rate = (read * steps * width) as f64 / found.best();
                let row = Row {
                    size: size.clone(),
                    dtype: name,
                    parameters: model.num_params(),
                    pass,
                    batch,
                    steps,
                    found,
                    gb_per_s: rate / 1e9,
                    of_copy: rate / copy,
                };
                writeln!(out, "{}", line(&row))?;
                // What follows takes a while.
                out.flush()?;
                rows.push(row);
                Ok::<(), Failure>(())
            };
            let (core, prior, posterior) = weights(&model);
            let found = time_imagine(&model, imagined, format, &device);
            add("imagine", imagined, core + prior, found)?;
            let tracked = model.clone().map(&mut Track);
            let mut found = time_observe(&tracked, observed, format, &device);
            found.not_in_one_launch = tracked.one_launch_missing(observed[0]);
            add("observe", observed, 2 * (core + posterior), found)?;
        }
    }
    let Some(path) = &args.common.json else {
        return Ok(());
    };
    let report = Report {
        origin: setup.origin,
        copy_gb_per_s: copy / 1e9,
        rows,
        refused: refused.names(),
    };
    super::write_json(path, &report)
}

fn line(row: &Row) -> String {
    let time = |time: &Timing| format!("{:.3} {:>5.1}%", time.median * 1e3, time.spread() * 100.0);
    let recorded = match &row.found.recorded {
        Some(recorded) => time(recorded),
        None => "-      -".into(),
    };
    let count = |n: Option<usize>| n.map_or("-".into(), |n| n.to_string());
    let mut line = format!(
        "{:<6} {:<5} {:>12}  {:<8} {:>10}  {:>17}  {recorded:>18}  {:>8} {:>8} {:>8.0} {:>6.1}%  {:>8.1}",
        row.size,
        row.dtype,
        row.parameters,
        row.pass,
        format!("{} x {}", row.batch, row.steps),
        time(&row.found.time),
        count(row.found.launches),
        count(row.found.kernels),
        row.gb_per_s,
        row.of_copy * 100.0,
        row.found.first
    );
    if let Some(reason) = &row.found.not_recorded {
        line.push_str(&format!("\n       not recorded: {reason}"));
    }
    if let Some(reason) = &row.found.not_in_one_launch {
        line.push_str(&format!("\n       not in one launch: {reason}"));
    }
    line
}

/// Parameters that a step of the core, of the prior and of the posterior reads.
fn weights(model: &Rssm) -> (usize, usize, usize) {
    let core = model.deter_input.num_params()
        + model.stoch_input.num_params()
        + model.hidden_blocks.num_params()
        + model.hidden_inputs.num_params()
        + model.gates.num_params();
    let prior = model.prior_layers.num_params() + model.prior_logits.num_params();
    let posterior = model.posterior_deter.num_params() + model.posterior_logits.num_params();
    (core, prior, posterior)
}

fn noise(shape: [usize; 3], dtype: FloatDType, device: &Device) -> Tensor<3> {
    Tensor::<3>::random(shape, Distribution::Normal(0.0, 1.0), device).cast(dtype)
}

fn key(device: &Device) -> Tensor<1, Int> {
    Tensor::from_ints([1, 2, 3, 4], device)
}

/// Calls that warm up a recording, as many as those of a recorded training step.
const WARM_UP: usize = 3;

/// Times a call whose results stay alive until `wait` has seen its end.
fn timed<T>(device: &Device, call: impl Fn() -> T, wait: impl Fn(&T)) -> Found {
    let run = || {
        let start = Instant::now();
        wait(&call());
        start.elapsed().as_secs_f64()
    };
    let (kernels, first) = launches::kernels(run);
    run();
    let (launches, _) = launches::count(run);
    let time = repeat(Duration::from_secs(1), run);
    let (kernels, launches) = match riverrun::device::is_cpu(device) {
        true => (None, None),
        false => (kernels, launches),
    };
    let (recorded, not_recorded) = match recorded(device, &call, run) {
        Ok(time) => (Some(time), None),
        Err(reason) => (None, Some(reason.to_string())),
    };
    Found {
        first,
        kernels,
        launches,
        time,
        recorded,
        not_recorded,
        not_in_one_launch: None,
    }
}

fn recorded<T>(
    device: &Device,
    call: impl Fn() -> T,
    run: impl Fn() -> f64,
) -> Result<Timing, riverrun::Error> {
    let wait = || {
        let synced = device.sync();
        synced.map_err(|error| riverrun::training::execution_error(device, &error))
    };
    let prepared = Recording::prepare(device)?;
    for _ in 0..WARM_UP {
        run();
    }
    wait()?;
    let (recording, _kept) = prepared.record(call)?;
    let mut failed = None;
    let time = repeat(Duration::from_secs(1), || {
        let start = Instant::now();
        // SAFETY: weights, inputs and key outlive the recording, and nothing has written to them since.
        let done = unsafe { recording.replay() }.and_then(|()| wait());
        failed = failed.take().or(done.err());
        start.elapsed().as_secs_f64()
    });
    match failed {
        Some(error) => Err(error),
        None => Ok(time),
    }
}

fn time_imagine(
    model: &Rssm,
    [starts, steps]: [usize; 2],
    dtype: FloatDType,
    device: &Device,
) -> Found {
    let actions = noise([starts, steps, ACTIONS], dtype, device);
    let key = key(device);
    timed(
        device,
        || {
            let state = model.initial(starts, device, dtype);
            model.imagine(actions.clone(), key.clone(), state)
        },
        // A number read back waits for all.
        |found| drop(found.last.stoch.clone().sum().into_data()),
    )
}

fn time_observe(
    model: &Rssm,
    [batch, steps]: [usize; 2],
    dtype: FloatDType,
    device: &Device,
) -> Found {
    let tokens = Tensor::from_inner(noise([batch, steps, TOKENS], dtype, device));
    let actions = Tensor::from_inner(noise([batch, steps, ACTIONS], dtype, device));
    let key = key(device);
    timed(
        device,
        || {
            let found = model.observe(
                tokens.clone(),
                actions.clone(),
                key.clone(),
                Sequence::new(),
            );
            let kl = found.kl(model, 1.0);
            let mean = |x: Tensor<3>| x.cast(FloatDType::F32).mean();
            let states = mean(found.deter) + mean(found.stoch);
            (kl.total() + states).backward()
        },
        |gradients| {
            let gradient = model.deter_input.weight.val().grad(gradients);
            drop(gradient.expect("a gradient").sum().into_data());
        },
    )
}
