//! `riverrun bench rssm`: the recurrent state-space model over sequences of observations, forward and backward, and imagining.

use std::str::FromStr;
use std::time::Instant;

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Device, Distribution, FloatDType, Gradients, Int, Tensor};
use riverrun::device::cache::compile_ahead;
use riverrun::nn::{Imagined, Rssm, RssmConfig};
use riverrun::{Recording, Sequence};

use super::report::Report;
use super::row::Row;
use super::timing::{Timing, repeat, wall};
use super::{Grid, launches};
use crate::args::names::Sizes;
use crate::failure::Failure;
use riverrun_testkit::Storage;

/// Numbers of encoded observations and of actions.
const TOKENS: usize = 1024;
const ACTIONS: usize = 6;

/// Options of `riverrun bench rssm`.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Shapes are sizes of the model: small, 12m, 50m, 200m.\nExample:\n  riverrun bench rssm --device cuda:0 --sizes 12m,50m,200m --dtypes bf16 --json rssm.json"
)]
pub struct Args {
    #[command(flatten)]
    grid: Grid<Size>,
    /// Sequences and steps that are observed, BxT
    #[arg(long, value_name = "SHAPE", default_value = "16x64")]
    observe: Sizes<2>,
    /// Starts and steps that are imagined, BxT
    #[arg(long, value_name = "SHAPE", default_value = "1024x15")]
    imagine: Sizes<2>,
}

/// A size of the model.
#[derive(Debug, Clone, Copy)]
struct Size(&'static str);

impl FromStr for Size {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let mut all = ["small", "12m", "50m", "200m"].into_iter();
        let found = all.find(|known| *known == name);
        found
            .map(Self)
            .ok_or_else(|| "one of: small, 12m, 50m, 200m".into())
    }
}

impl Size {
    fn config(self) -> RssmConfig {
        match self.0 {
            "12m" => RssmConfig::size_12m(TOKENS, ACTIONS),
            "50m" => RssmConfig::size_50m(TOKENS, ACTIONS),
            "200m" => RssmConfig::size_200m(TOKENS, ACTIONS),
            _ => RssmConfig::new(TOKENS, ACTIONS)
                .with_deter(256)
                .with_hidden(64)
                .with_classes(16),
        }
    }
}

/// The measurements of a pass.
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
        let recorded = self.recorded.filter(Timing::is_steady);
        let recorded = recorded.map_or(f64::INFINITY, |time| time.median);
        recorded.min(self.time.median)
    }
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

/// Measures and prints.
pub fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    let device = report.device.clone().without_autodiff();
    report.measure_copy()?;
    report.line("observe: forward and backward, imagine: forward")?;
    let dtypes = report.dtypes(&args.grid.dtypes, &[Storage::Bf16])?;
    for size in args.grid.or(&[Size("12m")]) {
        for &storage in &dtypes {
            let format = match storage {
                Storage::F32 => FloatDType::F32,
                Storage::Bf16 => FloatDType::BF16,
                _ => return Err(Failure::User("an RSSM is measured in f32 and bf16".into())),
            };
            let fresh = |device: &Device| {
                let model = size.config().init(&device.clone().autodiff());
                model.map(&mut Cast(format))
            };
            let (imagine, observe) = (args.imagine.0, args.observe.0);
            let name = format!("{} {} {imagine:?} {observe:?}", size.0, storage.name());
            let start = Instant::now();
            let compiled = compile_ahead(&device, &format!("bench rssm {name}"), |device| {
                let model = fresh(device);
                imagining(&model, imagine, format, device)();
                let tracked = model.map(&mut Track);
                observing(&tracked, observe, format, device)();
            });
            if compiled > 0 {
                let seconds = start.elapsed().as_secs_f64();
                report.line(format!("{compiled} kernels compiled in {seconds:.1} s"))?;
            }
            let model = fresh(&device);
            let about = Row::new()
                .text("size", size.0)
                .text("dtype", storage.name())
                .count("parameters", model.num_params());
            // The weights of a step are read once a step forward and once backward.
            let (core, prior, posterior) = weights(&model);
            let bytes = |weights: usize, steps: usize| weights * steps * storage.dtype().size();
            let found = timed(
                report,
                &device,
                imagining(&model, imagine, format, &device),
                // A number read back waits for all.
                |found| drop(found.last.stoch.clone().sum().into_data()),
            );
            let read = bytes(core + prior, imagine[1]);
            add(report, about.clone(), "imagine", imagine, found, read)?;
            let tracked = model.clone().map(&mut Track);
            let mut found = timed(
                report,
                &device,
                observing(&tracked, observe, format, &device),
                |gradients| {
                    let gradient = tracked.deter_input.weight.val().grad(gradients);
                    drop(gradient.expect("a gradient").sum().into_data());
                },
            );
            found.not_in_one_launch = tracked.one_launch_missing(observe[0]);
            let read = 2 * bytes(core + posterior, observe[1]);
            add(report, about, "observe", observe, found, read)?;
        }
    }
    Ok(())
}

/// Adds a pass; of the copy bandwidth it has more than all where the weights come from a cache.
fn add(
    report: &mut Report,
    about: Row,
    pass: &str,
    shape: [usize; 2],
    found: Found,
    bytes: usize,
) -> Result<(), Failure> {
    let best = found.best();
    report.add(
        about
            .text("pass", pass)
            .counts(["batch", "steps"], shape)
            .ms("time", found.time)
            .beside_ms("recorded", found.recorded)
            .count("launches", found.launches)
            .count("kernels", found.kernels)
            .bandwidth(bytes, best, report.copy)
            .number("first", 1, found.first)
            .note("not_recorded", found.not_recorded)
            .note("not_in_one_launch", found.not_in_one_launch),
    )
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
fn timed<T>(report: &Report, device: &Device, call: impl Fn() -> T, wait: impl Fn(&T)) -> Found {
    let run = || wall(|| wait(&call()));
    let (kernels, first) = launches::kernels(run);
    run();
    let (launches, _) = launches::count(run);
    let time = repeat(report.budget(1.0), run);
    let (kernels, launches) = match riverrun::device::is_cpu(device) {
        true => (None, None),
        false => (kernels, launches),
    };
    let (recorded, not_recorded) = match recorded(report, device, &call, run) {
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
    report: &Report,
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
    let time = report.time(1.0, || {
        // SAFETY: weights, inputs and key outlive the recording, and nothing has written to them since.
        let done = unsafe { recording.replay() }.and_then(|()| wait());
        failed = failed.take().or(done.err());
    });
    failed.map_or(Ok(time), Err)
}

/// A call that imagines.
fn imagining(
    model: &Rssm,
    [starts, steps]: [usize; 2],
    dtype: FloatDType,
    device: &Device,
) -> impl Fn() -> Imagined {
    let actions = noise([starts, steps, ACTIONS], dtype, device);
    let key = key(device);
    move || {
        let state = model.initial(starts, device, dtype);
        model.imagine(actions.clone(), key.clone(), state)
    }
}

/// A call that observes and gives the gradients.
fn observing(
    model: &Rssm,
    [batch, steps]: [usize; 2],
    dtype: FloatDType,
    device: &Device,
) -> impl Fn() -> Gradients {
    let tokens = Tensor::from_inner(noise([batch, steps, TOKENS], dtype, device));
    let actions = Tensor::from_inner(noise([batch, steps, ACTIONS], dtype, device));
    let key = key(device);
    move || {
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
    }
}
