//! Sampling text from a trained run.
//!
//! The prompt goes through the model as one sequence; after it the model takes one step for each
//! symbol, with the state carried. The state of a recurrent model or of Griffin does not grow with what was generated;
//! GPT-2's is a cache of keys and values up to its number of positions, after which it goes on from the last half of them.

mod carry;
mod rings;
mod samples;
mod saved;
mod steps;
mod uniforms;

use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use burn::module::Module;
use burn::tensor::{DType, Device, FloatDType, Tensor};
use riverrun::nn::quantized::{Bits, quantize};
use riverrun_kernels::draw::Rule;
use riverrun_models::weights::Published;
use riverrun_models::{AnyLanguageModel, AnyLmState};

use crate::run_dir::{checksums, load_module};
use crate::tasks::Vocabulary;
use crate::trainer::checkpoint::MODEL;
use crate::{Error, Precision, RunConfig, RunDir, TaskConfig, memory};
pub use samples::{Samples, Stream};
use steps::{Steps, read};
use uniforms::Uniforms;

/// How symbols are drawn.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// Symbols to generate.
    pub tokens: usize,
    /// Logits are divided by this; at 0 the most likely symbol is always taken.
    pub temperature: f64,
    /// Number of most likely symbols to draw from, and any as likely as the last of them; `None` for all.
    pub top_k: Option<usize>,
    /// Seed of the draws.
    pub seed: u64,
}

impl Sampling {
    fn rule(&self) -> Rule {
        Rule {
            temperature: self.temperature,
            top_k: self.top_k,
        }
    }
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
    /// Tokens after which a text ends.
    ends: Vec<usize>,
    /// The logits and the state that texts go on from.
    start: Option<(Tensor<2>, AnyLmState)>,
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

/// The format of a model's files, if it has 16 bits.
fn stored(model: &Published) -> Result<Option<Precision>, Error> {
    Ok(match model.dtype()? {
        Some(DType::BF16) => Some(Precision::Bf16),
        Some(DType::F16) => Some(Precision::F16),
        _ => None,
    })
}

/// Refuses a format that a device lacks.
fn supported(device: &Device, precision: Precision) -> Result<(), Error> {
    if riverrun::device::supports(device, precision.dtype().into()) {
        return Ok(());
    }
    let device = riverrun::device::name(device);
    Err(Error::Unsupported(format!("{device} has no {precision}")))
}

fn best_of(config: &RunConfig, dir: &RunDir, device: &Device) -> Result<AnyLanguageModel, Error> {
    let none = || Error::NoModel {
        dir: dir.path().into(),
        what: "model",
    };
    let folder = dir.best().or_else(|| dir.checkpoint()).ok_or_else(none)?;
    memory::check("the model", config.weight_bytes(), device)?;
    checksums::check(&folder)?;
    let (model, path) = (config.model.init(device), folder.join(MODEL));
    let (Some(lora), Some(weights)) = (&config.lora, &config.weights) else {
        return load_module(model, &path);
    };
    let weights = Published::open(weights)?.load(device, FloatDType::F32)?;
    Ok(load_module(lora.adapt(weights), &path)?.materialize())
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
        let generator = Self {
            model,
            positions: config.model.positions(),
            vocabulary: task.vocabulary,
            symbols,
            ends: Vec::new(),
            start: None,
            device,
            recorded: AtomicBool::new(false),
        };
        Ok(generator.ready())
    }

    /// A published model with the tokens of its folder, in a format; without one in that of its files if they have 16 bits and the
    /// device has it, else in [that of the device](Precision::of). With `bits`, weights are [of so many](Self::with_bits).
    ///
    /// # Errors
    /// No tokens in the folder, or more than the model has; a format or memory that the device lacks; `bits` on a device that is not
    /// the CPU; the errors of [`Published::load`].
    pub fn published(
        model: &Published,
        device: &Device,
        precision: Option<Precision>,
        bits: Option<Bits>,
    ) -> Result<Self, Error> {
        let device = device.clone().without_autodiff();
        let precision = match precision {
            Some(precision) => precision,
            None => stored(model)?
                .filter(|precision| supported(&device, *precision).is_ok())
                .unwrap_or_else(|| Precision::of(&device)),
        };
        supported(&device, precision)?;
        let vocabulary = Vocabulary::of_model(model.folder())?;
        let config = model.config();
        let [vocab, ..] = config.sizes();
        if vocabulary.len() > vocab {
            let (folder, tokens) = (model.folder().display(), vocabulary.len());
            return Err(Error::Unsupported(format!(
                "{folder}: the tokenizer has {tokens} tokens, the model {vocab}"
            )));
        }
        let numbers = u128::from(config.size()?.parameters);
        let bytes = DType::from(precision.dtype()).size() as u128;
        memory::check("the model", numbers * bytes, &device)?;
        let symbols = vocabulary.symbols()?;
        let generator = Self {
            model: model.load(&device, precision.dtype())?,
            positions: config.positions(),
            vocabulary,
            symbols,
            ends: model.ends().to_vec(),
            start: None,
            device,
            recorded: AtomicBool::new(false),
        };
        // Two kinds of model are read in `f32`.
        let model = precision.working_copy(&generator.model);
        let generator = Self { model, ..generator };
        match bits {
            Some(bits) => generator.with_bits(bits),
            None => Ok(generator.ready()),
        }
    }

    /// The model with its weights rounded to a format, in which it computes from here on: in 16 bits it takes half of the memory.
    /// Weights that [stay wide](riverrun::training::stays_wide) are as they are.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a format that the device lacks.
    pub fn with_precision(mut self, precision: Precision) -> Result<Self, Error> {
        supported(&self.device, precision)?;
        self.model = precision.working_copy(&self.model);
        Ok(self.ready())
    }

    /// The model with weights of 8 or 4 bits, on the CPU: see [`quantize`]. It computes in the format that it had.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a device that is not the CPU.
    pub fn with_bits(mut self, bits: Bits) -> Result<Self, Error> {
        self.model = quantize(self.model, bits)?;
        Ok(self)
    }

    /// With the weights where steps read them fastest.
    fn ready(mut self) -> Self {
        if riverrun::device::is_cpu(&self.device) {
            self.model = self.model.with_table_by_columns();
        }
        self
    }

    /// Reads a prompt and writes where the model is after it into a file, for [`with_state`](Self::with_state): so a long prompt is
    /// read once.
    ///
    /// # Errors
    /// A prompt without symbols; a symbol that the model does not know; a model with a bounded number of positions; a file that
    /// cannot be written.
    pub fn save_state(&self, prompt: &[u8], path: impl AsRef<Path>) -> Result<(), Error> {
        self.unbounded()?;
        let tokens = self.tokens(prompt)?;
        if tokens.is_empty() && self.start.is_none() {
            return Err(Error::Unsupported("there is no prompt to read".into()));
        }
        let (logits, state) = read(&self.model, &self.device, &[tokens], self.start.clone())?;
        saved::save(path.as_ref(), &self.model, state, logits)
    }

    /// From where the model was when a state was saved: prompts go on from there. In the format that it was saved in.
    ///
    /// # Errors
    /// A file that cannot be read, is damaged, or is the state of another model or in another format.
    pub fn with_state(mut self, path: impl AsRef<Path>) -> Result<Self, Error> {
        self.unbounded()?;
        // Any state of the model has the shapes.
        let like = read(&self.model, &self.device, &[vec![0]], None)?;
        let start = saved::load(path.as_ref(), &self.model, like, &self.device)?;
        self.start = Some(start);
        Ok(self)
    }

    /// Refuses a model that begins again from the tokens it has read.
    fn unbounded(&self) -> Result<(), Error> {
        match self.positions {
            None => Ok(()),
            Some(positions) => Err(Error::Unsupported(format!(
                "the state of a model with {positions} positions is not kept"
            ))),
        }
    }

    /// The tokens of a prompt.
    fn tokens(&self, prompt: &[u8]) -> Result<Vec<i32>, Error> {
        let tokens = self.vocabulary.encode(prompt)?;
        Ok(tokens.into_iter().map(|token| token as i32).collect())
    }

    /// From here on, the launches of a symbol's step are recorded on a GPU and run again by one call for each further symbol:
    /// the same text, and faster, for launching a step's kernels takes longer than computing them. The device draws the symbols too,
    /// up to 16 of them between two reads. Attention adds up in another order, so in 16 bits the text of a model with attention may
    /// become another one.
    ///
    /// Each call of [`stream`](Self::stream) or [`samples`](Self::samples) records after a few normal steps; on CUDA nothing
    /// else of the process may use the device meanwhile. The keys and values of attention are in rings of at most twice the steps so
    /// far: a longer text records again. If the device refuses, or for a RetNet, a warning says so once, and normal steps go on.
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
        let mut tokens = self.tokens(prompt)?;
        if tokens.is_empty() && self.start.is_none() {
            tokens = self.tokens(b"\n").unwrap_or_else(|_| vec![0]);
        }
        if let Some(positions) = self.positions {
            tokens.drain(..tokens.len().saturating_sub(positions));
        }
        let recent = vec![tokens; samples];
        // The last symbol is drawn from the step before it.
        let further = sampling.tokens.saturating_sub(1);
        let model = (&self.model, self.positions);
        let start = self.start.clone();
        let start = start
            .map(|start| saved::repeated(start, samples))
            .transpose()?;
        let device = (&self.device, &self.recorded);
        let drawing = (self.symbols.len(), sampling.rule());
        let steps = Steps::new(model, device, (recent, start), further, drawing)?;
        Ok(Samples {
            symbols: &self.symbols,
            ends: &self.ends,
            ended: vec![false; samples],
            steps,
            uniforms: Uniforms::new(sampling.seed, samples),
            ahead: VecDeque::new(),
            fault: None,
            left: sampling.tokens,
            sampling,
        })
    }
}

/// More samples at once than any use needs, so that a mistake does not ask for all memory.
const MOST_SAMPLES: usize = 1 << 16;
