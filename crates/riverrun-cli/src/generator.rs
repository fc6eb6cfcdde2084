//! The model that a text is made by.

use std::path::Path;

use burn::tensor::Device;
use riverrun::nn::quantized::Bits;
use riverrun_models::weights::Published;
use riverrun_train::{Generator, Precision, RunDir};

use crate::failure::Failure;

/// The model of published weights, or of a run.
pub fn open(
    files: (Option<&Path>, Option<&Path>),
    dtype: Option<Precision>,
    bits: Option<Bits>,
    device: &Device,
) -> Result<Generator, Failure> {
    match files {
        (Some(folder), _) => {
            let published = Published::open(folder)?;
            Ok(Generator::published(&published, device, dtype, bits)?)
        }
        (None, Some(run)) => {
            let generator = Generator::open(&RunDir::open(run)?, device)?;
            let generator = generator.with_precision(dtype.unwrap_or_default())?;
            Ok(match bits {
                Some(bits) => generator.with_bits(bits)?,
                None => generator,
            })
        }
        (None, None) => Err(Failure::Bug("neither a run nor weights".into())),
    }
}

/// Records steps where that is asked for, or on CUDA unless it is not to be.
pub fn record(
    generator: &mut Generator,
    device: &Device,
    graph: bool,
    no_graph: bool,
) -> Result<(), Failure> {
    let cuda = riverrun::device::name(device).starts_with("cuda");
    if graph || (cuda && !no_graph) {
        generator.record_steps()?;
    }
    Ok(())
}

/// The bits of a weight.
pub fn bits(text: &str) -> Result<Bits, String> {
    let found = Bits::ALL
        .into_iter()
        .find(|bits| bits.count().to_string() == text);
    found.ok_or_else(|| "it is 4 or 8".into())
}
