//! `riverrun generate`: text from a trained model, as it comes.

use std::io::{Write, stdout};

use riverrun_train::{Generator, RunDir, Sampling};

use crate::args::GenerateArgs;
use crate::failure::Failure;

/// Writes the prompt and what the model makes of it to standard output.
pub fn run(args: &GenerateArgs) -> Result<(), Failure> {
    let dir = RunDir::open(&args.run)?;
    let device = riverrun::device::parse(&args.device)?;
    let generator = Generator::open(&dir, &device)?;
    let sampling = Sampling {
        tokens: args.tokens,
        temperature: args.temperature,
        top_k: args.top_k,
        seed: args.seed,
    };
    let prompt = args.prompt.as_bytes();
    let stream = generator.stream(prompt, sampling)?;
    let mut out = stdout().lock();
    out.write_all(prompt)?;
    out.flush()?;
    for symbol in stream {
        out.write_all(symbol?)?;
        // Each symbol is shown when it is made; standard output waits for line ends by itself.
        out.flush()?;
    }
    out.write_all(b"\n")?;
    Ok(())
}
