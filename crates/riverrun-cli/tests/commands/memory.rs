//! What commands say about memory, and the file of kernels.

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
