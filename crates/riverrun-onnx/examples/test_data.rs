//! Writes a model of each kind with inputs and riverrun's own outputs, in the layout of ONNX's test data:
//! `FOLDER/NAME/model.onnx`, and `input_N.pb`, `output_N.pb` in `test_data_set_0`. `check.py` runs them in ONNX Runtime.
//!
//! `cargo run -p riverrun-onnx --example test_data -- FOLDER`

use std::fs;
use std::path::Path;

use burn::tensor::{Device, Distribution, Int, Tensor, TensorData};
use riverrun::nn::{
    GatedRnnConfig, GruConfig, LinearRnnConfig, LstmConfig, LstmState, MinGruConfig, MinLstmConfig,
    Recurrent, RgLruConfig, RnnConfig,
};
use riverrun::ops::{Activation, Candidate, Gate, ResetGate};
use riverrun::{Error, Sequence};
use riverrun_models::{LanguageModelConfig, LmState, RecurrentKind, RecurrentState, VectorState};
use riverrun_onnx::{Onnx, ToOnnx, float_tensor, integer_tensor};

const BATCH: usize = 3;
const STEPS: usize = 11;
const INPUTS: usize = 5;
const HIDDEN: usize = 8;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args().nth(1).ok_or("expected a folder")?;
    let device = Device::flex();
    device.seed(7);
    let out = Writer {
        folder: Path::new(&folder),
        device: &device,
    };
    cells(&out)?;
    scans(&out)?;
    models(&out)?;
    Ok(())
}

struct Writer<'a> {
    folder: &'a Path,
    device: &'a Device,
}

type Files = Vec<Vec<u8>>;

impl Writer<'_> {
    fn random<const D: usize>(&self, sizes: [usize; D]) -> Tensor<D> {
        Tensor::random(sizes, Distribution::Uniform(-1.0, 1.0), self.device)
    }

    fn write(
        &self,
        name: &str,
        model: &Onnx,
        inputs: Files,
        outputs: Files,
    ) -> Result<(), Box<dyn std::error::Error>> {
        let folder = self.folder.join(name);
        let data = folder.join("test_data_set_0");
        fs::create_dir_all(&data)?;
        model.save(folder.join("model.onnx"))?;
        for (kind, files) in [("input", inputs), ("output", outputs)] {
            for (index, bytes) in files.iter().enumerate() {
                fs::write(data.join(format!("{kind}_{index}.pb")), bytes)?;
            }
        }
        Ok(())
    }

    /// A layer whose state is one tensor.
    fn layer<L, const D: usize>(
        &self,
        name: &str,
        layer: &L,
        h0: Tensor<D>,
    ) -> Result<(), Box<dyn std::error::Error>>
    where
        L: Recurrent<State = Tensor<D>> + ToOnnx,
    {
        let x = self.random([BATCH, STEPS, INPUTS]);
        let (y, last) = layer.run(x.clone(), Sequence::new().with_state(h0.clone()));
        let inputs = vec![file("x", x)?, file("h0", h0)?];
        self.write(
            name,
            &layer.to_onnx()?,
            inputs,
            vec![file("y", y)?, file("h_n", last)?],
        )
    }
}

fn file<const D: usize>(name: &str, tensor: Tensor<D>) -> Result<Vec<u8>, Error> {
    let sizes = tensor.dims();
    let numbers: Vec<f32> = riverrun::device::read(tensor)?.iter::<f32>().collect();
    Ok(float_tensor(name, &sizes, &numbers))
}

fn cells(out: &Writer) -> Result<(), Box<dyn std::error::Error>> {
    for (name, layers, bidirectional, heads) in [
        ("", 1, false, 1),
        ("_2_layers", 2, false, 1),
        ("_bidirectional", 2, true, 1),
        ("_heads", 1, false, 2),
    ] {
        let states = [layers * (1 + usize::from(bidirectional)), BATCH, HIDDEN];
        for (reset, kind) in [
            (ResetGate::After, "gru"),
            (ResetGate::Before, "gru_reset_before"),
        ] {
            let gru = GruConfig::new(INPUTS, HIDDEN)
                .with_layers(layers)
                .with_bidirectional(bidirectional)
                .with_heads(heads)
                .with_reset_gate(reset)
                .init(out.device);
            out.layer(&format!("{kind}{name}"), &gru, out.random(states))?;
        }
        for (activation, kind) in [(Activation::Tanh, "rnn"), (Activation::Relu, "rnn_relu")] {
            let rnn = RnnConfig::new(INPUTS, HIDDEN)
                .with_layers(layers)
                .with_bidirectional(bidirectional)
                .with_heads(heads)
                .with_activation(activation)
                .init(out.device);
            out.layer(&format!("{kind}{name}"), &rnn, out.random(states))?;
        }
        let lstm = LstmConfig::new(INPUTS, HIDDEN)
            .with_layers(layers)
            .with_bidirectional(bidirectional)
            .with_heads(heads)
            .with_bias(layers == 1)
            .init(out.device);
        let x = out.random([BATCH, STEPS, INPUTS]);
        let (h0, c0) = (out.random(states), out.random(states));
        let state = LstmState::new(h0.clone(), c0.clone());
        let (y, last) = lstm.run(x.clone(), Sequence::new().with_state(state));
        out.write(
            &format!("lstm{name}"),
            &lstm.to_onnx()?,
            vec![file("x", x)?, file("h0", h0)?, file("c0", c0)?],
            vec![file("y", y)?, file("h_n", last.h)?, file("c_n", last.c)?],
        )?;
    }
    Ok(())
}

fn scans(out: &Writer) -> Result<(), Box<dyn std::error::Error>> {
    let h0 = || out.random([BATCH, HIDDEN]);
    for gate in Gate::all() {
        let layer = GatedRnnConfig::new(INPUTS, HIDDEN, gate).init(out.device);
        out.layer(&format!("gated_{}", gate.name()), &layer, h0())?;
    }
    for reverse in [false, true] {
        let name = |kind: &str| format!("{kind}{}", if reverse { "_reverse" } else { "" });
        let linear = LinearRnnConfig::new(INPUTS, HIDDEN).with_reverse(reverse);
        out.layer(&name("linear"), &linear.init(out.device), h0())?;
        let min_gru = MinGruConfig::new(INPUTS, HIDDEN)
            .with_candidate(Candidate::G)
            .with_reverse(reverse);
        out.layer(&name("min_gru"), &min_gru.init(out.device), h0())?;
        let min_lstm = MinLstmConfig::new(INPUTS, HIDDEN).with_reverse(reverse);
        out.layer(&name("min_lstm"), &min_lstm.init(out.device), h0())?;
        for blocks in [1, 2] {
            let rg_lru = RgLruConfig::new(INPUTS, HIDDEN)
                .with_blocks(blocks)
                .with_reverse(reverse)
                .init(out.device);
            out.layer(&format!("{}_{blocks}", name("rg_lru")), &rg_lru, h0())?;
        }
    }
    Ok(())
}

fn models(out: &Writer) -> Result<(), Box<dyn std::error::Error>> {
    let (vocab, width) = (13, 8);
    for cell in RecurrentKind::ALL {
        for (expansion, tied) in [(1, true), (2, false)] {
            let model = LanguageModelConfig::new(vocab, width, 2)
                .with_cell(cell)
                .with_expansion(expansion)
                .with_tied(Some(tied))
                .init(out.device);
            let tokens: Vec<i64> = (0..BATCH * STEPS).map(|i| (i * i % vocab) as i64).collect();
            let text = TensorData::new(tokens.clone(), [BATCH, STEPS]);
            let text = Tensor::<2, Int>::from_data(text, out.device);
            let state = || out.random([BATCH, width * expansion]);
            let cell_state = cell == RecurrentKind::Lstm;
            let starts: Vec<_> = (0..2).map(|_| (state(), cell_state.then(state))).collect();
            let mut inputs = vec![integer_tensor("tokens", &[BATCH, STEPS], &tokens)];
            for (h, c) in &starts {
                inputs.push(file("h0", h.clone())?);
                inputs.extend(c.clone().map(|c| file("c0", c)).transpose()?);
            }
            let starts = starts
                .into_iter()
                .map(|(h, c)| RecurrentState::vector(h, c));
            let state = LmState::new(starts.collect());
            let (logits, last) = model.try_forward(text, Sequence::new().with_state(state))?;
            let mut outputs = vec![file("logits", logits)?];
            for state in last.blocks {
                let RecurrentState::Vector(VectorState { h, c, .. }) = state else {
                    return Err("a scan or a cell has vectors".into());
                };
                outputs.push(file("h_n", h)?);
                outputs.extend(c.map(|c| file("c_n", c)).transpose()?);
            }
            out.write(
                &format!("model_{cell}_{expansion}"),
                &model.to_onnx()?,
                inputs,
                outputs,
            )?;
        }
    }
    Ok(())
}
