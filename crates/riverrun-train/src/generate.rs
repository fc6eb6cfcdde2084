//! Sampling text from a trained run.
//!
//! The prompt goes through the model as one sequence; after it the model takes one step for each
//! symbol, with the state carried. A step's cost does not grow with what was generated.

use burn::tensor::{Device, Int, Tensor, TensorData};
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use riverrun::models::{LanguageModel, LmState};
use riverrun::nn::Sequence;

use crate::run_dir::checksums;
use crate::tasks::Vocabulary;
use crate::trainer::checkpoint::{MODEL, load_module};
use crate::{Error, RunConfig, RunDir, TaskConfig, memory};

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
    model: LanguageModel,
    vocabulary: Vocabulary,
    symbols: Vec<Vec<u8>>,
    device: Device,
}

impl Generator {
    /// Opens the best model of a run, or the latest where none was evaluated yet.
    ///
    /// # Errors
    /// A folder that is no run, or holds no model, or whose task is not text; a damaged file.
    pub fn open(dir: &RunDir, device: &Device) -> Result<Self, Error> {
        let config: RunConfig = dir.config()?;
        config.check()?;
        config.check_vocab()?;
        let weights = config.weight_bytes();
        let TaskConfig::Text(task) = config.task else {
            return Err(Error::Unsupported(format!(
                "{} was trained on selective copying: only a run on text can generate text",
                dir.path().display()
            )));
        };
        let none = || Error::NoModel {
            dir: dir.path().into(),
            what: "model",
        };
        let folder = dir.best().or_else(|| dir.checkpoint()).ok_or_else(none)?;
        let device = device.clone().without_autodiff();
        memory::check("the model", weights, &device)?;
        checksums::check(&folder)?;
        let model = load_module(config.model.init(&device), &folder.join(MODEL))?;
        let symbols = task.vocabulary.symbols();
        Ok(Self {
            model,
            vocabulary: task.vocabulary,
            symbols,
            device,
        })
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
        let tokens: Vec<i32> = tokens.into_iter().map(i32::from).collect();
        let length = tokens.len();
        let tokens = TensorData::new(tokens.repeat(samples), [samples, length]);
        let prompt = Tensor::<2, Int>::from_data(tokens, &self.device);
        let (logits, state) = self.model.forward(prompt, Sequence::new());
        let [_, _, vocab] = logits.dims();
        let logits = logits.narrow(1, length - 1, 1).reshape([samples, vocab]);
        let rng = |sample: usize| {
            let mut rng = ChaCha8Rng::seed_from_u64(sampling.seed);
            rng.set_stream(sample as u64);
            rng
        };
        Ok(Samples {
            generator: self,
            state,
            logits,
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
    generator: &'a Generator,
    state: LmState,
    /// Those of the next symbols, `[samples, V]`.
    logits: Tensor<2>,
    /// One for each sample.
    rngs: Vec<ChaCha8Rng>,
    left: usize,
    sampling: Sampling,
}

impl<'a> Samples<'a> {
    /// Draws a token for each sample.
    fn draw(&mut self) -> Result<Vec<usize>, Error> {
        let [_, vocab] = self.logits.dims();
        let logits = riverrun::device::read(self.logits.clone())?;
        let logits: Vec<f32> = logits.iter().collect();
        let rows = logits.chunks_exact(vocab).zip(&mut self.rngs);
        rows.map(|(logits, rng)| draw(logits, &self.sampling, rng.random()))
            .collect()
    }
}

impl<'a> Iterator for Samples<'a> {
    type Item = Result<Vec<&'a [u8]>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let tokens = match self.draw() {
            Ok(tokens) => tokens,
            Err(error) => {
                self.left = 0;
                return Some(Err(error));
            }
        };
        let Generator {
            model,
            device,
            symbols,
            ..
        } = self.generator;
        if self.left > 0 {
            let data: Vec<i32> = tokens.iter().map(|&token| token as i32).collect();
            let samples = data.len();
            let data = TensorData::new(data, [samples]);
            let next = Tensor::<1, Int>::from_data(data, device);
            let (logits, state) = model.step(next, Some(self.state.clone()));
            (self.logits, self.state) = (logits, state);
        }
        Some(Ok(tokens
            .iter()
            .map(|&token| &symbols[token][..])
            .collect()))
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
    let mut order: Vec<usize> = (0..logits.len()).collect();
    // Equal logits keep their order, so the draw is the same everywhere.
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    if sampling.temperature == 0.0 {
        return Ok(order[0]);
    }
    order.truncate(sampling.top_k.unwrap_or(usize::MAX));
    let top = f64::from(logits[order[0]]);
    let weight = |&i: &usize| ((f64::from(logits[i]) - top) / sampling.temperature).exp();
    let total: f64 = order.iter().map(weight).sum();
    let mut left = uniform * total;
    for &index in &order {
        left -= weight(&index);
        if left < 0.0 {
            return Ok(index);
        }
    }
    // Rounding can leave a small remainder.
    Ok(*order.last().expect("a vocabulary has symbols"))
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
    fn logits_that_are_not_finite_are_refused() {
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for temperature in [0.0, 1.0] {
                let error = draw(&[0.0, value], &sampling(temperature, None), 0.5).unwrap_err();
                assert!(matches!(error, Error::Logits { symbol: 1, .. }), "{error}");
            }
        }
    }
}
