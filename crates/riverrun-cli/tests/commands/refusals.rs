//! Mistakes, damaged files and full disks: one line, exit code 2, nothing lost.

use std::fs;
use std::process::{Command, Stdio};

use crate::{Scratch, corpus, tiny};

#[test]
fn mistakes_are_one_line_and_exit_code_2() {
    let scratch = Scratch::new("mistakes");
    fs::write(scratch.path("empty.txt"), "").unwrap();
    fs::write(scratch.path("short.txt"), "abcdefghij".repeat(20)).unwrap();
    scratch.refused(&["train", "missing.txt", "--device", "cpu"], "missing.txt");
    scratch.refused(&["train", ".", "--device", "cpu"], "cannot read .");
    scratch.refused(
        &["train", "empty.txt", "--device", "cpu"],
        "the text is empty",
    );
    scratch.refused(
        &["train", "short.txt", "--device", "cpu", "--context", "500"],
        "a context of 500 needs at least 501 characters",
    );
    scratch.refused(
        &["train", "short.txt", "--device", "quantum:0"],
        "quantum:0",
    );
    scratch.refused(
        &["train", "short.txt", "--device", "cpu", "--batch", "0"],
        "--batch",
    );
    scratch.refused(
        &["train", "short.txt", "--device", "cpu", "--lr", "-1"],
        "--lr",
    );
    scratch.refused(
        &["train", "--device", "cpu", "--split", "0.5"],
        "--split is for texts",
    );
    scratch.refused(
        &["train", "--device", "cpu", "--task", "parity"],
        "unknown task",
    );
    scratch.refused(
        &["train", "--device", "cpu", "--resume", "--out", "nowhere"],
        "not a run folder",
    );
    scratch.refused(
        &["generate", "nowhere", "--device", "cpu"],
        "not a run folder",
    );
    // Nothing was left behind by any of them.
    let mut left: Vec<_> = fs::read_dir(&scratch.0)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    left.sort();
    assert_eq!(left, ["empty.txt", "short.txt"]);
    // Mistakes in the words themselves are clap's, with the same code.
    assert_eq!(
        scratch.run(&["train", "--steps", "many"]).status.code(),
        Some(2)
    );
    assert_eq!(scratch.run(&["dance"]).status.code(), Some(2));
}

#[test]
fn what_no_machine_can_do_is_refused_and_leaves_no_folder() {
    let scratch = Scratch::new("extreme");
    let most = "18446744073709551615";
    for (option, value) in [
        ("--layers", most),
        ("--layers", "1000000"),
        ("--expansion", most),
        ("--context", most),
        ("--batch", most),
        ("--time-scale", most),
        ("--width", "1000000"),
        ("--batch", "100000000"),
        ("--data-tokens", "1000000000000"),
        ("--dropout", "1"),
        ("--dropout", "-1"),
        ("--lr", "nan"),
        ("--accumulate", "3"),
    ] {
        scratch.refused(
            &["train", "--device", "cpu", "--out", "run", option, value],
            "",
        );
    }
    let words = [
        "train", "--device", "cpu", "--out", "run", "--width", "1000000",
    ];
    scratch.refused(&words, "--batch");
    // A run that cannot be recorded, and one that diverges before its first checkpoint.
    scratch.refused(
        &["train", "--device", "cpu", "--out", "run", "--graph"],
        "no launches",
    );
    let mut words = tiny(&["train", "--out", "run", "--steps", "20", "-q"]);
    let rate = words.iter().position(|word| *word == "--lr").unwrap() + 1;
    words[rate] = "1e30";
    scratch.refused(&words, "try a lower --lr");
    assert!(!scratch.path("run").exists());
}

#[test]
fn a_damaged_configuration_is_refused_before_anything_is_made() {
    let scratch = Scratch::new("config");
    fs::write(scratch.path("fox.txt"), corpus()).unwrap();
    scratch.done(&tiny(&["train", "fox.txt", "--steps", "2", "--out", "run"]));
    let path = scratch.path("run/config.json");
    let config = fs::read_to_string(&path).unwrap();
    for (from, to, message) in [
        ("\"dropout\": 0.0", "\"dropout\": 1.0", "dropout 1"),
        ("\"layers\": 1", "\"layers\": 1000000", "layers 1000000"),
        ("\"mlp\": 4", "\"mlp\": 0", "mlp 0"),
        ("\"vocab\": 28", "\"vocab\": 27", "vocab 27"),
        ("\"width\"", "\"widht\"", "config.json is damaged"),
    ] {
        assert!(config.contains(from), "{from} in {config}");
        fs::write(&path, config.replace(from, to)).unwrap();
        scratch.refused(&["generate", "run", "--device", "cpu"], message);
    }
    fs::write(&path, config).unwrap();
    let three = [
        "generate", "run", "--device", "cpu", "--batch", "3", "--tokens", "5",
    ];
    let said = scratch.done(&three);
    assert_eq!(said.matches("== sample").count(), 3, "{said}");
    scratch.refused(
        &["generate", "run", "--device", "cpu", "--batch", "0"],
        "--batch 0",
    );
    scratch.refused(
        &["generate", "run", "--device", "cpu", "--graph"],
        "no launches to record on the CPU",
    );
}

#[test]
fn the_cpu_has_nothing_to_tune() {
    let scratch = Scratch::new("tune");
    let tune = ["tune", "--device", "cpu"];
    scratch.refused(&tune, "nothing to tune on cpu");
    scratch.refused(&[&tune[..], &["--reset"]].concat(), "nothing to tune");
    for wrong in [["--budget", "0"], ["--gates", "no-gate"]] {
        let words = [&tune[..], &wrong].concat();
        assert_eq!(scratch.run(&words).status.code(), Some(2), "{words:?}");
    }
    assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 0);
}

/// A full disk, made of a small file system where the system lets us mount one.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_one_line_and_keeps_the_last_checkpoint() {
    let scratch = Scratch::new("full");
    let disk = scratch.path("disk");
    fs::create_dir(&disk).unwrap();
    let mount = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=220k", "none"])
        .arg(&disk)
        .stderr(Stdio::null())
        .status();
    if !mount.is_ok_and(|status| status.success()) {
        eprintln!(
            "skipped a_full_disk_is_one_line_and_keeps_the_last_checkpoint: cannot mount a tmpfs"
        );
        return;
    }
    let words = tiny(&[
        "train",
        "--data-tokens",
        "2",
        "--expansion",
        "1",
        "--steps",
        "400",
        "--eval-every",
        "1",
        "--out",
        "disk/run",
        "-q",
    ]);
    let output = scratch.run(&words);
    let kept = disk.join("run/checkpoint/model.bpk").is_file();
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
        error.contains("cannot write") && error.contains("No space left"),
        "{error}"
    );
    assert_eq!(error.lines().count(), 1, "{error}");
    assert!(kept);
}
