//! `riverrun train --task pendulum` from outside.
#![cfg(feature = "flex")]

use std::fs;
use std::process::{Command, Output};

fn riverrun(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_riverrun"));
    command.args(words).env_remove("RUST_LOG").output().unwrap()
}

#[test]
fn a_pendulum_is_learned_imagined_and_gone_on_with() {
    let folder = std::env::temp_dir().join(format!("riverrun-cli-pendulum-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    let out = folder.to_str().unwrap();
    let tiny = ["--batch", "2", "--context", "12", "--device", "cpu", "-q"];
    let begin = ["train", "--task", "pendulum", "--steps", "3", "--out", out];
    let words: Vec<&str> = begin.into_iter().chain(tiny).collect();
    let output = riverrun(&words);
    let (text, error) = (
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    );
    assert!(output.status.success(), "{error}");
    assert!(
        text.contains("times nearer than \"nothing changes\""),
        "{text}"
    );
    for file in [
        "config.json",
        "metrics.jsonl",
        "imagination.json",
        "imagination.png",
        "loss.svg",
    ] {
        assert!(folder.join(file).exists(), "{file}");
    }
    let more = [
        "train", "--resume", "--out", out, "--steps", "5", "--device", "cpu", "-q",
    ];
    let output = riverrun(&more);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    // Another option would be another run.
    let output = riverrun(&[
        "train", "--resume", "--out", out, "--batch", "4", "--device", "cpu",
    ]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("batch"));
    let output = riverrun(&["train", "--task", "pendulum", "--layers", "2"]);
    assert_eq!(output.status.code(), Some(2));
    fs::remove_dir_all(&folder).unwrap();
}
