//! `riverrun bench layer`: whole recurrent layers, projections included, on the CPU and on a GPU in one run: the GPU's speed-up over
//! the number of steps, where it begins to pay, and minGRU and minLSTM beside GRU.

use std::fmt::Display;
use std::path::PathBuf;

use burn::module::Module;
use burn::tensor::{Device, Distribution, Tensor};
use riverrun::Sequence;
use riverrun::nn::Recurrent;
use riverrun_models::{AnyRecurrent, HeadSizes, RecurrentKind};
use riverrun_train::chart::{Line, PALETTE, Panel, Scale};

use super::report::{PASSES, Report};
use super::row::Row;
use super::timing::{Timing, in_a_row, repeat};
use crate::args::names::Sizes;
use crate::failure::Failure;

/// The default shapes, `BxTxIxH`: the sizes of a demonstration, then those over which the number of steps grows, then large ones.
fn shapes() -> Vec<[usize; 4]> {
    let growing = (3..=10).map(|power| [1, 1 << power, 64, 128]);
    let wide = [10, 50, 100, 200, 512, 1000].map(|steps| [1, steps, 128, 128]);
    let large = [
        [1, 2000, 512, 1024],
        [1, 2000, 1024, 1024],
        [32, 512, 256, 256],
    ];
    let all = std::iter::once([1, 5, 10, 20]).chain(growing);
    all.chain(wide).chain(large).collect()
}

/// Options of `riverrun bench layer`.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Shapes are BxTxIxH: sequences, steps, inputs, hidden units. Beside the device of --device the CPU is always measured; results that differ between them are not timed.\nExample:\n  riverrun bench layer --device cuda:0 --layers min-gru,min-lstm,gru --out benches/results/layer"
)]
pub struct Args {
    /// Shapes, separated by commas [default: a set]
    #[arg(long, visible_aliases = ["shape", "sizes"], value_name = "SHAPES", value_delimiter = ',')]
    shapes: Vec<Sizes<4>>,
    /// Layers, separated by commas
    #[arg(
        long,
        value_name = "LAYERS",
        value_delimiter = ',',
        default_value = "min-gru,min-lstm,gru"
    )]
    layers: Vec<RecurrentKind>,
    /// Heads of layers with a matrix for a state, whose hidden units are a multiple of the inputs [default: of 64 channels]
    #[arg(long, value_name = "N")]
    heads: Option<usize>,
    /// Folder for a chart of time over steps, of the shapes that differ in their steps alone
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Measures, prints and draws.
pub fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    let shapes = match args.shapes.is_empty() {
        true => shapes(),
        false => args.shapes.iter().map(|shape| shape.0).collect(),
    };
    for (kind, &[_, _, inputs, hidden]) in pairs(&args.layers, &shapes) {
        if let RecurrentKind::Heads(heads) = kind {
            if inputs == 0 || hidden == 0 || !hidden.is_multiple_of(inputs) {
                return Err(Failure::User(format!(
                    "{kind}: expected hidden units that are a multiple of the {inputs} inputs, found {hidden}"
                )));
            }
            heads.check(HeadSizes::new(inputs, args.heads, hidden / inputs))?;
        }
    }
    let cpu = riverrun::device::parse("cpu")?;
    let mut places = vec![("cpu".to_string(), cpu.clone())];
    if !report.is_cpu() {
        places.push((report.origin.device.clone(), report.device.clone()));
    }
    report.line(
        "f32; a pass is the projection and the recurrence; weights and input are on the device",
    )?;
    for &sizes in &shapes {
        let mut of_gru: Vec<(String, &str, f64)> = Vec::new();
        // GRU first: the others stand beside it.
        let mut layers = args.layers.clone();
        layers.sort_by_key(|kind| *kind != RecurrentKind::Gru);
        for kind in layers {
            let [_, _, inputs, hidden] = sizes;
            cpu.seed(11);
            let layer = match kind {
                RecurrentKind::Heads(kind) => {
                    let sizes = HeadSizes::new(inputs, args.heads, hidden / inputs);
                    AnyRecurrent::Heads(kind.init(sizes, &cpu))
                }
                _ => kind.init(inputs, hidden, true, 1, &cpu),
            };
            let input = Tensor::<3>::random(
                [sizes[0], sizes[1], inputs],
                Distribution::Normal(0.0, 1.0),
                &cpu,
            );
            let problem = Problem { layer, input };
            let expected = problem.on(&cpu).outcome();
            let mut of_cpu = [f64::NAN; 2];
            for (name, device) in &places {
                let there = problem.on(device);
                if name != "cpu" {
                    // Outputs are below 10, and matmuls on tensor cores with 32-bit sums keep at least 10 bits of their inputs.
                    agree(kind, &expected, &there.outcome(), 1e-2)?;
                }
                let times = there.times(device, report);
                for (i, (pass, time)) in PASSES_OF_A_LAYER.into_iter().zip(times).enumerate() {
                    if name == "cpu" {
                        of_cpu[i] = time.median;
                    }
                    if kind == RecurrentKind::Gru {
                        of_gru.push((name.clone(), pass, time.median));
                    }
                    let same = |row: &&(String, &str, f64)| row.0 == *name && row.1 == pass;
                    let gru = of_gru.iter().find(same).map(|row| row.2 / time.median);
                    let speed_up = (name != "cpu").then_some(of_cpu[i] / time.median);
                    report.add(
                        Row::new()
                            .text("device", name)
                            .wide("layer", 10, kind)
                            .wide("pass", 18, pass)
                            .counts(["batch", "steps", "inputs", "hidden"], sizes)
                            .ms("time", time)
                            .number("times_cpu", 2, speed_up)
                            .number("times_gru", 2, gru),
                    )?;
                }
            }
        }
    }
    crossovers(report)?;
    match &args.out {
        Some(folder) => {
            let panels = panels(report);
            report.draw(folder, "layer", &panels)
        }
        None => Ok(()),
    }
}

/// Every layer with every shape.
fn pairs<'a>(
    layers: &'a [RecurrentKind],
    shapes: &'a [[usize; 4]],
) -> impl Iterator<Item = (RecurrentKind, &'a [usize; 4])> {
    let with = |kind: &RecurrentKind| {
        let kind = *kind;
        shapes.iter().map(move |shape| (kind, shape))
    };
    layers.iter().flat_map(with)
}

/// Forward alone, and a training step's two passes.
const PASSES_OF_A_LAYER: [&str; 2] = [PASSES[0], "forward + backward"];

/// A layer with its input.
struct Problem {
    layer: AnyRecurrent,
    input: Tensor<3>,
}

impl Problem {
    fn on(&self, device: &Device) -> Self {
        Self {
            layer: self.layer.clone().to_device(device),
            input: self.input.clone().to_device(device),
        }
    }

    fn forward(&self) -> Tensor<3> {
        self.layer.run(self.input.clone(), Sequence::new()).0
    }

    /// The outputs.
    fn outcome(&self) -> Vec<f32> {
        self.forward().into_data().iter::<f32>().collect()
    }

    /// Milliseconds of both passes. On a GPU several calls in a row, for the throughput without the latency of the first.
    fn times(&self, device: &Device, report: &Report) -> [Timing; 2] {
        let budget = report.budget(1.0);
        let calls = |work: &dyn Fn() -> Vec<Tensor<3>>| {
            let one = in_a_row(device, 1, work)[0];
            match riverrun::device::is_cpu(device) {
                true => 1,
                false => (4e-3 / one).round().clamp(1.0, 16.0) as usize,
            }
        };
        let time = |work: &dyn Fn() -> Vec<Tensor<3>>| {
            work();
            let count = calls(work);
            repeat(budget, || in_a_row(device, count, work)[0])
        };
        let tracked = device.clone().autodiff();
        let layer = self.layer.clone().train();
        let numbers = self.input.to_data();
        let input = Tensor::<3>::from_data(numbers, &tracked).require_grad();
        [
            time(&|| vec![self.forward()]),
            time(&|| {
                let y = layer.run(input.clone(), Sequence::new()).0;
                let grads = y.sum().backward();
                vec![input.grad(&grads).expect("the input has a gradient")]
            }),
        ]
    }
}

/// Refuses to time a layer whose outputs differ between the CPU and the device.
pub(super) fn agree(
    layer: impl Display,
    expected: &[f32],
    found: &[f32],
    allowed: f32,
) -> Result<(), Failure> {
    let wrong = |(x, y): (&f32, &f32)| (x - y).abs().is_nan() || (x - y).abs() > allowed;
    match expected.iter().zip(found).position(wrong) {
        None => Ok(()),
        Some(i) => Err(Failure::Bug(format!(
            "not timed, because {layer} differs from the CPU's: {} and {} at {i}",
            found[i], expected[i]
        ))),
    }
}

/// The rows of one line of a chart: device, layer, pass and the sizes but the steps.
fn lines(report: &Report) -> Vec<(String, Vec<(f64, f64)>)> {
    let mut lines: Vec<(String, Vec<(f64, f64)>)> = Vec::new();
    for row in report.rows() {
        let number = |key: &str| row.number_of(key);
        let words = ["layer", "pass", "device"].map(|key| row.text_of(key));
        let sizes = ["batch", "inputs", "hidden"].map(|key| number(key).to_string());
        let name = format!("{}|{}|{}|{}", words[0], words[1], sizes.join("x"), words[2]);
        let point = (number("steps"), 1e3 * row.seconds_of("time"));
        match lines.iter_mut().find(|line| line.0 == name) {
            Some(line) => line.1.push(point),
            None => lines.push((name, vec![point])),
        }
    }
    lines.retain(|line| line.1.len() > 2);
    lines
}

/// Says from how many steps on the GPU is faster, of the shapes that differ in their steps alone.
fn crossovers(report: &mut Report) -> Result<(), Failure> {
    let lines = lines(report);
    for (name, cpu) in lines.iter().filter(|line| line.0.ends_with("|cpu")) {
        let what = name.trim_end_matches("|cpu");
        let there = lines.iter().find(|(other, _)| {
            other.starts_with(what) && other != name && other.len() > what.len()
        });
        let Some((_, gpu)) = there else { continue };
        // A row that was refused as unsteady is missing in its line.
        let faster = |(steps, seconds): &&(f64, f64)| {
            let same = gpu.iter().find(|point| point.0 == *steps);
            same.is_some_and(|point| point.1 < *seconds)
        };
        let ahead = cpu.iter().rev().take_while(faster).last();
        let words = what.replace('|', ", ");
        report.line(match ahead {
            Some((steps, _)) => {
                format!("crossover  {words}: the GPU is faster from {steps} steps on")
            }
            None => format!(
                "crossover  {words}: the CPU is faster at {} steps",
                cpu[cpu.len() - 1].0
            ),
        })?;
    }
    Ok(())
}

/// Milliseconds over steps: a panel for each pass and size.
fn panels(report: &Report) -> Vec<Panel> {
    let mut panels: Vec<Panel> = Vec::new();
    for (name, points) in lines(report) {
        let parts: Vec<&str> = name.split('|').collect();
        let caption = format!("{}, {} (B x I x H): ms", parts[1], parts[2]);
        let index = match panels.iter().position(|panel| panel.caption == caption) {
            Some(index) => index,
            None => {
                panels.push(Panel {
                    caption,
                    x_name: "steps".into(),
                    x_scale: Scale::Binary,
                    y_scale: Scale::Decimal,
                    range: None,
                    rising: true,
                    lines: Vec::new(),
                    bands: Vec::new(),
                });
                panels.len() - 1
            }
        };
        let lines = &mut panels[index].lines;
        lines.push(Line {
            name: format!("{} {}", parts[0], parts[3]),
            color: PALETTE[lines.len() % PALETTE.len()],
            points,
        });
    }
    panels
}
