//! A character model of a text, trained and then sampled.
//!
//! ```sh
//! cargo run --release -p riverrun-models --example characters -- shakespeare.txt 2000
//! ```
//!
//! Without a text it learns a nursery rhyme in a few seconds.

use burn::module::Module;
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::{Device, Distribution, Int, Tensor, TensorData};
use riverrun::Sequence;
use riverrun::ops::cross_entropy;
use riverrun_models::{LanguageModel, LanguageModelConfig, RecurrentKind};

const RHYME: &str = "Row, row, row your boat,\nGently down the stream.\nMerrily, merrily, merrily, merrily,\nLife is but a dream.\n";

struct Corpus {
    symbols: Vec<char>,
    text: Vec<i32>,
}

impl Corpus {
    fn new(text: &str) -> Self {
        let mut symbols: Vec<char> = text.chars().collect();
        symbols.sort_unstable();
        symbols.dedup();
        let index = |c: char| symbols.binary_search(&c).expect("a symbol of the text") as i32;
        let text = text.chars().map(index).collect();
        Self { symbols, text }
    }

    /// `batch` pieces of the text from step to step, and the same one symbol later: `[B, T]` each.
    fn batch(
        &self,
        [batch, length]: [usize; 2],
        step: usize,
        device: &Device,
    ) -> [Tensor<2, Int>; 2] {
        let piece = |shift: usize| {
            let symbols = (0..batch).flat_map(|row| {
                // A large odd stride visits all places of the text.
                let start = (row + step * batch) * 7919;
                (0..length).map(move |n| start + n + shift)
            });
            let symbols = symbols.map(|n| self.text[n % self.text.len()]).collect();
            Tensor::from_data(TensorData::new(symbols, [batch, length]), device)
        };
        [piece(0), piece(1)]
    }

    fn read(&self, symbols: &[usize]) -> String {
        symbols.iter().map(|&symbol| self.symbols[symbol]).collect()
    }
}

/// Continues the text from one symbol; the likeliest next one each time, or one by its probability.
fn sample(
    model: &LanguageModel,
    first: usize,
    length: usize,
    greedy: bool,
    device: &Device,
) -> Vec<usize> {
    let (mut symbols, mut state) = (vec![first], None);
    while symbols.len() < length {
        let last = *symbols.last().expect("at least the first") as i32;
        let token = Tensor::<1, Int>::from_data(TensorData::new(vec![last], [1]), device);
        let (logits, next) = model.step(token, state);
        state = Some(next);
        // Adding Gumbel noise to the logits draws from their softmax.
        let logits = match greedy {
            true => logits,
            false => {
                let u = logits.random_like(Distribution::Uniform(1e-6, 1.0));
                logits - u.log().neg().log()
            }
        };
        let best = logits.argmax(1).into_data().iter::<i64>().next();
        symbols.push(best.expect("one symbol has the highest score") as usize);
    }
    symbols
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next();
    let steps = arguments.next().map_or(Ok(150), |steps| steps.parse())?;
    run(path, steps)
}

/// Trains for some steps on a text, or on the rhyme, and samples.
pub fn run(path: Option<String>, steps: usize) -> Result<(), Box<dyn std::error::Error>> {
    let text = match &path {
        Some(path) => std::fs::read_to_string(path)?,
        None => RHYME.to_string(),
    };
    let corpus = Corpus::new(&text);
    let device = Device::flex();
    device.seed(0);
    let differentiable = device.clone().autodiff();
    let config =
        LanguageModelConfig::new(corpus.symbols.len(), 64, 2).with_cell(RecurrentKind::MinGru);
    config.check()?;
    println!(
        "{} symbols, {} parameters",
        corpus.symbols.len(),
        config.size()?.parameters
    );

    let mut model = config.init(&differentiable);
    let mut optimizer = AdamWConfig::new().init();
    let mut last = f32::INFINITY;
    let sizes = [8, 64];
    for step in 1..=steps {
        let [inputs, targets] = corpus.batch(sizes, step, &differentiable);
        let (logits, _) = model.forward(inputs, Sequence::new());
        let rows = sizes[0] * sizes[1];
        let logits: Tensor<2> = logits.reshape([rows, corpus.symbols.len()]);
        let loss = cross_entropy(logits, targets.reshape([rows])).unwrap();
        if step % 50 == 0 {
            last = loss.clone().into_scalar();
            println!("step {step}: {last:.3} nats a character");
        }
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(5e-3, model, gradients);
    }

    let model = model.valid();
    let first = corpus.text[0] as usize;
    let written = corpus.read(&sample(
        &model,
        first,
        400.min(text.chars().count()),
        path.is_none(),
        &device,
    ));
    println!("{written}");
    if path.is_none() {
        assert!(last < 1.0, "{last}");
    }
    Ok(())
}
