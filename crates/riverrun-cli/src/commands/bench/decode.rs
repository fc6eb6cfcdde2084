//! `riverrun bench decode`: a single step of a whole layer with heads, as a model takes it for each symbol of a text: launched one
//! kernel after another, and from a recording of many steps.

use burn::module::Module;
use burn::tensor::{DType, Device, Distribution, Tensor};
use riverrun::Recording;
use riverrun::nn::Recurrent;
use riverrun_models::{AnyHeadLayer, HeadKind, HeadSizes, RecurrentState};
use riverrun_testkit::Storage;
use riverrun_train::Precision;

use super::Grid;
use super::layer::agree;
use super::report::Report;
use super::row::Row;
use super::timing::{Timing, in_a_row, repeat};
use crate::args::names::Sizes;
use crate::failure::Failure;

/// Steps of a recording.
const STEPS: usize = 128;

/// Options of `riverrun bench decode`.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Shapes are BxDxHxKxV: sequences, features, heads, rows and columns of a state.\nExample:\n  riverrun bench decode --device cuda:0 --layers gated-delta-net,mamba2 --shapes 1x1024x16x128x128"
)]
pub struct Args {
    /// Layers, separated by commas
    #[arg(
        long,
        value_name = "LAYERS",
        value_delimiter = ',',
        default_value = "gated-delta-net"
    )]
    layers: Vec<HeadKind>,
    #[command(flatten)]
    grid: Grid<Sizes<5>>,
}

/// `BxDxHxKxV`: those of Qwen3.5-0.8B, alone and with several texts, and of Qwen3-Next.
const SHAPES: [[usize; 5]; 3] = [
    [1, 1024, 16, 128, 128],
    [8, 1024, 16, 128, 128],
    [1, 2048, 32, 128, 128],
];

/// Measures and prints.
pub fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    let cpu = riverrun::device::parse("cpu")?;
    report.measure_copy()?;
    for storage in report.dtypes(&args.grid.dtypes, &[Storage::Bf16])? {
        let precision: Precision = storage.name().parse()?;
        for &kind in &args.layers {
            for [batch, width, heads, key, value] in args.grid.sizes(&SHAPES) {
                let mut sizes = HeadSizes::new(width, Some(heads), 1);
                (sizes.key, sizes.value) = (key, value);
                kind.check(sizes)?;
                cpu.seed(11);
                let layer = kind.init(sizes, &cpu);
                let inputs = Tensor::random([4, batch, width], Distribution::Default, &cpu);
                let there = precision.working_copy(&layer.clone().to_device(&report.device));
                let problem = Problem {
                    layer: there,
                    inputs: inputs.clone(),
                };
                let expected = Problem { layer, inputs }.outputs(&cpu, DType::F32);
                let found = problem.outputs(&report.device, storage.dtype());
                // A step rounds some ten times in a row, to 8 bits in bf16.
                let largest = expected.iter().fold(0.0f32, |most, x| most.max(x.abs()));
                let part = if storage == Storage::F32 { 1e-3 } else { 5e-2 };
                agree(kind, &expected, &found, largest * part)?;
                let bytes = problem.bytes(storage.dtype());
                let [device, host] = problem.launched(report, storage.dtype());
                let recorded = problem.recorded(report, storage.dtype())?;
                let best = recorded.unwrap_or(device).median;
                report.add(
                    Row::new()
                        .wide("layer", 16, kind)
                        .text("dtype", storage.name())
                        .counts(
                            ["batch", "width", "heads", "key", "value"],
                            [batch, width, heads, key, value],
                        )
                        .us("launched", device)
                        .us("host", host)
                        .beside_us("recorded", recorded)
                        // Above 1 where the weights come from a cache.
                        .bandwidth(bytes, best, report.copy),
                )?;
            }
        }
    }
    Ok(())
}

/// A layer, and inputs of four steps, `[4, B, D]`.
struct Problem {
    layer: AnyHeadLayer,
    inputs: Tensor<3>,
}

impl Problem {
    fn input(&self, step: usize, device: &Device, dtype: DType) -> Tensor<2> {
        let input = self.inputs.clone().narrow(0, step, 1).squeeze_dim(0);
        input.to_device(device).cast(dtype)
    }

    fn step(&self, x: &Tensor<2>, state: Option<RecurrentState>) -> (Tensor<2>, RecurrentState) {
        self.layer.step(x.clone(), state)
    }

    /// The outputs of four steps.
    fn outputs(&self, device: &Device, dtype: DType) -> Vec<f32> {
        let (mut state, mut outputs) = (None, Vec::new());
        for step in 0..4 {
            let (y, next) = self.step(&self.input(step, device, dtype), state);
            state = Some(next);
            outputs.extend(y.into_data().iter::<f32>());
        }
        outputs
    }

    /// Bytes of the weights, and of the state's matrices, read and written.
    fn bytes(&self, dtype: DType) -> usize {
        let [_, batch, width] = self.inputs.dims();
        let x = Tensor::zeros([batch, width], (&self.inputs.device(), dtype));
        let x = x.to_device(&self.layer.devices()[0]);
        let (_, state) = self.step(&x, None);
        let state = match state {
            RecurrentState::Matrix(state) => state.matrix.shape().num_elements(),
            _ => 0,
        };
        self.layer.num_params() * dtype.size() + 2 * 4 * state
    }

    /// A step of many launched in a row: on the device, and of the host alone.
    fn launched(&self, report: &Report, dtype: DType) -> [Timing; 2] {
        let x = self.input(0, &report.device, dtype);
        let mut state = Some(self.step(&x, None).1);
        let mut both: Vec<[f64; 2]> = Vec::new();
        let device = repeat(report.budget(0.2), || {
            let times = in_a_row(&report.device, STEPS, || {
                let (y, next) = self.step(&x, state.take());
                state = Some(next);
                y
            });
            both.push(times);
            times[0]
        });
        let host = both.iter().map(|times| times[1]).collect();
        [device, Timing::of(host)]
    }

    /// A step of many from a recording; `None` where nothing can be recorded.
    fn recorded(&self, report: &Report, dtype: DType) -> Result<Option<Timing>, Failure> {
        let device = &report.device;
        let preparation = match Recording::prepare(device) {
            Ok(preparation) => preparation,
            Err(reason) => {
                tracing::debug!("no recorded steps: {reason}");
                return Ok(None);
            }
        };
        let x = self.input(0, device, dtype);
        let wait = || {
            device
                .sync()
                .map_err(|error| Failure::Bug(format!("{error:?}")))
        };
        let many = |mut state: RecurrentState| {
            for _ in 1..STEPS {
                (_, state) = self.step(&x, Some(state));
            }
            self.step(&x, Some(state))
        };
        let start = || -> Result<RecurrentState, Failure> {
            let mut state = self.step(&x, None).1;
            for _ in 0..2 {
                (_, state) = many(state);
                wait()?;
            }
            Ok(state)
        };
        let [batch, _] = x.dims();
        let in_place = match &self.layer {
            AnyHeadLayer::GatedDeltaNet(layer) => layer.steps_in_place(batch),
            _ => false,
        };
        let launched = many(start()?).0.into_data();
        let state = start()?;
        // A state that is updated in place is lent to no one.
        let _start = (!in_place).then(|| state.clone());
        let (recording, (y, _state)) = preparation.record(|| many(state))?;
        let replay = || -> Result<(), Failure> {
            // SAFETY: the layer, the input and the state that the steps start from, or that they update, are alive.
            unsafe { recording.replay() }?;
            wait()
        };
        replay()?;
        if y.clone().into_data() != launched {
            return Err(Failure::Bug(
                "recorded steps differ from launched ones".into(),
            ));
        }
        let time = report.time(0.2, || replay().expect("replayed before"));
        Ok(Some(time.divided(STEPS)))
    }
}
