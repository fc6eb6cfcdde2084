//! `riverrun export`: a trained language model as an ONNX model.

use std::io::{Write, stdout};

use burn::module::Module;
use riverrun_onnx::{OPSET, ToOnnx};
use riverrun_train::{RunDir, best_model};

use crate::args::ExportArgs;
use crate::failure::Failure;

/// Writes the run's best model, and says what it takes and gives.
pub fn run(args: &ExportArgs) -> Result<(), Failure> {
    let dir = RunDir::open(&args.run)?;
    let device = riverrun::device::parse("cpu")?;
    let model = best_model(&dir, &device)?;
    let path = args
        .out
        .clone()
        .unwrap_or_else(|| dir.path().join("model.onnx"));
    model.to_onnx()?.save(&path)?;
    writeln!(
        stdout(),
        "{}: {} parameters, operators of version {OPSET}\n\
         in      tokens [batch, time], and for each block its state h0_N (c0_N too of an LSTM), zeros at first\n\
         out     logits [batch, time, vocabulary], and the states after the last step\n\
         tokens  numbered as task.vocabulary in {}",
        path.display(),
        model.num_params(),
        dir.path().join("config.json").display()
    )?;
    Ok(())
}
