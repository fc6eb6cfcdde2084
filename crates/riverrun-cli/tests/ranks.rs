//! Runs on several ranks, as processes on this machine. Every wait has a bound.
#![cfg(all(feature = "flex", unix))]

#[path = "ranks/along_time.rs"]
mod along_time;

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// No test waits longer for anything.
const LIMIT: Duration = Duration::from_secs(120);

/// A folder that goes away with its test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("riverrun-ranks-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("fox.txt"), "the quick brown fox; ".repeat(60)).unwrap();
        Self(path)
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_riverrun"));
        command
            .args(words)
            .current_dir(&self.0)
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn start(&self, words: &[&str]) -> Process {
        Process(self.command(words).spawn().unwrap())
    }

    /// Starts a rank of two.
    fn rank(&self, rank: usize, port: u16, words: &[&str]) -> Process {
        Process(self.rank_command(rank, port, words).spawn().unwrap())
    }

    /// A rank of two with the variables of torchrun, which have a port of their own.
    fn rank_command(&self, rank: usize, port: u16, words: &[&str]) -> Command {
        let mut command = self.command(words);
        let number = rank.to_string();
        command
            .envs([("RANK", &*number), ("LOCAL_RANK", &*number)])
            .envs([("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "2")])
            .envs([
                ("MASTER_ADDR", "127.0.0.1"),
                ("TORCHELASTIC_RUN_ID", "test"),
            ])
            .env("MASTER_PORT", port.to_string());
        command
    }

    /// Runs, and expects success.
    fn done(&self, words: &[&str]) -> End {
        let end = self.start(words).end();
        assert_eq!(end.code, Some(0), "{words:?}: {end:?}");
        end
    }

    fn launched(&self, ranks: &str, words: &[&str]) -> End {
        self.done(&[&["launch", "--processes", ranks, "--"], words].concat())
    }

    /// Whether two runs have the same losses, and their models write the same text.
    fn same(&self, one: &str, other: &str) -> bool {
        let found = |run: &str| {
            let words = ["generate", run, "--device", "cpu", "--tokens", "40"];
            (self.done(&words).said, losses(&self.0.join(run)))
        };
        found(one) == found(other)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A process that is killed when it is dropped.
struct Process(Child);

/// How a process ended, and what it said.
#[derive(Debug)]
struct End {
    code: Option<i32>,
    said: String,
    errors: String,
}

impl Process {
    fn signal(&self, name: &str) {
        let id = self.0.id().to_string();
        let sent = Command::new("kill").args([name, &id]).status();
        assert!(sent.unwrap().success());
    }

    fn end(mut self) -> End {
        let read = |pipe: Box<dyn Read + Send>| {
            std::thread::spawn(move || {
                let (mut pipe, mut text) = (pipe, Vec::new());
                pipe.read_to_end(&mut text).unwrap();
                String::from_utf8_lossy(&text).into_owned()
            })
        };
        let said = read(Box::new(self.0.stdout.take().unwrap()));
        let errors = read(Box::new(self.0.stderr.take().unwrap()));
        let mut status = None;
        until("the end of a process", || {
            status = self.0.try_wait().unwrap();
            status.is_some()
        });
        End {
            code: status.and_then(|status| status.code()),
            said: said.join().unwrap(),
            errors: errors.join().unwrap(),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[track_caller]
fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !done() {
        assert!(Instant::now() < end, "{what} did not come");
        sleep(Duration::from_millis(5));
    }
}

fn port() -> u16 {
    let free = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    free.local_addr().unwrap().port().min(u16::MAX - 20)
}

const TINY: [&str; 13] = [
    "-q",
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
const COPY: [&str; 5] = ["train", "--data-tokens", "2", "--dropout", "0.1"];
const TEXT: [&str; 2] = ["train", "fox.txt"];
const XOR: [&str; 6] = ["train", "-q", "--task", "xor", "--device", "cpu"];

fn tiny<'a>(words: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [words, &TINY, more].concat()
}

/// Step, split and loss of every line of the metrics.
fn losses(run: &Path) -> Vec<String> {
    let metrics = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let loss = |line: &str| line.split(",\"tokens_per_s\"").next().unwrap().to_string();
    metrics.lines().map(loss).collect()
}

/// The first loss of training: that of the first batch, before any update.
fn first_loss(run: &Path) -> f64 {
    let lines = losses(run);
    let rest = lines[0].split("\"loss\":").nth(1).unwrap();
    rest.trim_end_matches('}').parse().unwrap()
}

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
        "hybrid training cannot be spread over several ranks: leave --hybrid out",
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
