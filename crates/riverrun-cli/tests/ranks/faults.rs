//! Ranks that end, fail, differ, or are asked for what they cannot do.

use std::fs;

use crate::support::{COPY, Process, Scratch, TEXT, XOR, port, tiny, until};

#[test]
fn sigterm_saves_and_ends_all() {
    let scratch = Scratch::new("term");
    let endless = [
        "--steps",
        "1000000",
        "--eval-every",
        "1000000",
        "--out",
        "run",
    ];
    let words = tiny(&COPY, &endless);
    let run = scratch.start(&[&["launch", "--processes", "2", "--"][..], &words].concat());
    // Both ranks are at work then, and no longer end by the signal itself.
    let metrics = scratch.0.join("run/metrics.jsonl");
    until("the first steps", || metrics.exists());
    run.signal("-TERM");
    let end = run.end();
    assert_eq!(end.code, Some(130), "{end:?}");
    assert!(
        end.said
            .contains("and saved; go on with: riverrun train --resume --out run"),
        "{end:?}"
    );
    assert!(scratch.0.join("run/checkpoint/model.bpk").is_file());
    assert!(!end.errors.contains("error"), "{end:?}");
}

#[test]
fn a_rank_that_dies_ends_the_run_by_name() {
    let scratch = Scratch::new("killed");
    let endless = ["--steps", "1000000", "--out", "run"];
    let words = tiny(&COPY, &endless);
    for (victim, other) in [(1, 0), (0, 1)] {
        let port = port();
        let mut ranks = [0, 1].map(|rank| Some(scratch.rank(rank, port, &words)));
        let saved = scratch.0.join("run/checkpoint");
        until("a checkpoint", || saved.exists());
        ranks[victim].take().unwrap().signal("-KILL");
        let end = ranks[other].take().unwrap().end();
        assert_eq!(end.code, Some(1), "{end:?}");
        assert_eq!(end.errors.lines().count(), 1, "{end:?}");
        assert!(
            end.errors.contains(&format!("error: rank {victim} (")),
            "{end:?}"
        );
        let label = ["error: ", "[rank 1] error: "][other];
        assert!(end.errors.starts_with(label), "{end:?}");
        fs::remove_dir_all(scratch.0.join("run")).unwrap();
    }
}

#[test]
fn an_error_of_one_rank_is_told_to_all() {
    let scratch = Scratch::new("error");
    let words = tiny(&COPY, &["--out", "fox.txt/run"]);
    let port = port();
    let ranks = [0, 1].map(|rank| scratch.rank(rank, port, &words));
    let [first, other] = ranks.map(Process::end);
    assert_eq!(
        (first.code, other.code),
        (Some(2), Some(1)),
        "{first:?} {other:?}"
    );
    assert!(first.errors.starts_with("error: cannot "), "{first:?}");
    let cause = first.errors.trim_start_matches("error: ");
    let told =
        other.errors.starts_with("[rank 1] error: rank 0 (") && other.errors.ends_with(cause);
    assert!(told, "{first:?} {other:?}");
}

#[test]
fn ranks_that_differ_are_refused() {
    let scratch = Scratch::new("differ");
    let (one, other) = (tiny(&COPY, &["--out", "run"]), tiny(&TEXT, &[]));
    let port = port();
    let ranks = [(0, one), (1, other)].map(|(rank, words)| scratch.rank(rank, port, &words));
    for end in ranks.map(Process::end) {
        assert_eq!(end.code, Some(1), "{end:?}");
        assert!(
            end.errors.contains("differ in the configuration"),
            "{end:?}"
        );
        assert!(end.errors.contains("rank 1 (host "), "{end:?}");
    }
    assert!(!scratch.0.join("run").exists() && !scratch.0.join("runs").exists());
}

#[test]
fn what_cannot_be_spread_is_refused() {
    let scratch = Scratch::new("refused");
    let refused = |ranks: &str, words: &[&str], message: &str| {
        let words = [&["launch", "--processes", ranks, "--"], words].concat();
        let end = scratch.start(&words).end();
        assert!(!matches!(end.code, Some(0)), "{end:?}");
        assert!(end.errors.contains(message), "{message}: {end:?}");
        assert!(
            !scratch
                .0
                .join("runs")
                .read_dir()
                .is_ok_and(|mut runs| runs.next().is_some())
        );
    };
    let copy = tiny(&COPY, &[]);
    refused("3", &copy, "--batch 4: cannot be divided among 3 ranks");
    let parts = tiny(&COPY, &["--accumulate", "4"]);
    refused("2", &parts, "among 2 ranks with 4 parts each");
    let hybrid = [&XOR[..], &["--hybrid", "balanced"]].concat();
    refused(
        "2",
        &hybrid,
        "hybrid training cannot be spread over several ranks: start one process",
    );
    let graph = tiny(&COPY, &["--graph"]);
    refused(
        "2",
        &graph,
        "exchange their gradients through the host: leave --graph out",
    );
    refused(
        "2",
        &tiny(&["train", "-"], &[]),
        "several ranks cannot share standard input",
    );
    // A launcher in a launcher would never stop.
    refused(
        "2",
        &["launch", "--processes", "2", "--", "devices"],
        "was launched itself",
    );
    let end = scratch.start(&["launch", "--gpus", "1000", "train"]).end();
    assert_eq!(end.code, Some(2), "{end:?}");
    assert!(
        end.errors.contains("--gpus 1000: this build finds"),
        "{end:?}"
    );
    let end = scratch.start(&["launch", "train"]).end();
    assert_eq!(end.code, Some(2), "{end:?}");
}
