//! Training that is killed at any moment, or loses its disk, and goes on to the same numbers.
//!
//! `RIVERRUN_KILLS=100 cargo test --release --workspace --test kill` kills a hundred times instead of ten.
#![cfg(all(feature = "flex", unix))]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// A folder that goes away with its test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("riverrun-kill-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn riverrun(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_riverrun"));
        command
            .args(words)
            .current_dir(&self.0)
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        command
    }

    /// Starts a run, or goes on with it where it has begun.
    fn train(&self, out: &str) -> Child {
        let mut words = WORDS.to_vec();
        if self.0.join(out).join("config.json").exists() {
            words = vec!["train", "--resume", "-q", "--device", "cpu"];
        }
        words.extend(["--out", out]);
        self.riverrun(&words).spawn().unwrap()
    }

    /// Trains to the end.
    fn finish(&self, out: &str) {
        let output = self.train(out).wait_with_output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{error}");
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A tiny run that saves often, with dropout and with reports that fall between checkpoints.
const WORDS: [&str; 22] = [
    "train",
    "-q",
    "--data-tokens",
    "2",
    "--width",
    "16",
    "--layers",
    "1",
    "--expansion",
    "1",
    "--context",
    "16",
    "--batch",
    "4",
    "--dropout",
    "0.1",
    "--steps",
    "240",
    "--eval-every",
    "7",
    "--device",
    "cpu",
];

/// Step, split and loss of every line of the metrics.
fn losses(run: &Path) -> Vec<String> {
    let metrics = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let loss = |line: &str| line.split(",\"tokens_per_s\"").next().unwrap().to_string();
    metrics.lines().map(loss).collect()
}

#[test]
fn a_killed_run_goes_on_to_the_same_numbers() {
    let kills: usize = match std::env::var("RIVERRUN_KILLS") {
        Ok(kills) => kills.parse().expect("RIVERRUN_KILLS is a number"),
        Err(_) => 10,
    };
    let scratch = Scratch::new("sigkill");
    let start = Instant::now();
    scratch.finish("whole");
    let whole = start.elapsed();
    let expected = losses(&scratch.0.join("whole"));

    let mut rng = ChaCha8Rng::seed_from_u64(5);
    let (mut killed, mut run) = (0, 0);
    while killed < kills {
        run += 1;
        let out = format!("run-{run}");
        // Up to five kills a run; a run that ends before its time is up counts as none.
        for _ in 0..5 {
            let mut child = scratch.train(&out);
            sleep(whole.mul_f64(rng.random_range(0.0..0.6)));
            let ended = child.try_wait().unwrap().is_some();
            // SIGKILL on Unix.
            let _ = child.kill();
            child.wait().unwrap();
            if ended {
                break;
            }
            killed += 1;
        }
        scratch.finish(&out);
        assert_eq!(
            losses(&scratch.0.join(&out)),
            expected,
            "{out} after {killed} kills"
        );
    }
}

#[test]
fn a_folder_has_one_program_at_a_time() {
    let scratch = Scratch::new("lock");
    let mut first = scratch
        .riverrun(&[&WORDS[..], &["--out", "run"]].concat())
        .spawn()
        .unwrap();
    let config = scratch.0.join("run/config.json");
    let limit = Instant::now() + Duration::from_secs(60);
    while !config.exists() {
        assert!(Instant::now() < limit && first.try_wait().unwrap().is_none());
        sleep(Duration::from_millis(1));
    }
    // Stopped, so that it does not end before it is looked at.
    let signal = |name: &str, child: &Child| {
        let id = child.id().to_string();
        assert!(
            Command::new("kill")
                .args([name, &id])
                .status()
                .unwrap()
                .success()
        );
    };
    signal("-STOP", &first);
    let second = scratch.train("run").wait_with_output().unwrap();
    let error = String::from_utf8(second.stderr).unwrap();
    assert_eq!(second.status.code(), Some(2), "{error}");
    assert!(error.contains("in use by another program"), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
    signal("-CONT", &first);
    assert!(first.wait().unwrap().success());
    scratch.finish("whole");
    assert_eq!(
        losses(&scratch.0.join("run")),
        losses(&scratch.0.join("whole"))
    );
}

/// A disk that becomes read-only in the middle of a run, made of a file system of our own where the system lets us mount
/// one.
#[cfg(target_os = "linux")]
#[test]
fn a_disk_that_becomes_read_only_is_one_line_and_keeps_the_last_checkpoint() {
    let scratch = Scratch::new("read-only");
    let disk = scratch.0.join("disk");
    fs::create_dir(&disk).unwrap();
    let mount = |options: &str| {
        Command::new("mount")
            .args(["-t", "tmpfs", "-o", options, "none"])
            .arg(&disk)
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    };
    if !mount("size=8m") {
        eprintln!(
            "skipped a_disk_that_becomes_read_only_is_one_line_and_keeps_the_last_checkpoint: cannot mount a tmpfs"
        );
        return;
    }
    let endless = [&WORDS[..], &["--steps", "1000000", "--out", "disk/run"]].concat();
    let endless: Vec<&str> = endless
        .iter()
        .enumerate()
        .filter(|(i, _)| ![16, 17].contains(i))
        .map(|(_, word)| *word)
        .collect();
    let child = scratch.riverrun(&endless).spawn().unwrap();
    let limit = Instant::now() + Duration::from_secs(60);
    while !disk.join("run/checkpoint").exists() && Instant::now() < limit {
        sleep(Duration::from_millis(1));
    }
    // The system refuses while a file is open for writing, so until it does not.
    while !mount("remount,ro") && Instant::now() < limit {}
    let output = child.wait_with_output().unwrap();
    assert!(mount("remount,rw"));
    let checkpoint = ["checkpoint", "checkpoint.old"]
        .iter()
        .any(|name| disk.join("run").join(name).join("model.bpk").is_file());
    assert!(
        Command::new("umount")
            .arg(&disk)
            .status()
            .unwrap()
            .success()
    );
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(
        error.contains("cannot write") && error.contains("Read-only file system"),
        "{error}"
    );
    assert_eq!(error.lines().count(), 1, "{error}");
    assert!(checkpoint);
}
