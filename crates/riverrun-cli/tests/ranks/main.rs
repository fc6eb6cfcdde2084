//! Runs on several ranks, as processes on this machine. Every wait has a bound.
#![cfg(all(feature = "flex", unix))]

mod along_time;
mod faults;
#[cfg(target_os = "linux")]
mod network;
mod resume;
mod support;

use std::fs;

use support::{COPY, Scratch, TEXT, XOR, first_loss, losses, tiny};

/// Two ranks have the batches, random numbers and sums of one process that computes each batch in two parts.
#[test]
fn two_ranks_are_one_process_with_two_parts() {
    let scratch = Scratch::new("equal");
    for (name, task) in [("copy", &COPY[..]), ("text", &TEXT), ("xor", &XOR)] {
        let train = |out: &str, ranks: Option<&str>, parts: &str| {
            let more = ["--steps", "30", "--eval-every", "10", "--accumulate", parts];
            let more = [&more[..], &["--out", out]].concat();
            let words = match name {
                "xor" => [task, &more].concat(),
                _ => tiny(task, &more),
            };
            match ranks {
                Some(ranks) => scratch.launched(ranks, &words),
                None => scratch.done(&words),
            }
        };
        let out = |ranks: &str| format!("{name}-{ranks}");
        let end = train(&out("two"), Some("2"), "1");
        assert!(
            end.said
                .contains("global batch 4, 2 a rank, 2 ranks; gradients by TCP, because of rank 0"),
            "{end:?}"
        );
        assert!(
            !end.said.contains("[1]") && end.errors.is_empty(),
            "{end:?}"
        );
        train(&out("parts"), None, "2");
        train(&out("one"), None, "1");
        let run = |ranks: &str| scratch.0.join(out(ranks));
        // Training losses to the bit; validation is added up by rank.
        let of_training = |ranks: &str| -> Vec<String> {
            let lines = losses(&run(ranks)).into_iter();
            lines.filter(|line| line.contains("\"train\"")).collect()
        };
        assert_eq!(of_training("two"), of_training("parts"), "{name}");
        // A mean over n numbers of one sign in f32, in any order, is off by n times its precision at most; dropout draws for
        // each part.
        if name != "copy" {
            let (one, two) = (first_loss(&run("one")), first_loss(&run("two")));
            let n = 4.0 * 16.0;
            let most = 2.0 * n * f64::from(f32::EPSILON) * one;
            assert!((one - two).abs() <= most, "{name}: {one} and {two}");
        }
    }
}

#[test]
fn a_profile_has_every_rank() {
    let scratch = Scratch::new("profile");
    let words = tiny(&TEXT, &["--steps", "8", "--out", "run", "--profile"]);
    let end = scratch.launched("2", &words);
    let lines: Vec<&str> = end.said.lines().collect();
    let at = lines.iter().position(|line| line.starts_with("profile"));
    let lines = &lines[at.unwrap_or_else(|| panic!("{end:?}"))..];
    for (rank, line) in lines[1..3].iter().enumerate() {
        let numbers: Vec<f64> = line
            .split_whitespace()
            .map(|x| x.parse().unwrap())
            .collect();
        assert_eq!((numbers[0], numbers.len()), (rank as f64, 5), "{line}");
        assert!(numbers[2..].iter().all(|ms| *ms > 0.0), "{line}");
    }
    assert!(lines[3].contains("is the slowest"), "{end:?}");
    // The numbers are those of a run without.
    let words = tiny(&TEXT, &["--steps", "8", "--out", "plain"]);
    scratch.launched("2", &words);
    assert!(scratch.same("run", "plain"));
}

#[test]
fn collectives_are_measured_on_all_ranks() {
    let scratch = Scratch::new("collectives");
    let words = [
        "bench",
        "collectives",
        "--bytes",
        "5,100000",
        "--budget",
        "0.01",
    ];
    let end = scratch.launched("3", &[&words[..], &["--json", "found.json"]].concat());
    let text = fs::read_to_string(scratch.0.join("found.json")).unwrap();
    let found: serde_json::Value = serde_json::from_str(&text).unwrap();
    // On a busy machine a row may be refused as unsteady; then its name is in the file.
    let count = |field: &str| found[field].as_array().map_or(0, Vec::len);
    assert_eq!(count("rows") + count("refused"), 4 * 2, "{end:?}");
    for row in found["rows"].as_array().into_iter().flatten() {
        // Whole floats of three ranks.
        assert!(
            [12, 100_008].contains(&row["bytes"].as_u64().unwrap()),
            "{row}"
        );
    }
    let end = scratch.start(&["bench", "collectives"]).end();
    assert_eq!(end.code, Some(2), "{end:?}");
    assert!(end.errors.contains("there is one rank"), "{end:?}");
}

#[test]
fn a_command_runs_on_every_rank() {
    let scratch = Scratch::new("devices");
    let end = scratch.launched("3", &["devices"]);
    for rank in ["", "[1] ", "[2] "] {
        let line = format!("{rank}cpu");
        assert!(
            end.said.lines().any(|said| said.starts_with(&line)),
            "{end:?}"
        );
    }
}
