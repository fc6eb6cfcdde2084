//! Hybrid training and the digits from outside.
#![cfg(feature = "flex")]

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

fn riverrun(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_riverrun"));
    command.args(words).env_remove("RUST_LOG").output().unwrap()
}

/// What it says, if it succeeds.
fn says(words: &[&str]) -> String {
    let output = riverrun(words);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{words:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

/// What it complains of, if that is a fault in what it was given.
fn complains(words: &[&str]) -> String {
    let output = riverrun(words);
    assert_eq!(output.status.code(), Some(2), "{words:?}");
    String::from_utf8(output.stderr).unwrap()
}

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let name = format!("riverrun-cli-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_string()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_hybrid_run_is_trained_gone_on_with_and_measured() {
    let scratch = Scratch::new("hybrid");
    let settings = scratch.path("settings.json");
    fs::write(&settings, r#"{"warm_up": 50, "confidence": 0.5}"#).unwrap();
    let out = scratch.path("run");
    let xor = ["train", "--task", "xor", "--device", "cpu", "-q"];
    let hybrid = ["--hybrid", &settings, "--predictor", "linear", "--check"];
    let more = [
        "--without",
        "bandit,fallback",
        "--with",
        "health,clipping",
        "--steps",
        "300",
        "--out",
        &out,
    ];
    let text = says(&[&xor[..], &hybrid, &more].concat());
    assert!(text.contains("predictions in the place of"), "{text}");
    let metrics = fs::read_to_string(scratch.path("run/metrics.jsonl")).unwrap();
    assert!(metrics.contains(r#"["warm-up",50]"#) || metrics.contains(r#"["warm-up","#));
    assert!(fs::metadata(scratch.path("run/checkpoint/hybrid.json")).is_ok());
    let resume = ["train", "--resume", "--out", &out, "--device", "cpu", "-q"];
    let text = says(&[&resume[..], &["--steps", "400"]].concat());
    assert!(text.contains("after 400 steps"), "{text}");
    let refused = complains(&[&resume[..], &["--hybrid", "balanced"]].concat());
    assert!(refused.contains("was begun with"), "{refused}");

    let (results, report) = (scratch.path("results.json"), scratch.path("report.txt"));
    let bench = [
        "bench", "hybrid", "--all", "--device", "cpu", "--rungs", "xor",
    ];
    let few = [
        "--steps",
        "100",
        "--seeds",
        "1",
        "--predictors",
        "last-update",
    ];
    let files = [
        "--hybrid",
        "aggressive",
        "--json",
        &results,
        "--report",
        &report,
    ];
    let text = says(&[&bench[..], &few, &files].concat());
    for what in [
        "riverrun bench hybrid --all",
        "commit",
        "plain",
        "last-update",
        "78 % of the backward passes",
        "linear, no bandit",
    ] {
        assert!(text.contains(what), "{what}: {text}");
    }
    assert_eq!(fs::read_to_string(report).unwrap(), text);
    let results = fs::read_to_string(results).unwrap();
    // On a busy machine a latency may be refused as unsteady; then its name is in the file.
    assert!(results.contains("change of 23466 weights applied"));
    for what in ["taken_back", "ablation", "latencies", "commit"] {
        assert!(results.contains(what), "{what}: {results}");
    }
}

/// A run is watched, an ensemble learns from it, and another run starts from that.
#[test]
fn an_ensemble_learns_from_one_run_for_another() {
    let scratch = Scratch::new("taught");
    let [seen, file, taught] = ["seen", "predictor.safetensors", "taught"].map(|n| scratch.path(n));
    let xor = [
        "train", "--task", "xor", "--device", "cpu", "-q", "--steps", "250",
    ];
    let watch = ["--hybrid", "watch", "--out", &seen];
    let text = says(&[&xor[..], &watch].concat());
    assert!(text.contains("250 real steps; 0 predictions"), "{text}");
    let learn = ["hybrid", "learn", &seen, "--device", "cpu", "-q"];
    let small = ["--members", "3", "--hidden", "16", "--out", &file];
    let text = says(&[&learn[..], &small].concat());
    for what in [
        "of one run",
        "2 forecasts were held out",
        "the ensemble",
        "no change",
    ] {
        assert!(text.contains(what), "{what}: {text}");
    }
    let hybrid = [
        "--hybrid",
        "aggressive",
        "--predictor",
        &file,
        "--without",
        "fallback",
    ];
    let text = says(&[&xor[..], &hybrid, &["--out", &taught]].concat());
    assert!(text.contains("predictions in the place of"), "{text}");
    let config = fs::read_to_string(scratch.path("taught/config.json")).unwrap();
    assert!(
        config.contains("\"hidden\": 16") && config.contains(&file),
        "{config}"
    );
    assert!(fs::metadata(scratch.path("taught/checkpoint/ensemble.bpk")).is_ok());

    let nowhere = ["--out", &scratch.path("no/predictor.safetensors")];
    assert!(complains(&[&learn[..], &nowhere].concat()).contains("no folder"));
    let bare = [
        "hybrid", "learn", &taught, "--device", "cpu", "--out", &file,
    ];
    assert!(complains(&bare).contains("trajectory.jsonl"));
    let with = |predictor: &str| {
        let hybrid = ["--hybrid", "balanced", "--predictor", predictor];
        complains(&[&xor[..], &hybrid].concat())
    };
    assert!(with("oracle").contains("acceleration"));
    assert!(with(&scratch.path("none.safetensors")).contains("cannot read"));
    fs::write(&file, "no tensors").unwrap();
    assert!(with(&file).contains("damaged"));
}

/// A row for every part, each with that part off, and a row for every rung.
#[test]
fn parts_and_rungs_are_measured() {
    let scratch = Scratch::new("parts");
    let bench = |more: &[&str]| {
        let common = ["bench", "hybrid", "--device", "cpu", "--seeds", "1"];
        says(&[&common[..], more].concat())
    };
    let results = scratch.path("results.json");
    let xor = ["--rungs", "xor", "--steps", "150", "--hybrid", "aggressive"];
    let text = bench(&[&xor[..], &["--ablate", "--json", &results]].concat());
    let results = fs::read_to_string(results).unwrap();
    for part in [
        "confidence",
        "bandit",
        "plateau",
        "health",
        "clipping",
        "fallback",
    ] {
        assert!(text.contains(&format!("linear, no {part}")), "{text}");
        let off = format!("\"{part}\": false");
        assert!(results.contains(&off), "{part}: {results}");
    }
    let corpus = scratch.path("corpus.txt");
    fs::write(
        &corpus,
        "to be or not to be, that is the question. ".repeat(400),
    )
    .unwrap();
    let rungs = ["--rungs", "text,digits", "--steps", "10"];
    let more = ["--text", &corpus, "--predictors", "linear"];
    let text = bench(&[&rungs[..], &more].concat());
    for row in ["text    plain", "text    linear", "digits  linear"] {
        assert!(text.contains(row), "{row}: {text}");
    }
    let refused = complains(&["bench", "hybrid", "--rungs", "text", "--device", "cpu"]);
    assert!(refused.contains("--text"), "{refused}");
    complains(&["bench", "hybrid", "--ablate", "--latency"]);
}

#[test]
fn senseless_hybrid_options_are_refused() {
    let xor = ["train", "--task", "xor", "--device", "cpu", "-q"];
    let with = |more: &[&str]| complains(&[&xor[..], more].concat());
    assert!(with(&["--hybrid", "reckless"]).contains("balanced"));
    assert!(with(&["--hybrid", "no-such-file.json"]).contains("--hybrid"));
    assert!(with(&["--predictor", "linear"]).contains("--hybrid"));
    assert!(with(&["--hybrid", "balanced", "--without", "brakes"]).contains("bandit"));
    let scratch = Scratch::new("odd");
    let settings = scratch.path("settings.json");
    fs::write(&settings, r#"{"full": 12}"#).unwrap();
    let refused = with(&["--hybrid", &settings, "--out", &scratch.path("run")]);
    assert!(refused.contains("--hybrid: full 12"), "{refused}");
    fs::write(&settings, r#"{"ensemble": {"hidden": 0}}"#).unwrap();
    let refused = with(&["--hybrid", &settings, "--out", &scratch.path("run")]);
    assert!(refused.contains("ensemble.hidden 0"), "{refused}");
    fs::write(&settings, r#"{"speed": 12}"#).unwrap();
    assert!(with(&["--hybrid", &settings]).contains("speed"));
}

#[test]
fn digits_are_told_apart() {
    let scratch = Scratch::new("digits");
    for (net, steps, batch) in [
        ("conv", "60", "32"),
        ("rows", "4", "4"),
        ("pixels", "2", "2"),
    ] {
        let out = scratch.path(net);
        let text = says(&[
            "train",
            "--task",
            "digits",
            "--net",
            net,
            "--steps",
            steps,
            "--batch",
            batch,
            "--eval-every",
            "1000",
            "--out",
            &out,
            "--device",
            "cpu",
            "-q",
        ]);
        assert!(text.contains("of the test images right"), "{text}");
        if net == "conv" {
            let percent = text.split("nats, ").nth(1).unwrap();
            let percent: f64 = percent.split(' ').next().unwrap().parse().unwrap();
            assert!(percent > 50.0, "{text}");
        }
    }
    // A convolution's changes are predicted too.
    let settings = scratch.path("settings.json");
    fs::write(
        &settings,
        r#"{"warm_up": 30, "full": 5, "confidence": 0.4}"#,
    )
    .unwrap();
    let out = scratch.path("predicted");
    let conv = ["train", "--task", "digits", "--device", "cpu", "-q"];
    let short = ["--steps", "80", "--batch", "32", "--eval-every", "1000"];
    let hybrid = ["--hybrid", &settings, "--out", &out, "--check"];
    let text = says(&[&conv[..], &short, &hybrid].concat());
    let counts = text.lines().find(|line| line.starts_with("hybrid"));
    let counts = counts.unwrap();
    assert!(!counts.contains(" 0 predictions"), "{text}");
    let missing = scratch.path("nothing");
    let refused = complains(&["train", "--task", "digits", "--data", &missing]);
    assert!(refused.contains("train-images-idx3-ubyte"), "{refused}");
}
