//! `--context-parallel`: sequences divided along time.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use crate::support::{
    COPY, End, Process, Scratch, TEXT, XOR, first_loss, losses, port, tiny, until,
};

/// Two ranks with half of the steps each, and four in two groups, begin with the loss of one process and say what they do; a resumed run
/// is an unbroken one.
#[test]
fn ranks_share_every_sequence() {
    let scratch = Scratch::new("time");
    let run = |out: &str| scratch.0.join(out);
    for (name, task) in [
        ("copy", &["train", "--data-tokens", "2"][..]),
        ("text", &TEXT),
    ] {
        let words = |out: &str, more: &[&'static str]| {
            let words = tiny(task, &["--steps", "12", "--eval-every", "6", "--out", out]);
            let owned = words.into_iter().map(String::from);
            owned
                .chain(more.iter().map(|word| word.to_string()))
                .collect::<Vec<_>>()
        };
        let launched = |ranks: &str, out: &str, more: &[&'static str]| {
            let words = words(out, more);
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            scratch.launched(ranks, &words)
        };
        let (one, two, four) = (
            format!("{name}-one"),
            format!("{name}-two"),
            format!("{name}-four"),
        );
        let plain = words(&one, &[]);
        scratch.done(&plain.iter().map(String::as_str).collect::<Vec<_>>());
        let end = launched("2", &two, &["--context-parallel", "2"]);
        let says = "global batch 4, 4 a group, 1 groups of 2 ranks along time";
        assert!(end.said.contains(says), "{end:?}");
        let end = launched("4", &four, &["--context-parallel", "2"]);
        let says = "global batch 4, 2 a group, 2 groups of 2 ranks along time";
        assert!(end.said.contains(says), "{end:?}");
        // A mean over n numbers of one sign in f32, in any order, is off by n times its precision at most.
        let expected = first_loss(&run(&one));
        let most = 2.0 * (4.0 * 20.0) * f64::from(f32::EPSILON) * expected;
        for out in [&two, &four] {
            let found = first_loss(&run(out));
            assert!(
                (found - expected).abs() <= most,
                "{out}: {found}, not {expected}"
            );
        }
    }
    // A model of two ranks writes as any other.
    let words = ["generate", "text-two", "--device", "cpu", "--tokens", "20"];
    assert!(!scratch.done(&words).said.is_empty());

    let resume = ["train", "--resume", "-q", "--device", "cpu", "--out"];
    let go_on = |out| {
        [
            &resume[..],
            &[out, "--steps", "18", "--context-parallel", "2"],
        ]
        .concat()
    };
    let copied = run("again");
    let copy = std::process::Command::new("cp")
        .arg("-r")
        .args([run("text-two"), copied.clone()])
        .status();
    assert!(copy.unwrap().success());
    for out in ["text-two", "again"] {
        let end = scratch.launched("2", &go_on(out));
        assert!(end.errors.is_empty(), "{end:?}");
    }
    assert_eq!(losses(&run("text-two")), losses(&copied));
    // Others go on, and say what that means.
    let whole = [
        "train", "--resume", "--device", "cpu", "--out", "again", "--steps", "20",
    ];
    let end = scratch.launched("2", &whole);
    let says = "ranks: 2 in groups of 2 along time before, 2 now";
    assert!(end.errors.contains(says), "{end:?}");
}

/// Killed, or stopped for a while and then killed, at any moment: most of a step is spent in hand-overs.
#[test]
fn a_rank_that_dies_ends_those_that_wait_for_its_states() {
    let scratch = Scratch::new("time-killed");
    let endless = [
        "--context-parallel",
        "2",
        "--steps",
        "1000000",
        "--out",
        "run",
    ];
    let words = tiny(&COPY, &endless);
    for (victim, other, stopped) in [(1, 0, false), (0, 1, true), (1, 0, true), (0, 1, false)] {
        let port = port();
        let mut ranks = [0, 1].map(|rank| Some(scratch.rank(rank, port, &words)));
        let saved = scratch.0.join("run/checkpoint");
        until("a checkpoint", || saved.exists());
        let rank = ranks[victim].take().unwrap();
        if stopped {
            rank.signal("-STOP");
            // The other one comes to its next hand-over.
            sleep(Duration::from_millis(200));
        }
        rank.signal("-KILL");
        let end = ranks[other].take().unwrap().end();
        assert_eq!(end.code, Some(1), "{end:?}");
        assert_eq!(end.errors.lines().count(), 1, "{end:?}");
        let name = format!("error: rank {victim} (");
        assert!(end.errors.contains(&name), "{end:?}");
        fs::remove_dir_all(scratch.0.join("run")).unwrap();
    }
}

#[test]
fn what_cannot_be_divided_along_time_is_refused() {
    let scratch = Scratch::new("time-refused");
    let refused = |end: End, message: &str| {
        assert!(!matches!(end.code, Some(0)), "{end:?}");
        assert!(end.errors.contains(message), "{message}: {end:?}");
        let runs = scratch.0.join("runs").read_dir();
        assert!(
            !runs.is_ok_and(|mut runs| runs.next().is_some()),
            "{message}"
        );
    };
    let launched = |ranks: &str, words: &[&str]| {
        let launch = ["launch", "--processes", ranks, "--"];
        scratch.start(&[&launch[..], words].concat()).end()
    };
    let two = ["--context-parallel", "2"];
    for model in ["griffin", "gpt2"] {
        let words = tiny(&TEXT, &["--model", model, "--context-parallel", "2"]);
        let reason = format!(
            "the sequences of the model {model} cannot be divided among ranks along time: leave --context-parallel out"
        );
        refused(launched("2", &words), &reason);
        let plan = [&["plan"][..], &words[1..]].concat();
        refused(scratch.start(&plan).end(), &reason);
    }
    let copy = tiny(&COPY, &two);
    refused(
        launched("3", &copy),
        "--context-parallel 2: it does not divide the 3 ranks",
    );
    refused(
        scratch.start(&copy).end(),
        "--context-parallel 2: there is one rank",
    );
    let graph = tiny(&COPY, &["--context-parallel", "2", "--graph"]);
    refused(
        launched("2", &graph),
        "hand their states over through the host: leave --graph out",
    );
    let shard = tiny(&COPY, &["--context-parallel", "2", "--shard-optimizer"]);
    refused(
        launched("2", &shard),
        "--shard-optimizer: with --context-parallel 2 every rank keeps the whole optimizer",
    );
    for task in ["xor", "digits", "pendulum"] {
        let words = [
            "train",
            "--device",
            "cpu",
            "--task",
            task,
            "--context-parallel",
            "2",
        ];
        let reason = format!("the task {task} has no use for --context-parallel");
        refused(launched("2", &words), &reason);
    }
    let hybrid = tiny(&COPY, &["--context-parallel", "2", "--hybrid", "balanced"]);
    refused(launched("2", &hybrid), "hybrid training cannot be spread");
    let short = tiny(&["plan", "fox.txt"], &["--context-parallel", "32"]);
    let reason = "--context-parallel 32: there are 16 steps in a sequence";
    refused(scratch.start(&short).end(), reason);

    let port = port();
    let ranks = [0, 1].map(|rank| {
        let more: &[&str] = if rank == 0 { &two } else { &[] };
        scratch.rank(rank, port, &tiny(&COPY, more))
    });
    for end in ranks.map(Process::end) {
        refused(end, "the number of ranks along time");
    }
    assert!(
        scratch
            .start(&[&XOR[..], &two].concat())
            .end()
            .errors
            .contains("has no use")
    );
}

#[test]
fn a_plan_is_of_a_piece() {
    let scratch = Scratch::new("time-plan");
    let sizes = [
        "plan",
        "--width",
        "32",
        "--layers",
        "2",
        "--data-tokens",
        "2",
        "--context",
        "97",
    ];
    let said = |more: &[&str]| {
        scratch
            .done(&[&sizes[..], &["--batch", "4"], more].concat())
            .said
    };
    assert!(said(&[]).contains("of 404 tokens at once"));
    // The longest of the pieces of 33, 34 and 34 steps.
    let piece = said(&["--context-parallel", "3"]);
    assert!(
        piece.contains("a rank       with 1 of 3 pieces of every sequence"),
        "{piece}"
    );
    assert!(piece.contains("of 136 tokens at once"), "{piece}");
}

#[test]
fn divided_recurrences_are_measured_beside_whole_ones() {
    let scratch = Scratch::new("time-bench");
    let words = [
        "bench", "context", "--device", "cpu", "--shapes", "2x97x24", "--groups", "1,3",
    ];
    let file = ["--budget", "0.01", "--json", "found.json"];
    let end = scratch.launched("3", &[&words[..], &file].concat());
    let text = fs::read_to_string(scratch.0.join("found.json")).unwrap();
    let found: serde_json::Value = serde_json::from_str(&text).unwrap();
    // On a busy machine a timing may be refused as unsteady, and its row with it; then its name is in the file.
    let list = |field: &str| found[field].as_array().cloned().unwrap_or_default();
    for groups in [1, 3] {
        let name = format!("groups {groups}:");
        let measured = list("rows").iter().any(|row| row["groups"] == groups);
        let refused = list("refused")
            .iter()
            .any(|row| row.as_str().unwrap().contains(&name));
        assert!(measured || refused, "{groups}: {end:?}");
    }
    let refused = scratch.start(
        &[
            &["launch", "--processes", "2", "--"],
            &words[..6],
            &["--groups", "5"],
        ]
        .concat(),
    );
    let end = refused.end();
    assert!(
        end.errors.contains("2x97x24 has no 5 groups of channels"),
        "{end:?}"
    );
    let end = scratch.start(&words).end();
    assert_eq!(end.code, Some(2), "{end:?}");
    assert!(end.errors.contains("there is one rank"), "{end:?}");
}
