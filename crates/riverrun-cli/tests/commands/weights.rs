//! Published weights: text from them, training from them, refusals.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use crate::Scratch;

const WIDTH: usize = 16;
/// The end of a text, all bytes, and one more token.
const TOKENS: usize = 258;

/// A small RWKV-7 of pseudo-random weights with its tokens, as its authors publish them.
fn model(folder: &Path) {
    changed(folder, |_, _, number| number);
}

/// The same with each number, of a tensor's name and by its index, put through a function.
fn changed(folder: &Path, change: impl Fn(&str, usize, f32) -> f32) {
    let mut shapes: Vec<(String, Vec<usize>)> = vec![
        ("emb.weight".into(), vec![TOKENS, WIDTH]),
        ("head.weight".into(), vec![TOKENS, WIDTH]),
    ];
    let mut norm = |name: &str| {
        for part in ["weight", "bias"] {
            shapes.push((format!("{name}.{part}"), vec![WIDTH]));
        }
    };
    norm("blocks.0.ln0");
    norm("ln_out");
    for n in 0..2 {
        for part in ["ln1", "ln2", "att.ln_x"] {
            norm(&format!("blocks.{n}.{part}"));
        }
    }
    for n in 0..2 {
        let mut add = |part: &str, shape: &[usize]| {
            shapes.push((format!("blocks.{n}.{part}"), shape.to_vec()))
        };
        for part in [
            "x_r", "x_w", "x_k", "x_v", "x_a", "x_g", "k_k", "k_a", "w0", "a0", "v0",
        ] {
            if part != "v0" || n > 0 {
                add(&format!("att.{part}"), &[1, 1, WIDTH]);
            }
        }
        for part in ["w", "a", "g", "v"] {
            if part != "v" || n > 0 {
                add(&format!("att.{part}1"), &[WIDTH, 4]);
                add(&format!("att.{part}2"), &[4, WIDTH]);
            }
        }
        for part in ["receptance", "key", "value", "output"] {
            add(&format!("att.{part}.weight"), &[WIDTH, WIDTH]);
        }
        add("att.r_k", &[2, WIDTH / 2]);
        add("ffn.x_k", &[1, 1, WIDTH]);
        add("ffn.key.weight", &[4 * WIDTH, WIDTH]);
        add("ffn.value.weight", &[WIDTH, 4 * WIDTH]);
    }
    let (mut header, mut data, mut state) = (String::new(), Vec::new(), 1u32);
    for (name, shape) in &shapes {
        let first = data.len();
        for n in 0..shape.iter().product::<usize>() {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let number = (state >> 8) as f32 / (1 << 23) as f32 - 1.0;
            data.extend(change(name, n, 0.5 * number).to_le_bytes());
        }
        let comma = if header.is_empty() { '{' } else { ',' };
        write!(
            header,
            r#"{comma}"{name}":{{"dtype":"F32","shape":{shape:?},"data_offsets":[{first},{}]}}"#,
            data.len()
        )
        .unwrap();
    }
    header.push('}');
    let size = (header.len() as u64).to_le_bytes();
    fs::create_dir_all(folder).unwrap();
    let file = [&size[..], header.as_bytes(), &data].concat();
    fs::write(folder.join("rwkv7.safetensors"), file).unwrap();
    let bytes = (0..=255u8).map(|byte| format!("{} b'\\x{byte:02x}' 1\n", u32::from(byte) + 1));
    let tokens: String = bytes.chain(["257 ' the' 4\n".into()]).collect();
    fs::write(folder.join("rwkv_vocab_v20230424.txt"), tokens).unwrap();
}

#[test]
fn published_weights_generate_and_go_on_training() {
    let scratch = Scratch::new("weights");
    model(&scratch.0.join("rwkv"));
    let generate = [
        "generate",
        "--weights",
        "rwkv",
        "--device",
        "cpu",
        "--prompt",
        "in the",
    ];
    let text = |more: &[&str]| {
        let words = [
            &generate[..],
            &["--tokens", "20", "--temperature", "0"],
            more,
        ]
        .concat();
        scratch.run(&words).stdout
    };
    let first = text(&[]);
    assert!(
        first.starts_with(b"in the") && first.len() > 20,
        "{first:?}"
    );
    assert_eq!(text(&[]), first);
    assert!(text(&["--dtype", "bf16"]).starts_with(b"in the"));
    // No weight of so small a model is large enough for fewer bits.
    assert_eq!(text(&["--bits", "8"]), first);
    // The prompt in two parts, the first of which is read once.
    let words = [
        "generate",
        "--weights",
        "rwkv",
        "--device",
        "cpu",
        "--temperature",
        "0",
        "--tokens",
        "20",
    ];
    let part = |more: &[&str]| scratch.run(&[&words[..], more].concat()).stdout;
    part(&["--prompt", "in", "--save-state", "state"]);
    let rest = part(&["--prompt", " the", "--state", "state"]);
    assert_eq!(rest, first[2..]);
    let both = part(&["--prompt", " the", "--state", "state", "--batch", "2"]);
    assert!(both.starts_with(b"== sample 1 ==\n the"), "{both:?}");
    let lines = "the quick brown fox jumps over the lazy dog\n".repeat(40);
    fs::write(scratch.0.join("text.txt"), lines).unwrap();
    let small = ["--context", "16", "--batch", "2", "--device", "cpu"];
    let plan = scratch.done(&[&["plan", "text.txt", "--weights", "rwkv"], &small[..]].concat());
    assert!(plan.contains("parameters   15952"), "{plan}");
    let train = [
        "train",
        "text.txt",
        "--weights",
        "rwkv",
        "--out",
        "run",
        "--steps",
        "4",
        "--lr",
        "1e-3",
    ];
    scratch.done(&[&train[..], &small].concat());
    let config = fs::read_to_string(scratch.0.join("run/config.json")).unwrap();
    let folder = scratch.0.join("rwkv").canonicalize().unwrap();
    let weights = format!("\"weights\": {:?}", folder.display().to_string());
    assert!(config.contains(&weights), "{config}");
    // The run has the model; the weights that it began with may be gone.
    fs::remove_file(scratch.0.join("rwkv/rwkv7.safetensors")).unwrap();
    scratch.done(&[
        "train", "--resume", "--out", "run", "--steps", "6", "--device", "cpu",
    ]);
    let text = scratch.run(&[
        "generate", "run", "--device", "cpu", "--tokens", "5", "--prompt", "the",
    ]);
    assert!(
        text.status.success() && text.stdout.starts_with(b"the"),
        "{text:?}"
    );
}

/// A run of a text from published weights with LoRA: its steps, its files, what it refuses.
#[test]
fn low_rank_factors_learn_beside_published_weights() {
    let scratch = Scratch::new("lora");
    model(&scratch.0.join("rwkv"));
    let lines = "the quick brown fox jumps over the lazy dog\n".repeat(40);
    fs::write(scratch.0.join("text.txt"), lines).unwrap();
    let small = ["--context", "16", "--batch", "2", "--device", "cpu"];
    let lora = [
        "text.txt",
        "--weights",
        "rwkv",
        "--lora",
        "2",
        "--lora-alpha",
        "4",
    ];
    let plan = scratch.done(&[&["plan"], &lora[..], &small].concat());
    // In each of two blocks 2 · (16 + 16) for four matrices and 2 · (16 + 64) for two; and 2 · (16 + 4) for 14 of the decays,
    // rates, gates and values.
    for line in ["parameters   17664", "of them      1712 learn", "sums"] {
        assert!(plan.contains(line), "{plan}");
    }
    let train = |out: &str, steps: &str| {
        let more = ["--out", out, "--steps", steps, "--eval-every", "4"];
        let rate = ["--lr", "1e-2", "--schedule", "constant", "--warmup", "1"];
        scratch.done(&[&["train"], &lora[..], &small, &more, &rate].concat())
    };
    assert!(train("whole", "8").contains("LoRA of rank 2"));
    train("parts", "4");
    let words = [
        "train", "--resume", "--out", "parts", "--steps", "8", "--device", "cpu",
    ];
    scratch.done(&words);
    let bytes = |file: &str| fs::read(scratch.0.join(file)).unwrap();
    let model_file = bytes("whole/checkpoint/model.bpk");
    assert!(model_file.len() < 4 * 1712 * 3, "{}", model_file.len());
    let text = |out: &str| {
        let words = [
            "generate", out, "--device", "cpu", "--tokens", "9", "--prompt", "the",
        ];
        scratch.run(&words).stdout
    };
    assert!(text("whole").starts_with(b"the"));
    assert_eq!(text("whole"), text("parts"));
    let loss = |out: &str| {
        let text = fs::read_to_string(scratch.0.join(out).join("metrics.jsonl")).unwrap();
        let last = text.lines().last().unwrap().to_owned();
        let of = |name: &str| last.split(name).nth(1).unwrap().split(',').next().unwrap();
        of("\"loss\":").to_owned()
    };
    assert_eq!(loss("whole"), loss("parts"));
    let with = |option: &[&'static str]| [&["train"], &lora[..], &small, option].concat();
    scratch.refused(&with(&["--average", "0.9"]), "average");
    scratch.refused(&with(&["--hybrid", "balanced"]), "hybrid");
    // The factors are nothing without the weights.
    fs::rename(scratch.0.join("rwkv"), scratch.0.join("elsewhere")).unwrap();
    scratch.refused(&["generate", "whole", "--device", "cpu"], "rwkv");
    scratch.refused(&words, "rwkv");
}

#[test]
fn a_text_ends_at_the_end_of_a_document() {
    let scratch = Scratch::new("end");
    // The logits are the sums of the head's rows: that of the end is the highest.
    changed(&scratch.0.join("rwkv"), |name, n, number| match name {
        "ln_out.weight" => 0.0,
        "ln_out.bias" => 1.0,
        "head.weight" if n < WIDTH => 1.0,
        _ => number,
    });
    let words = [
        "generate",
        "--weights",
        "rwkv",
        "--device",
        "cpu",
        "--prompt",
        "done",
        "--temperature",
        "0",
    ];
    assert_eq!(scratch.done(&words), "done\n");
    let both = scratch.done(&[&words[..], &["--batch", "2"]].concat());
    assert_eq!(both, "== sample 1 ==\ndone\n== sample 2 ==\ndone\n");
}

#[test]
fn weights_that_cannot_be_used_are_refused_in_one_line() {
    let scratch = Scratch::new("no-weights");
    let refused = |words: &[&str], message: &str| {
        let words = [words, &["--device", "cpu"]].concat();
        scratch.refused(&words, message);
    };
    refused(&["generate", "--weights", "nowhere"], "nowhere");
    model(&scratch.0.join("rwkv"));
    scratch.run(&[
        "generate",
        "--weights",
        "rwkv",
        "--device",
        "cpu",
        "--prompt",
        "a",
        "--save-state",
        "state",
    ]);
    let state = fs::read(scratch.0.join("state")).unwrap();
    refused(
        &[
            "generate",
            "--weights",
            "rwkv",
            "--state",
            "state",
            "--dtype",
            "bf16",
        ],
        "or in another format",
    );
    fs::write(scratch.0.join("state"), &state[..state.len() / 2]).unwrap();
    refused(
        &["generate", "--weights", "rwkv", "--state", "state"],
        "state",
    );
    let tokens = scratch.0.join("rwkv/rwkv_vocab_v20230424.txt");
    let more = fs::read_to_string(&tokens).unwrap() + "258 ' a' 2\n";
    fs::write(&tokens, more).unwrap();
    refused(
        &["generate", "--weights", "rwkv"],
        "the tokenizer has 259 tokens, the model 258",
    );
    fs::write(&tokens, "1 'a' 2\n").unwrap();
    refused(
        &["generate", "--weights", "rwkv"],
        "line 1: expected 2 bytes",
    );
    fs::remove_file(&tokens).unwrap();
    refused(
        &["generate", "--weights", "rwkv"],
        "expected a tokenizer.json",
    );
    let file = scratch.0.join("rwkv/rwkv7.safetensors");
    let whole = fs::read(&file).unwrap();
    fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    refused(&["generate", "--weights", "rwkv"], "rwkv7.safetensors");
    fs::write(scratch.0.join("text.txt"), "words\n".repeat(100)).unwrap();
    refused(
        &["train", "text.txt", "--weights", "rwkv"],
        "rwkv7.safetensors",
    );
    fs::write(
        scratch.0.join("rwkv/config.json"),
        r#"{"model_type": "llama"}"#,
    )
    .unwrap();
    refused(
        &["train", "text.txt", "--weights", "rwkv"],
        "`model_type` llama",
    );
}

#[test]
fn weights_of_fewer_bits_are_measured_and_generate() {
    let scratch = Scratch::new("bits");
    let lines = "the quick brown fox jumps over the lazy dog\n".repeat(40);
    fs::write(scratch.0.join("text.txt"), lines).unwrap();
    scratch.done(&[
        "train",
        "text.txt",
        "--width",
        "128",
        "--layers",
        "1",
        "--context",
        "16",
        "--batch",
        "2",
        "--steps",
        "4",
        "--out",
        "run",
        "--device",
        "cpu",
    ]);
    scratch.done(&["bench", "bits", "run", "--device", "cpu", "--json", "bits"]);
    assert_eq!(measured(&scratch, "bits"), 4);
    let text = |more: &[&str]| {
        let words = [
            "generate", "run", "--device", "cpu", "--tokens", "5", "--prompt", "the",
        ];
        scratch.run(&[&words[..], more].concat())
    };
    for bits in ["8", "4"] {
        assert!(text(&["--bits", bits]).stdout.starts_with(b"the"));
    }
    let refused = String::from_utf8(text(&["--bits", "3"]).stderr).unwrap();
    assert!(refused.contains("it is 4 or 8"), "{refused}");
    steps_multiply_by_fewer_bits(&scratch);

    let steps = |tokens| {
        let words = [
            "bench", "generate", "run", "--device", "cpu", "--bits", "8", "--tokens", tokens,
            "--batch", "1,3", "--json", "steps",
        ];
        scratch.run(&words)
    };
    assert!(steps("256").status.success());
    assert_eq!(measured(&scratch, "steps"), 2);
    let refused = String::from_utf8(steps("100").stderr).unwrap();
    assert!(refused.contains("at least 256 are timed"), "{refused}");
}

/// Weights and tables large enough to be quantized are never made whole.
fn steps_multiply_by_fewer_bits(scratch: &Scratch) {
    let symbols = (0x100..0x190).filter_map(char::from_u32);
    let line: String = symbols.chain(['\n']).collect();
    fs::write(scratch.path("symbols.txt"), line.repeat(9)).unwrap();
    for model in ["gated-delta-net", "min-gru"] {
        let words = [
            "train",
            "symbols.txt",
            "--model",
            model,
            "--width",
            "128",
            "--layers",
            "1",
            "--context",
            "16",
            "--batch",
            "2",
            "--steps",
            "1",
            "--out",
            model,
            "--device",
            "cpu",
        ];
        scratch.done(&words);
        let words = ["generate", model, "--device", "cpu", "--tokens", "3"];
        let output = scratch.run(&[&words[..], &["--bits", "8"]].concat());
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{model}: {said}");
        assert!(!said.contains("is made whole"), "{model}: {said}");
    }
}

/// The rows of a `--json` file, with those that a busy machine made unsteady and that were refused.
fn measured(scratch: &Scratch, name: &str) -> usize {
    let text = fs::read_to_string(scratch.path(name)).unwrap();
    let found: serde_json::Value = serde_json::from_str(&text).unwrap();
    let count = |field: &str| found[field].as_array().map_or(0, Vec::len);
    count("rows") + count("refused")
}
