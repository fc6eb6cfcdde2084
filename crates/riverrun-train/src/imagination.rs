//! How far a world model of the pendulum sees ahead.

use burn::tensor::{Device, Int, Tensor, TensorData};
use riverrun::Sequence;
use riverrun_models::WorldModel;
use serde::Serialize;

#[cfg(feature = "charts")]
use crate::chart::{self, Line, PALETTE, Panel, Scale};
#[cfg(feature = "charts")]
use crate::run_dir::write_atomic;
use crate::run_dir::write_json;
use crate::tasks::{OBSERVED, Pendulum};
use crate::{Error, RunDir};

/// Steps that the model sees before it imagines.
pub const SEEN: usize = 10;
/// Steps that it imagines.
pub const AHEAD: usize = 100;
/// Sequences, and imagined continuations of each.
const SEQUENCES: usize = 32;
const SAMPLES: usize = 16;
/// Sequences that are drawn.
const DRAWN: usize = 3;

/// Imagined against real trajectories: [`SEEN`] noisy observations, then [`AHEAD`] steps of which the model is told the torques
/// alone. Distances are of the pendulum's tip, in lengths of its rod.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Imagination {
    /// The mean distance of the mean of the samples from where the tip is, for each step ahead.
    pub imagined: Vec<f64>,
    /// The same of the tip where it was last seen: "nothing changes".
    pub unchanged: Vec<f64>,
    /// The mean distance of a sample from the mean of the samples.
    pub spread: Vec<f64>,
    /// Sequences to look at.
    pub sequences: Vec<Trajectory>,
}

/// The sideways place of the tip over a sequence, in lengths of the rod.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Trajectory {
    /// Where it was, [`SEEN`] + [`AHEAD`] steps.
    pub real: Vec<f64>,
    /// The observed part of it, [`SEEN`] steps.
    pub seen: Vec<f64>,
    /// The mean of the samples, [`AHEAD`] steps.
    pub imagined: Vec<f64>,
    /// The lowest and the highest of the samples.
    pub range: [Vec<f64>; 2],
}

impl Imagination {
    /// Lets a model without autodiff, in f32, imagine sequences that no step has trained on. `seed` decides the samples.
    pub fn new(model: &WorldModel, task: &Pendulum, seed: u64, device: &Device) -> Self {
        let device = &device.clone().without_autodiff();
        let batch = task.unseen(SEQUENCES, SEEN + AHEAD);
        let length = batch.length;
        let tensor = |numbers: &[f32], width: usize| -> Tensor<3> {
            let data = TensorData::new(numbers.to_vec(), [SEQUENCES, length, width]);
            Tensor::from_data(data, device)
        };
        let key = |word: i32| -> Tensor<1, Int> {
            let seed = [seed as u32, (seed >> 32) as u32].map(u32::cast_signed);
            Tensor::from_ints([seed[0], seed[1], word, 0], device)
        };
        let observations = tensor(&batch.observations, OBSERVED).narrow(1, 0, SEEN);
        let actions = tensor(&batch.actions, 1);
        // The samples differ from what is seen on: the state is one too.
        let many = |x: Tensor<3>, steps: usize, width: usize| -> Tensor<3> {
            x.unsqueeze_dim::<4>(1).repeat_dim(1, SAMPLES).reshape([
                SEQUENCES * SAMPLES,
                steps,
                width,
            ])
        };
        let seen = model.observe(
            many(observations, SEEN, OBSERVED),
            many(actions.clone().narrow(1, 0, SEEN), SEEN, 1),
            key(0),
            Sequence::new(),
        );
        let ahead = many(actions.narrow(1, SEEN, AHEAD), AHEAD, 1);
        let imagined = model.imagine(ahead, key(1), seen.last);
        let imagined: Vec<f32> = imagined.into_data().iter().collect();

        let tip = |numbers: &[f32], at: usize| -> [f64; 2] {
            [0, 1].map(|n| f64::from(numbers[at * OBSERVED + n]))
        };
        let apart = |a: [f64; 2], b: [f64; 2]| (a[0] - b[0]).hypot(a[1] - b[1]);
        let mut found = Self {
            imagined: vec![0.0; AHEAD],
            unchanged: vec![0.0; AHEAD],
            spread: vec![0.0; AHEAD],
            sequences: Vec::new(),
        };
        for row in 0..SEQUENCES {
            let start = row * length;
            let last = tip(&batch.observations, start + SEEN - 1);
            let side = |numbers: &[f32], steps: usize| -> Vec<f64> {
                (0..steps).map(|t| tip(numbers, start + t)[1]).collect()
            };
            let mut trajectory = Trajectory {
                real: side(&batch.truth, length),
                seen: side(&batch.observations, SEEN),
                imagined: Vec::new(),
                range: [Vec::new(), Vec::new()],
            };
            for t in 0..AHEAD {
                let real = tip(&batch.truth, start + SEEN + t);
                let samples: Vec<[f64; 2]> = (0..SAMPLES)
                    .map(|sample| tip(&imagined, (row * SAMPLES + sample) * AHEAD + t))
                    .collect();
                let mean = [0, 1]
                    .map(|n| samples.iter().map(|sample| sample[n]).sum::<f64>() / SAMPLES as f64);
                found.imagined[t] += apart(mean, real) / SEQUENCES as f64;
                found.unchanged[t] += apart(last, real) / SEQUENCES as f64;
                let spread: f64 = samples.iter().map(|sample| apart(*sample, mean)).sum();
                found.spread[t] += spread / (SAMPLES * SEQUENCES) as f64;
                trajectory.imagined.push(mean[1]);
                let sides = || samples.iter().map(|sample| sample[1]);
                trajectory.range[0].push(sides().fold(f64::INFINITY, f64::min));
                trajectory.range[1].push(sides().fold(f64::NEG_INFINITY, f64::max));
            }
            if row < DRAWN {
                found.sequences.push(trajectory);
            }
        }
        found
    }

    /// The mean distance of "nothing changes" by that of what is imagined, over all steps ahead.
    pub fn gain(&self) -> f64 {
        self.unchanged.iter().sum::<f64>() / self.imagined.iter().sum::<f64>()
    }

    /// The mean distance of what is imagined from what is, over all steps ahead.
    pub fn error(&self) -> f64 {
        self.imagined.iter().sum::<f64>() / AHEAD as f64
    }

    /// Writes `imagination.json`, and with the feature `charts` `imagination.svg` and `.png`, into the run's folder.
    ///
    /// # Errors
    /// A disk that is full or refuses.
    pub fn write(&self, dir: &RunDir) -> Result<(), Error> {
        write_json(&dir.path().join("imagination.json"), self)?;
        #[cfg(feature = "charts")]
        {
            let panels = self.panels();
            let path = dir.path().join("imagination.svg");
            let svg = chart::svg(&panels).map_err(|error| Error::write(path.clone(), error))?;
            write_atomic(&path, svg.as_bytes())?;
            let path = dir.path().join("imagination.png");
            chart::png(&panels, &path).map_err(|error| Error::write(path.clone(), error))?;
        }
        Ok(())
    }

    #[cfg(feature = "charts")]
    fn panels(&self) -> Vec<Panel> {
        let line = |name: &str, color: usize, first: usize, points: &[f64]| Line {
            name: name.into(),
            color: PALETTE[color],
            points: points
                .iter()
                .enumerate()
                .map(|(t, x)| ((first + t) as f64, *x))
                .collect(),
        };
        let panel = |caption: String, range, lines| Panel {
            caption,
            x_name: "step".into(),
            x_scale: Scale::Linear,
            y_scale: Scale::Linear,
            range,
            rising: false,
            lines,
            bands: Vec::new(),
        };
        let mut panels: Vec<Panel> = self
            .sequences
            .iter()
            .enumerate()
            .map(|(n, sequence)| {
                let lines = vec![
                    line("lowest sample", 4, SEEN, &sequence.range[0]),
                    line("highest sample", 4, SEEN, &sequence.range[1]),
                    line("real", 0, 0, &sequence.real),
                    line("imagined", 1, SEEN, &sequence.imagined),
                    line("seen", 2, 0, &sequence.seen),
                ];
                let caption = format!("sequence {}: the tip's place sideways (rod lengths)", n + 1);
                panel(caption, Some((-1.2, 1.8)), lines)
            })
            .collect();
        let lines = vec![
            line("nothing changes", 4, 1, &self.unchanged),
            line("imagined", 1, 1, &self.imagined),
            line("spread of samples", 2, 1, &self.spread),
        ];
        panels.push(panel(
            "distance over the horizon (rod lengths)".into(),
            None,
            lines,
        ));
        panels
    }
}
