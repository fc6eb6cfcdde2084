//! Pronounces English words with the encoder and decoder of `g2p-en`: two GRUs of 256 units, from the weights that the Python
//! package ships.
//!
//! ```sh
//! crates/riverrun/examples/g2p/fetch.sh
//! cargo run --release -p riverrun --features flex --example g2p -- g2p_en/checkpoint20.npz xylophonist
//! ```
//!
//! Without words it pronounces those whose phonemes are known and compares.

mod npz;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use burn::module::Param;
use burn::tensor::{Device, Int, Tensor, TensorData};
use riverrun::nn::{Gru, GruConfig, Recurrent};

/// Units of both GRUs and features of both embeddings.
const WIDTH: usize = 256;

/// More phonemes than this end a word that does not end itself.
const LONGEST: usize = 20;

const CONSONANTS: [&str; 24] = [
    "B", "CH", "D", "DH", "F", "G", "HH", "JH", "K", "L", "M", "N", "NG", "P", "R", "S", "SH", "T",
    "TH", "V", "W", "Y", "Z", "ZH",
];

const VOWELS: [&str; 15] = [
    "AA", "AE", "AH", "AO", "AW", "AY", "EH", "ER", "EY", "IH", "IY", "OW", "OY", "UH", "UW",
];

/// Words and what the package's own formulas say to them, computed by PyTorch from the same weights.
const KNOWN: [(&str, &str); 5] = [
    ("xylophonist", "Z AY1 L AH0 F AH0 N AH0 S T S"),
    ("recurrent", "R IH0 K ER1 AH0 N T"),
    ("rivers", "R IH1 V ER0 Z"),
    ("serendipity", "S EH2 R AH0 N D IH1 P IH0 T IY0"),
    ("backpropagation", "B AE2 K P R AH0 G P EY1 SH AH0 N"),
];

/// The output's symbols: four marks, then the phonemes by the alphabet, each vowel bare (`UW` alone) and with its stress.
fn phonemes() -> Vec<String> {
    let stressed = VOWELS
        .iter()
        .flat_map(|vowel| (0..3).map(move |stress| format!("{vowel}{stress}")));
    let mut symbols: Vec<String> = CONSONANTS.iter().map(|c| (*c).to_string()).collect();
    symbols.extend(stressed);
    symbols.push("UW".into());
    symbols.sort();
    let marks = ["<pad>", "<unk>", "<s>", "</s>"].map(String::from);
    marks.into_iter().chain(symbols).collect()
}

/// The input's symbols: `<pad>`, `<unk>`, `</s>`, then the letters.
fn letter(c: char) -> i32 {
    match c {
        'a'..='z' => c as i32 - 'a' as i32 + 3,
        _ => 1,
    }
}

struct G2p {
    letters: Tensor<2>,
    sounds: Tensor<2>,
    encoder: Gru,
    decoder: Gru,
    /// `[WIDTH, 74]`.
    out: Tensor<2>,
    out_bias: Tensor<1>,
    symbols: Vec<String>,
    device: Device,
}

impl G2p {
    fn open(path: &Path, device: &Device) -> Result<Self, String> {
        let arrays = npz::read(path)?;
        let matrix = |name: &str| tensor::<2>(&arrays, name, device);
        let vector = |name: &str| tensor::<1>(&arrays, name, device);
        let gru = |part: &str| -> Result<Gru, String> {
            let mut gru = GruConfig::new(WIDTH, WIDTH).init(device);
            let layer = &mut gru.stack.layers[0];
            layer.weight_ih = Param::from_tensor(matrix(&format!("{part}_w_ih"))?);
            layer.weight_hh = Param::from_tensor(matrix(&format!("{part}_w_hh"))?);
            layer.bias_ih = Some(Param::from_tensor(vector(&format!("{part}_b_ih"))?));
            layer.bias_hh = Some(Param::from_tensor(vector(&format!("{part}_b_hh"))?));
            Ok(gru)
        };
        Ok(Self {
            letters: matrix("enc_emb")?,
            sounds: matrix("dec_emb")?,
            encoder: gru("enc")?,
            decoder: gru("dec")?,
            out: matrix("fc_w")?.transpose(),
            out_bias: vector("fc_b")?,
            symbols: phonemes(),
            device: device.clone(),
        })
    }

    /// The rows of a table.
    fn embed(&self, table: &Tensor<2>, symbols: Vec<i32>) -> Tensor<2> {
        let count = symbols.len();
        let symbols = TensorData::new(symbols, [count]);
        let symbols = Tensor::<1, Int>::from_data(symbols, &self.device);
        table.clone().select(0, symbols)
    }

    fn pronounce(&self, word: &str) -> String {
        let spelt = word.to_lowercase().chars().map(letter).chain([2]).collect();
        let x = self.embed(&self.letters, spelt).unsqueeze_dim(0);
        let (_, mut state) = self.encoder.forward(x, None);
        let (mut symbol, mut said) = (2, Vec::new());
        while said.len() < LONGEST {
            let x = self.embed(&self.sounds, vec![symbol]);
            let (y, next) = self.decoder.step(x, Some(state));
            state = next;
            let scores = y.matmul(self.out.clone()) + self.out_bias.clone().unsqueeze_dim(0);
            let best = scores.argmax(1).into_data().iter::<i32>().next();
            symbol = best.expect("one symbol has the highest score");
            if symbol == 3 {
                break;
            }
            said.push(self.symbols[symbol as usize].as_str());
        }
        said.join(" ")
    }
}

fn tensor<const D: usize>(
    arrays: &BTreeMap<String, npz::Array>,
    name: &str,
    device: &Device,
) -> Result<Tensor<D>, String> {
    let array = arrays.get(name).ok_or(format!("there is no `{name}`"))?;
    if array.shape.len() != D {
        return Err(format!("`{name}` has shape {:?}", array.shape));
    }
    let data = TensorData::new(array.values.clone(), array.shape.clone());
    Ok(Tensor::from_data(data, device))
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let path = arguments
        .next()
        .unwrap_or_else(|| "g2p_en/checkpoint20.npz".into());
    let words: Vec<String> = arguments.collect();
    if !Path::new(&path).exists() {
        println!("skipped: {path} is not here; crates/riverrun/examples/g2p/fetch.sh brings it");
        return ExitCode::SUCCESS;
    }
    let model = match G2p::open(Path::new(&path), &Device::flex()) {
        Ok(model) => model,
        Err(error) => {
            eprintln!("{path}: {error}");
            return ExitCode::FAILURE;
        }
    };
    for word in &words {
        println!("{word}: {}", model.pronounce(word));
    }
    if words.is_empty() {
        for (word, expected) in KNOWN {
            let said = model.pronounce(word);
            println!("{word}: {said}");
            if said != expected {
                eprintln!("{word}: expected {expected}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}
