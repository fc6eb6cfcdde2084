//! Sampling text from a trained run.
//!
//! The prompt goes through the model as one sequence; after it the model takes one step for each
//! symbol, with the state carried. The state of a recurrent model or of Griffin does not grow with what was generated;
//! GPT-2's is a cache of keys and values up to its number of positions, after which it goes on from the last half of them.

mod carry;
mod steps;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::AtomicBool;

use burn::tensor::Device;
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use riverrun_models::AnyLanguageModel;

use crate::run_dir::checksums;
use crate::tasks::Vocabulary;
use crate::trainer::checkpoint::{MODEL, load_module};
use crate::{Error, Precision, RunConfig, RunDir, TaskConfig, memory};
use steps::Steps;

/// How symbols are drawn.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// Symbols to generate.
    pub tokens: usize,
    /// Logits are divided by this; at 0 the most likely symbol is always taken.
    pub temperature: f64,
    /// Number of most likely symbols to draw from; `None` for all.
    pub top_k: Option<usize>,
    /// Seed of the draws.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            tokens: 500,
            temperature: 0.8,
            top_k: None,
            seed: 0,
        }
    }
}

/// A trained model with its vocabulary.
pub struct Generator {
    model: AnyLanguageModel,
    /// The most tokens that the model reads, if there is such a bound.
    positions: Option<usize>,
    vocabulary: Vocabulary,
    symbols: Vec<Vec<u8>>,
    device: Device,
    /// Whether steps are to be recorded.
    recorded: AtomicBool,
}

/// The best language model of a run, or the latest where none was evaluated yet, without autodiff.
///
/// # Errors
/// A folder that is no run, or holds no model, or whose task has no language model; a damaged file; a device without the memory.
pub fn best_model(dir: &RunDir, device: &Device) -> Result<AnyLanguageModel, Error> {
    let config = language_run(dir)?;
    best_of(&config, dir, &device.clone().without_autodiff())
}

/// The configuration of a run with a language model.
fn language_run(dir: &RunDir) -> Result<RunConfig, Error> {
    if let Some(task) = dir.task()?
        && !TaskConfig::NAMES.contains(&task.as_str())
    {
        return Err(Error::Unsupported(format!(
            "{} was trained on the task {task}, which has no language model",
            dir.path().display()
        )));
    }
    let config: RunConfig = dir.config()?;
    config.check()?;
    config.check_vocab()?;
    Ok(config)
}

fn best_of(config: &RunConfig, dir: &RunDir, device: &Device) -> Result<AnyLanguageModel, Error> {
    let none = || Error::NoModel {
        dir: dir.path().into(),
        what: "model",
    };
    let folder = dir.best().or_else(|| dir.checkpoint()).ok_or_else(none)?;
    memory::check("the model", config.weight_bytes(), device)?;
    checksums::check(&folder)?;
    load_module(config.model.init(device), &folder.join(MODEL))
}

impl Generator {
    /// Opens the best model of a run, or the latest where none was evaluated yet.
    ///
    /// # Errors
    /// A folder that is no run, or holds no model, or whose task is not text; a damaged file.
    pub fn open(dir: &RunDir, device: &Device) -> Result<Self, Error> {
        let config = language_run(dir)?;
        let TaskConfig::Text(task) = &config.task else {
            return Err(Error::Unsupported(format!(
                "{} was trained on selective copying: only a run on text can generate text",
                dir.path().display()
            )));
        };
        let task = task.clone();
        let device = device.clone().without_autodiff();
        let model = best_of(&config, dir, &device)?;
        let symbols = task.vocabulary.symbols()?;
        Ok(Self {
            model,
            positions: config.model.positions(),
            vocabulary: task.vocabulary,
            symbols,
            device,
            recorded: AtomicBool::new(false),
        })
    }

    /// The model with its weights rounded to a format, in which it computes from here on: in 16 bits it takes half of the memory.
    /// Weights that [stay wide](riverrun::training::stays_wide) are as they are.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a format that the device lacks.
    pub fn with_precision(mut self, precision: Precision) -> Result<Self, Error> {
        if !riverrun::device::supports(&self.device, precision.dtype().into()) {
            let device = riverrun::device::name(&self.device);
            return Err(Error::Unsupported(format!("{device} has no {precision}")));
        }
        self.model = precision.working_copy(&self.model);
        Ok(self)
    }

    /// From here on, the launches of a symbol's step are recorded on a GPU and run again by one call for each further symbol:
    /// the same text, and faster, for launching a step's kernels takes longer than computing them.
    ///
    /// Each call of [`stream`](Self::stream) or [`samples`](Self::samples) records after a few normal steps; on CUDA nothing
    /// else of the process may use the device meanwhile. Griffin's steps are recorded once its window is full. If the device
    /// then refuses, or for GPT-2, whose cache grows, a warning says so once, and normal steps go on.
    ///
    /// # Errors
    /// [`Error::Recording`] on the CPU, which has no launches to record.
    pub fn record_steps(&mut self) -> Result<(), Error> {
        if riverrun::device::is_cpu(&self.device) {
            let reason = "there are no launches to record on the CPU";
            return Err(Error::Recording(reason.into()));
        }
        *self.recorded.get_mut() = true;
        Ok(())
    }

    /// [`record_steps`](Self::record_steps).
    ///
    /// # Errors
    /// As there.
    pub fn with_recorded_steps(mut self) -> Result<Self, Error> {
        self.record_steps()?;
        Ok(self)
    }

    /// The symbols that the model knows.
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// Reads a prompt and gives the symbols after it as they are made, each as the bytes it is written
    /// with. Without a prompt the model starts as after a line break, or after its first symbol where
    /// it knows none.
    ///
    /// # Errors
    /// A symbol in the prompt that the model does not know; a temperature below 0 or not a number; a
    /// `top_k` of 0.
    pub fn stream(&self, prompt: &[u8], sampling: Sampling) -> Result<Stream<'_>, Error> {
        Ok(Stream(self.samples(prompt, sampling, 1)?))
    }

    /// As [`stream`](Self::stream), for several samples at once: each item has the next symbol of every sample. A step
    /// takes little longer than that of one sample. The samples draw different numbers; the first draws those of `stream`.
    ///
    /// # Errors
    /// As there; no samples.
    pub fn samples(
        &self,
        prompt: &[u8],
        sampling: Sampling,
        samples: usize,
    ) -> Result<Samples<'_>, Error> {
        if !(sampling.temperature >= 0.0 && sampling.temperature.is_finite()) {
            return Err(Error::value(
                "temperature",
                sampling.temperature,
                "must be 0 or more",
            ));
        }
        if sampling.top_k == Some(0) {
            return Err(Error::value("top_k", 0, "must be at least 1"));
        }
        if !(1..=MOST_SAMPLES).contains(&samples) {
            let reason = format!("must be from 1 to {MOST_SAMPLES}");
            return Err(Error::value("batch", samples, reason));
        }
        let mut tokens = self.vocabulary.encode(prompt)?;
        if tokens.is_empty() {
            tokens = self.vocabulary.encode(b"\n").unwrap_or_else(|_| vec![0]);
        }
        let mut tokens: Vec<i32> = tokens.into_iter().map(i32::from).collect();
        if let Some(positions) = self.positions {
            tokens.drain(..tokens.len().saturating_sub(positions));
        }
        let recent = vec![tokens; samples];
        let rng = |sample: usize| {
            let mut rng = ChaCha8Rng::seed_from_u64(sampling.seed);
            rng.set_stream(sample as u64);
            rng
        };
        // The last symbol is drawn from the step before it.
        let further = sampling.tokens.saturating_sub(1);
        let model = (&self.model, self.positions);
        let steps = Steps::new(model, &self.device, recent, further, &self.recorded)?;
        Ok(Samples {
            symbols: &self.symbols,
            steps,
            rngs: (0..samples).map(rng).collect(),
            left: sampling.tokens,
            sampling,
        })
    }
}

/// More samples at once than any use needs, so that a mistake does not ask for all memory.
const MOST_SAMPLES: usize = 1 << 16;

/// The symbols of one sample as they are made; see [`Generator::stream`].
pub struct Stream<'a>(Samples<'a>);

impl<'a> Iterator for Stream<'a> {
    type Item = Result<&'a [u8], Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let symbols = self.0.next()?;
        Some(symbols.map(|symbols| symbols[0]))
    }
}

/// The symbols of several samples as they are made; see [`Generator::samples`].
pub struct Samples<'a> {
    symbols: &'a [Vec<u8>],
    steps: Steps<'a>,
    /// One for each sample.
    rngs: Vec<ChaCha8Rng>,
    left: usize,
    sampling: Sampling,
}

impl Samples<'_> {
    /// Whether steps are [recorded](Generator::record_steps) and run again by now.
    pub fn recorded(&self) -> bool {
        self.steps.recorded()
    }

    /// Draws a token for each sample.
    fn draw(&mut self) -> Result<Vec<usize>, Error> {
        let logits = self.steps.logits()?;
        let vocab = self.steps.vocab();
        let rows = logits.chunks_exact(vocab).zip(&mut self.rngs);
        rows.map(|(logits, rng)| draw(logits, &self.sampling, rng.random()))
            .collect()
    }
}

impl<'a> Iterator for Samples<'a> {
    type Item = Result<Vec<&'a [u8]>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let tokens = self.draw().and_then(|tokens| {
            if self.left > 0 {
                let next = tokens.iter().map(|&token| token as i32);
                self.steps.step(next.collect())?;
            }
            Ok(tokens)
        });
        if tokens.is_err() {
            self.left = 0;
        }
        let symbols = self.symbols;
        Some(tokens.map(|tokens| tokens.iter().map(|&token| &symbols[token][..]).collect()))
    }
}

/// Draws an index; `uniform` is in [0, 1).
fn draw(logits: &[f32], sampling: &Sampling, uniform: f64) -> Result<usize, Error> {
    if let Some((symbol, &value)) = logits
        .iter()
        .enumerate()
        .find(|(_, logit)| !logit.is_finite())
    {
        return Err(Error::Logits { symbol, value });
    }
    // The largest first; equal logits keep their order, so the draw is the same everywhere. Not sorted: most draws take one of
    // the first few.
    let place = |(i, logit): (usize, &f32)| (ordered(*logit), Reverse(i));
    let mut order: BinaryHeap<_> = logits.iter().enumerate().map(place).collect();
    let top = order.peek().map(|(_, Reverse(i))| *i);
    let top = top.expect("a vocabulary has symbols");
    if sampling.temperature == 0.0 {
        return Ok(top);
    }
    let weight = |i: usize| {
        let apart = f64::from(logits[i]) - f64::from(logits[top]);
        (apart / sampling.temperature).exp()
    };
    let mut next = || order.pop().map(|(_, Reverse(i))| i);
    let most = sampling.top_k.unwrap_or(usize::MAX);
    let (few, total) = if most < logits.len() {
        let few: Vec<usize> = (0..most).filter_map(|_| next()).collect();
        let total: f64 = few.iter().map(|&i| weight(i)).sum();
        (few, total)
    } else {
        (Vec::new(), (0..logits.len()).map(weight).sum())
    };
    let (mut left, mut drawn) = (uniform * total, top);
    // Rounding can leave a small remainder: then the last is drawn.
    for i in few.into_iter().chain(std::iter::from_fn(next)).take(most) {
        drawn = i;
        left -= weight(i);
        if left < 0.0 {
            break;
        }
    }
    Ok(drawn)
}

/// A number that is ordered as [`f32::total_cmp`] orders.
fn ordered(x: f32) -> i32 {
    let bits = x.to_bits() as i32;
    bits ^ (((bits >> 31) as u32) >> 1) as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 4] = [0.0, 2.0, 1.0, 2.0];

    fn sampling(temperature: f64, top_k: Option<usize>) -> Sampling {
        Sampling {
            temperature,
            top_k,
            ..Default::default()
        }
    }

    #[test]
    fn temperature_zero_takes_the_first_of_the_highest() {
        assert_eq!(draw(&LOGITS, &sampling(0.0, None), 0.99).unwrap(), 1);
    }

    #[test]
    fn draws_follow_the_softmax() {
        let total: f64 = LOGITS.iter().map(|&l| f64::from(l).exp()).sum();
        let n = 10_000;
        let mut counts = [0; 4];
        for i in 0..n {
            counts[draw(&LOGITS, &sampling(1.0, None), (i as f64 + 0.5) / n as f64).unwrap()] += 1;
        }
        for (count, logit) in counts.iter().zip(LOGITS) {
            let expected = f64::from(logit).exp() / total * n as f64;
            assert!((f64::from(*count) - expected).abs() <= 1.0, "{counts:?}");
        }
    }

    #[test]
    fn top_k_leaves_the_rest_out() {
        for i in 0..100 {
            assert_ne!(
                draw(&LOGITS, &sampling(5.0, Some(3)), f64::from(i) / 100.0).unwrap(),
                0
            );
        }
    }

    #[test]
    fn draws_are_those_of_a_sorted_vocabulary() {
        let logits: Vec<f32> = (0..500)
            .map(|i| ((i * 37 % 101) as f32 - 50.0) / 20.0)
            .collect();
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
        for k in [1, 7, 499, 500, 600] {
            let among = &order[..k.min(logits.len())];
            let weight = |&i: &usize| f64::from(logits[i]).exp();
            let total: f64 = among.iter().map(weight).sum();
            for n in 0..200 {
                let uniform = (f64::from(n) + 0.3) / 200.0;
                let mut left = uniform * total;
                let mut sorted = among.iter().take_while(|&i| {
                    left -= weight(i);
                    left >= 0.0
                });
                let before = sorted.by_ref().count();
                let found = draw(&logits, &sampling(1.0, Some(k)), uniform).unwrap();
                assert_eq!(found, among[before], "{k} {uniform}");
            }
        }
    }

    #[test]
    fn logits_that_are_not_finite_are_refused() {
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for temperature in [0.0, 1.0] {
                let error = draw(&[0.0, value], &sampling(temperature, None), 0.5).unwrap_err();
                assert!(matches!(error, Error::Logits { symbol: 1, .. }), "{error}");
            }
        }
    }
}
