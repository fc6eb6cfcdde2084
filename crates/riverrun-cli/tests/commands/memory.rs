//! What commands say about memory, and the file of kernels.

use std::fs;

use riverrun_models::LanguageModelConfig;
use riverrun_train::tasks::SelectiveCopyConfig;
use riverrun_train::{Precision, RunConfig, TaskConfig};

use crate::{Scratch, tiny};

/// The number before a word of a line.
fn number_before(text: &str, word: &str) -> f64 {
    let before = text.split(word).next().unwrap_or_default();
    let number = before.split_whitespace().last().unwrap_or_default();
    number
        .parse()
        .unwrap_or_else(|_| panic!("no number before {word}: {text}"))
}

#[test]
fn a_run_shows_its_memory_when_asked() {
    let scratch = Scratch::new("memory");
    let said = scratch.done(&tiny(&[
        "train", "--steps", "4", "--out", "run", "--memory",
    ]));
    let line = said
        .lines()
        .find(|line| line.starts_with("memory  in use "));
    let line = line.unwrap_or_else(|| panic!("{said}"));
    let (in_use, peak) = line.split_once(", peak ").unwrap();
    if cfg!(all(target_os = "linux", target_env = "gnu")) {
        let (in_use, peak) = (number_before(in_use, " MB"), number_before(peak, " MB"));
        assert!(in_use > 0.0 && peak > in_use, "{line}");
    }
    // The largest weights are the matrices of the one block.
    assert!(said.contains("blocks.0."), "{said}");

    let quiet = scratch.done(&tiny(&["train", "--steps", "4", "--out", "quiet"]));
    assert!(!quiet.contains("memory  in use"), "{quiet}");
    let bench = [
        "bench",
        "attention",
        "--shapes",
        "1x1x32x16",
        "--budget",
        "0.02",
    ];
    let said = scratch.done(&[&bench[..], &["--device", "cpu", "--memory"]].concat());
    assert!(said.contains("memory  in use "), "{said}");
}

#[test]
fn the_kernel_cache_is_listed_and_cleared() {
    let scratch = Scratch::new("cache");
    for words in [&["cache", "list"][..], &["cache", "clear"], &["devices"]] {
        let mut command = scratch.riverrun(words);
        // Not the user's own file.
        let output = command.env("XDG_CACHE_HOME", &scratch.0).output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{said}");
        assert!(said.contains("kernel cache: "), "{said}");
    }
    assert_eq!(scratch.run(&["cache", "burn"]).status.code(), Some(2));
}

#[test]
fn a_plan_is_of_the_run_that_would_follow() {
    let scratch = Scratch::new("plan");
    let peak = |words: &[&str]| {
        let said = scratch.done(words);
        let line = said.lines().find(|line| line.starts_with("peak "));
        number_before(line.unwrap_or_else(|| panic!("{said}")), " MB")
    };
    let sizes = [
        "plan",
        "--width",
        "256",
        "--layers",
        "4",
        "--context",
        "256",
    ];
    let plain = peak(&[&sizes[..], &["--batch", "64"]].concat());
    let halved = peak(&[&sizes[..], &["--batch", "64", "--accumulate", "2"]].concat());
    let short = peak(&[&sizes[..], &["--batch", "64", "--dtype", "bf16"]].concat());
    assert!(
        halved < 0.7 * plain && short < 0.7 * plain,
        "{plain} {halved} {short}"
    );
    assert!(
        fs::read_dir(&scratch.0).unwrap().next().is_none(),
        "nothing is made"
    );

    scratch.done(&tiny(&["train", "--steps", "2", "--out", "run"]));
    let begun = peak(&tiny(&["plan"]));
    assert_eq!(peak(&["plan", "--resume", "--out", "run"]), begun);
    scratch.refused(&["plan", "--task", "xor"], "no language model");
}

/// The peaks of the memory pools of an H200, from `riverrun bench train --graph --dtypes bf16`.
#[test]
fn a_plan_is_within_a_tenth_of_what_was_measured() {
    for (cell, [width, layers, batch, context, vocab], measured) in [
        ("min-gru", [256, 4, 64, 256, 65], 639_858_688),
        ("min-gru", [512, 6, 64, 1024, 65], 6_582_394_880),
        ("min-gru", [768, 12, 16, 1024, 50_257], 10_775_021_568),
        ("gru", [256, 4, 64, 256, 65], 689_141_760),
        ("gru", [512, 6, 64, 1024, 65], 7_450_615_808),
        ("lstm", [256, 4, 64, 256, 65], 721_647_616),
        ("lstm", [512, 6, 64, 1024, 65], 7_945_543_680u64),
    ] {
        let model = LanguageModelConfig::new(vocab, width, layers);
        let mut config = RunConfig::selective_copy();
        config.model = model.with_cell(cell.parse().unwrap()).into();
        config.task = TaskConfig::SelectiveCopy(SelectiveCopyConfig { data_tokens: 0 });
        (config.training.batch, config.training.context) = (batch, context);
        config.training.dtype = Precision::Bf16;
        let plan = config.memory_plan().unwrap();
        let ratio = plan.peak() as f64 / measured as f64;
        assert!((0.9..1.1).contains(&ratio), "{cell} {width}: {ratio:.3}");
    }
}
