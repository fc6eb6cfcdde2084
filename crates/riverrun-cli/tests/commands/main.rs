//! The `riverrun` binary from outside: files, streams, exit codes.
#![cfg(feature = "flex")]

mod everyday;
mod head_layers;
mod memory;
mod refusals;
mod weights;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A folder that goes away with its test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("riverrun-cli-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// `riverrun` with these words, in this folder.
    fn riverrun(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_riverrun"));
        command
            .args(words)
            .current_dir(&self.0)
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            // Where it is not set, window-system libraries under Vulkan complain on standard error.
            .env("XDG_RUNTIME_DIR", &self.0);
        command
    }

    fn run(&self, words: &[&str]) -> Output {
        self.riverrun(words).output().unwrap()
    }

    /// Runs, and expects exit code 2 and one line with `message` in it.
    fn refused(&self, words: &[&str], message: &str) {
        let output = self.run(words);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{words:?}: {error}");
        assert!(
            error.starts_with("error: ") && error.contains(message),
            "{words:?}: {error}"
        );
        assert_eq!(error.lines().count(), 1, "{words:?}: {error}");
    }

    /// Runs, and expects success; gives standard output.
    fn done(&self, words: &[&str]) -> String {
        let output = self.run(words);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words:?}: {error}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const TINY: [&str; 12] = [
    "--width",
    "16",
    "--layers",
    "1",
    "--context",
    "16",
    "--batch",
    "4",
    "--device",
    "cpu",
    "--lr",
    "0.01",
];

fn tiny<'a>(words: &[&'a str]) -> Vec<&'a str> {
    words.iter().chain(&TINY).copied().collect()
}

fn corpus() -> String {
    "the quick brown fox jumps over the lazy dog; ".repeat(40)
}

/// Step, split and loss of every line of the metrics.
fn losses(run: &Path) -> Vec<String> {
    let metrics = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    metrics
        .lines()
        .map(|line| line.split(",\"tokens_per_s\"").next().unwrap().into())
        .collect()
}

#[test]
fn a_text_is_learned_kept_and_spoken() {
    let scratch = Scratch::new("text");
    fs::write(scratch.path("fox.txt"), corpus()).unwrap();
    let words = tiny(&["train", "fox.txt", "--steps", "60", "--out", "run"]);
    let said = scratch.done(&words);
    assert!(said.contains("28 distinct characters"), "{said}");
    assert!(said.contains("validation loss"), "{said}");
    let run = scratch.path("run");
    for file in [
        "config.json",
        "metrics.jsonl",
        "checkpoint",
        "best",
        "loss.svg",
        "loss.png",
    ] {
        assert!(run.join(file).exists(), "{file}");
    }
    let metrics = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    for field in ["step", "split", "loss", "tokens_per_s", "lr", "seconds"] {
        assert!(
            metrics
                .lines()
                .all(|line| line.contains(&format!("\"{field}\":"))),
            "{field}"
        );
    }

    // A run is never written over.
    let before = losses(&run);
    scratch.refused(&words, "already holds a run");
    assert_eq!(losses(&run), before);
    // Nor resumed as another.
    scratch.refused(
        &[
            "train", "--resume", "--out", "run", "--width", "32", "--device", "cpu",
        ],
        "width 16, not 32",
    );
    // More steps are the one thing that may change.
    let more = [
        "train", "--resume", "--out", "run", "--steps", "70", "--device", "cpu",
    ];
    scratch.done(&more);
    assert!(losses(&run).last().unwrap().contains("\"step\":70"));

    // The model speaks the same in every process, with a prompt and without.
    let speak = |more: &[&str]| {
        let mut words = vec!["generate", "run", "--device", "cpu", "--tokens", "40"];
        words.extend(more);
        scratch.done(&words)
    };
    let fox = speak(&["--prompt", "the quick"]);
    assert!(
        fox.starts_with("the quick") && fox.trim_end_matches('\n').len() == 49,
        "{fox:?}"
    );
    assert_eq!(fox, speak(&["--prompt", "the quick"]));
    assert_ne!(fox, speak(&["--prompt", "the quick", "--seed", "1"]));
    assert_eq!(
        speak(&["--temperature", "0"]),
        speak(&["--top-k", "1", "--seed", "5"])
    );
    // The same model with weights of half the size.
    let half = speak(&["--dtype", "bf16", "--prompt", "the quick"]);
    assert!(half.starts_with("the quick") && half.trim_end_matches('\n').len() == 49);
    scratch.refused(
        &["generate", "run", "--device", "cpu", "--prompt", "THE"],
        "'T' is not among",
    );
    scratch.refused(
        &["generate", "run", "--device", "cpu", "--top-k", "0"],
        "--top-k",
    );

    // Without its text the run cannot go on; with the text under another name it can.
    fs::rename(scratch.path("fox.txt"), scratch.path("moved.txt")).unwrap();
    scratch.refused(&more, "fox.txt");
    scratch.done(&[
        "train",
        "moved.txt",
        "--resume",
        "--out",
        "run",
        "--device",
        "cpu",
    ]);
    fs::write(scratch.path("moved.txt"), corpus() + "!").unwrap();
    let other = [
        "train",
        "moved.txt",
        "--resume",
        "--out",
        "run",
        "--device",
        "cpu",
    ];
    scratch.refused(&other, "no longer the text");
}

#[test]
fn models_with_attention_are_trained_continued_and_speak() {
    let scratch = Scratch::new("attention");
    fs::write(scratch.path("fox.txt"), corpus()).unwrap();
    let three = [
        "train", "fox.txt", "--steps", "6", "--layers", "3", "--heads", "2",
    ];
    let sizes = &TINY[4..];
    let options: [(&str, &[&str]); 2] = [
        ("griffin", &["--window", "5", "--tokens", "bytes"]),
        ("gpt2", &["--tokens", "chars"]),
    ];
    for (model, more) in options {
        let words = [
            &three[..],
            &["--model", model, "--width", "16"],
            more,
            sizes,
        ]
        .concat();
        let said = scratch.done(&[&words[..], &["--out", model]].concat());
        assert!(
            said.contains(&format!("model   {model}, 3 layers of width 16")),
            "{said}"
        );
        // A shorter run goes on.
        let short: Vec<&str> = words
            .iter()
            .map(|&w| if w == "6" { "3" } else { w })
            .collect();
        let half = format!("{model}-half");
        let same = ["--warmup", "1", "--eval-every", "10", "--out", &half];
        scratch.done(&[&short[..], &same].concat());
        let go_on = [
            "train", "--resume", "--out", &half, "--steps", "6", "--device", "cpu",
        ];
        scratch.done(&go_on);
        let other = [&go_on[..], &["--model", "min-gru"]].concat();
        scratch.refused(&other, "was begun with --model");
        let other = [&go_on[..], &["--tokens", "bpe"]].concat();
        scratch.refused(&other, "was begun with --tokens");
        // More symbols than GPT-2's 16 positions; bytes of a model that has hardly learned are no text.
        let speak = || {
            let words = [
                "generate", model, "--device", "cpu", "--prompt", "fox", "--tokens", "60",
            ];
            let output = scratch.run(&words);
            assert!(output.status.success(), "{output:?}");
            output.stdout
        };
        let fox = speak();
        assert!(fox.starts_with(b"fox") && fox.len() == 64, "{fox:?}");
        assert_eq!(fox, speak());
    }
    let train = |more: &[&'static str]| {
        let words = ["train", "fox.txt", "--device", "cpu"];
        words.iter().chain(more).copied().collect::<Vec<_>>()
    };
    scratch.refused(
        &train(&["--model", "gpt2", "--window", "3"]),
        "gpt2 has no use for --window",
    );
    scratch.refused(
        &train(&["--model", "griffin", "--dropout", "0.1"]),
        "no use for --dropout",
    );
    scratch.refused(&train(&["--heads", "2"]), "min-gru has no use for --heads");
    scratch.refused(
        &train(&["--model", "gpt2", "--heads", "3"]),
        "a divisor of the width 128",
    );
    scratch.refused(
        &train(&["--tokens", "bpe"]),
        "--tokens bpe needs a --vocabulary",
    );
    scratch.refused(
        &train(&["--tokens", "bytes", "--vocabulary", "x"]),
        "--vocabulary is for --tokens bpe",
    );
    scratch.refused(
        &train(&["--tokens", "bpe", "--vocabulary", "fox.txt"]),
        "not a vocabulary",
    );
}

#[test]
fn standard_input_is_a_text() {
    let scratch = Scratch::new("stdin");
    let mut child = scratch
        .riverrun(&tiny(&["train", "-", "--steps", "2"]))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(corpus().as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    // The first run of a task has the number 001.
    assert!(scratch.path("runs/text-001/best/model.bpk").is_file());
}

#[test]
fn selective_copying_reports_accuracy() {
    let scratch = Scratch::new("copy");
    let words = tiny(&[
        "train",
        "--data-tokens",
        "2",
        "--steps",
        "4",
        "--out",
        "run",
        "-q",
    ]);
    let output = scratch.run(&words);
    assert!(output.status.success());
    assert!(
        output.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(
        said.contains("% of 2 data tokens among 16 blanks"),
        "{said}"
    );
    assert!(said.contains("loss.png"), "{said}");
    assert!(
        losses(&scratch.path("run"))
            .iter()
            .any(|line| line.contains("\"accuracy\":"))
    );
    scratch.refused(
        &["generate", "run", "--device", "cpu"],
        "only a run on text",
    );
}

#[cfg(unix)]
#[test]
fn ctrl_c_saves_and_the_run_goes_on_to_the_same_numbers() {
    let scratch = Scratch::new("interrupt");
    let steps = [
        "train",
        "--data-tokens",
        "2",
        "--steps",
        "300",
        "--eval-every",
        "100",
        "--out",
    ];
    let with = |out: &'static str| tiny(&[&steps[..], &[out]].concat());
    scratch.done(&with("whole"));

    let mut child = scratch
        .riverrun(&with("parts"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Interrupted as soon as it is under way.
    let mut progress = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(progress.any(|line| line.unwrap().starts_with("step ")));
    let id = child.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-INT", &id])
            .status()
            .unwrap()
            .success()
    );
    progress.for_each(drop);
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(
        said.contains("go on with: riverrun train --resume --out parts"),
        "{said}"
    );

    scratch.done(&["train", "--resume", "--out", "parts", "--device", "cpu"]);
    assert_eq!(
        losses(&scratch.path("parts")),
        losses(&scratch.path("whole"))
    );
}

#[test]
fn xor_is_learned_in_seconds() {
    let scratch = Scratch::new("xor");
    let words = [
        "train", "--task", "xor", "--device", "cpu", "--out", "run", "-q",
    ];
    let said = scratch.done(&words);
    assert!(said.contains("4 of 4 rows right"), "{said}");
    let loss = said
        .split("loss ")
        .nth(1)
        .unwrap()
        .split(' ')
        .next()
        .unwrap();
    assert!(loss.parse::<f64>().unwrap() < 0.1, "{said}");
    scratch.done(&[
        "train", "--resume", "--out", "run", "--steps", "510", "--device", "cpu", "-q",
    ]);
    let layers = ["train", "--task", "xor", "--device", "cpu", "--layers", "2"];
    scratch.refused(&layers, "no use for --layers");
}

#[test]
fn a_finished_run_keeps_its_steps_and_its_learning_rate() {
    let scratch = Scratch::new("finished");
    let mut words = tiny(&[
        "train",
        "--out",
        "run",
        "--steps",
        "12",
        "--data-tokens",
        "2",
    ]);
    let rate = words.iter().position(|word| *word == "--lr").unwrap() + 1;
    words[rate] = "0.0012000000000000001";
    scratch.done(&words);
    let file = |name: &str| fs::read(scratch.path("run").join(name)).unwrap();
    let before = [file("config.json"), file("metrics.jsonl")];
    let resume = |more: &[&'static str]| {
        let mut words = vec!["train", "--resume", "--out", "run", "--device", "cpu"];
        words.extend(more);
        words
    };
    scratch.refused(&resume(&["--steps", "11"]), "has done 12 steps");
    assert_eq!([file("config.json"), file("metrics.jsonl")], before);
    scratch.done(&resume(&["--steps", "14", "--lr", "0.0012000000000000001"]));
    assert!(file("metrics.jsonl").starts_with(&before[1]));
}
