//! Runs that go on from a checkpoint.

use crate::support::{Process, Scratch, TEXT, losses, port, tiny, until};

#[test]
fn a_resumed_world_gives_the_numbers_of_an_unbroken_one() {
    let scratch = Scratch::new("resume");
    let words = |more: &[&'static str]| tiny(&TEXT, more);
    let whole = ["--steps", "24", "--eval-every", "8", "--out", "whole"];
    scratch.launched("2", &words(&whole));
    // One that has done 16 of its 24 steps when it is stopped.
    let parts = ["--steps", "24", "--eval-every", "8", "--out", "parts"];
    let all = [&["launch", "--processes", "2", "--"][..], &words(&parts)].concat();
    let run = scratch.start(&all);
    let saved = scratch.0.join("parts/checkpoint");
    until("a checkpoint", || saved.exists());
    run.signal("-TERM");
    let end = run.end();
    // It may have ended before the signal came.
    assert!(matches!(end.code, Some(0 | 130)), "{end:?}");
    let resume = [
        "train", "--resume", "-q", "--device", "cpu", "--out", "parts",
    ];
    let end = scratch.launched("2", &resume);
    assert!(end.errors.is_empty(), "{end:?}");
    assert!(scratch.same("parts", "whole"));

    // Another number of ranks goes on, and says what that means.
    let resume = ["train", "--resume", "--device", "cpu", "--out", "parts"];
    let end = scratch.done(&[&resume[..], &["--steps", "30"]].concat());
    assert!(end.errors.contains("ranks: 2 before, 1 now"), "{end:?}");
    let words = [&resume[..], &["--steps", "36"]].concat();
    let end = scratch.launched("4", &words);
    assert!(end.errors.contains("ranks: 1 before, 4 now"), "{end:?}");
}

#[test]
fn a_run_that_its_launcher_starts_again_goes_on() {
    let scratch = Scratch::new("again");
    let words = |out: &'static str| {
        let more = ["--steps", "40", "--eval-every", "8", "--out", out];
        tiny(&TEXT, &more)
    };
    scratch.launched("2", &words("whole"));
    let first_port = port();
    let ranks = [0, 1].map(|rank| scratch.rank(rank, first_port, &words("parts")));
    let saved = scratch.0.join("parts/checkpoint");
    until("a checkpoint", || saved.exists());
    ranks[1].signal("-KILL");
    for rank in ranks {
        // All may have been done before.
        assert!(matches!(rank.end().code, None | Some(0 | 1)));
    }
    let again_port = port();
    let ranks = [0, 1].map(|rank| {
        let mut command = scratch.rank_command(rank, again_port, &words("parts"));
        command.env("TORCHELASTIC_RESTART_COUNT", "1");
        Process(command.spawn().unwrap())
    });
    for rank in ranks {
        let end = rank.end();
        assert_eq!(end.code, Some(0), "{end:?}");
    }
    assert!(scratch.same("parts", "whole"));
}

#[test]
fn a_sharded_optimizer_is_resumed_by_any_number_of_ranks() {
    let scratch = Scratch::new("shard");
    let words = tiny(
        &TEXT,
        &["--steps", "12", "--out", "run", "--shard-optimizer"],
    );
    scratch.launched("2", &words);
    let resume = ["train", "--resume", "-q", "--device", "cpu", "--out", "run"];
    let more = |ranks: &str, words: &[&'static str]| {
        let words = [&resume[..], words].concat();
        match ranks {
            "1" => scratch.done(&words),
            ranks => scratch.launched(ranks, &words),
        }
    };
    more("1", &["--steps", "16"]);
    more("4", &["--steps", "20", "--shard-optimizer"]);
    more("2", &["--steps", "24"]);
    let last = losses(&scratch.0.join("run")).pop().unwrap();
    assert!(last.contains("\"step\":24"), "{last}");
    let alone = tiny(&TEXT, &["--out", "alone", "--shard-optimizer"]);
    let end = scratch.start(&alone).end();
    assert_eq!(end.code, Some(2), "{end:?}");
    assert!(end.errors.contains("there is one rank"), "{end:?}");
}
