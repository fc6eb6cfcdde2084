//! `riverrun generate`: text from a trained model, as it comes.

use std::io::{Write, stdout};

use riverrun_train::Sampling;

use crate::args::GenerateArgs;
use crate::failure::Failure;
use crate::generator::{open, record};

/// Writes the prompt and what the model makes of it to standard output.
pub fn run(args: &GenerateArgs) -> Result<(), Failure> {
    let device = riverrun::device::parse(&args.device)?;
    let files = (args.weights.as_deref(), args.run.as_deref());
    let mut generator = open(files, args.dtype, args.bits, &device)?;
    if let Some(file) = &args.state {
        generator = generator.with_state(file)?;
    }
    let mut unread = args.prompt.as_bytes();
    if let Some(file) = &args.save_state {
        generator.save_state(unread, file)?;
        generator = generator.with_state(file)?;
        unread = b"";
    }
    record(&mut generator, &device, args.graph, args.no_graph)?;
    let sampling = Sampling {
        tokens: args.tokens,
        temperature: args.temperature,
        top_k: args.top_k,
        seed: args.seed,
    };
    let prompt = args.prompt.as_bytes();
    let mut out = stdout().lock();
    if args.batch != 1 {
        let steps = generator.samples(unread, sampling, args.batch)?;
        let mut samples = vec![prompt.to_vec(); args.batch];
        for symbols in steps {
            for (sample, symbol) in samples.iter_mut().zip(symbols?) {
                sample.extend_from_slice(symbol);
            }
        }
        for (i, sample) in samples.iter().enumerate() {
            writeln!(out, "== sample {} ==", i + 1)?;
            out.write_all(sample)?;
            out.write_all(b"\n")?;
        }
        return Ok(());
    }
    let stream = generator.stream(unread, sampling)?;
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
