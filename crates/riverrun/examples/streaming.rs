//! A GRU from PyTorch's weights, run as a stream, sample by sample, and its weights written back for PyTorch.
//!
//! ```sh
//! cargo run --release -p riverrun --example streaming -- encoder.pt 'encoder.' 4 5
//! ```
//!
//! with a state dict of `nn.GRU(4, 5)` under `encoder.`; without arguments it reads a file of its tests.

use burn::tensor::{Device, Tensor, TensorData};
use riverrun::nn::{GruConfig, Recurrent};
use riverrun::weights::{from_pytorch, to_pytorch};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.as_slice() {
        [path, prefix, d_input, d_hidden] => run(path, prefix, d_input.parse()?, d_hidden.parse()?),
        _ => run(KNOWN, "", 4, 5),
    }
}

/// A state dict of `nn.GRU(4, 5)`.
pub const KNOWN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/cells/gru-1.pt");

/// Streams samples through a GRU with the weights of a file, and writes them to another.
pub fn run(
    path: &str,
    prefix: &str,
    d_input: usize,
    d_hidden: usize,
) -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::flex();
    let gru = from_pytorch(
        GruConfig::new(d_input, d_hidden).init(&device),
        path,
        prefix,
    )?;

    // Two streams at once; the second starts again after the third sample.
    let (batch, steps) = (2, 6);
    let samples: Vec<f32> = (0..steps * batch * d_input)
        .map(|n| (n as f32).sin())
        .collect();
    let mut stream = gru.stream(batch)?;
    let mut streamed = Vec::new();
    for (step, x) in samples.chunks(batch * d_input).enumerate() {
        if step == 3 {
            stream.restart(1);
        }
        let y = stream.step(x)?;
        println!("sample {step}: {y:.3?}");
        streamed.extend_from_slice(&y[..d_hidden]);
    }

    // The first stream is, bit for bit, the layer over the whole sequence.
    let first: Vec<f32> = samples
        .chunks(batch * d_input)
        .flat_map(|x| &x[..d_input])
        .copied()
        .collect();
    let x = Tensor::<3>::from_data(TensorData::new(first, [1, steps, d_input]), &device);
    let (whole, _) = gru.forward(x, None);
    assert_eq!(whole.into_data().try_to_vec::<f32>()?, streamed);

    // `safetensors.torch.load_file` opens this in Python.
    let out = std::env::temp_dir().join(format!("gru-{}.safetensors", std::process::id()));
    to_pytorch(&gru, &out, "encoder.")?;
    let again = from_pytorch(
        GruConfig::new(d_input, d_hidden).init(&device),
        &out,
        "encoder.",
    )?;
    assert_eq!(
        riverrun::weights::checksum(&again),
        riverrun::weights::checksum(&gru)
    );
    println!("written to {}", out.display());
    std::fs::remove_file(out)?;
    Ok(())
}
