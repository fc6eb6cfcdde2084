//! The everyday parts of a trainer: schedules, SGD, epochs, early stopping, checkpoints kept, event files, budgets; ONNX models.

use std::fs;

use super::{Scratch, corpus, losses, tiny};

/// A text in a folder, and a tiny run on it with these words.
fn text(scratch: &Scratch, words: &[&str]) -> String {
    fs::write(scratch.path("fox.txt"), corpus()).unwrap();
    scratch.done(&[tiny(&["train", "fox.txt"]), words.to_vec()].concat())
}

#[test]
fn a_run_goes_back_to_a_checkpoint_that_it_kept() {
    let scratch = Scratch::new("kept");
    let words = [
        "--steps",
        "50",
        "--eval-every",
        "10",
        "--keep",
        "3",
        "--out",
        "run",
    ];
    text(&scratch, &words);
    let kept = || {
        let entries = fs::read_dir(scratch.path("run")).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names
            .filter(|name| name.starts_with("checkpoint"))
            .collect();
        names.sort();
        names
    };
    assert_eq!(kept(), ["checkpoint", "checkpoint-30", "checkpoint-40"]);
    let whole = losses(&scratch.path("run"));
    let back = [
        "train",
        "--resume",
        "--out",
        "run",
        "--device",
        "cpu",
        "--from-step",
    ];
    scratch.refused(
        &[&back[..], &["20"]].concat(),
        "after 30, 40: choose one of these",
    );
    scratch.done(&[&back[..], &["30"]].concat());
    assert_eq!(losses(&scratch.path("run")), whole);
    assert_eq!(kept(), ["checkpoint", "checkpoint-30", "checkpoint-40"]);
}

#[test]
fn a_run_ends_when_it_no_longer_improves() {
    let scratch = Scratch::new("patience");
    // Without a learning rate no evaluation is better than the first.
    let words = [
        "--steps",
        "500",
        "--eval-every",
        "5",
        "--patience",
        "2",
        "--lr",
        "0",
    ];
    let words = [&words[..], &["--out", "run"]].concat();
    fs::write(scratch.path("fox.txt"), corpus()).unwrap();
    let small = tiny(&["train", "fox.txt"]);
    let said = scratch.done(&[&small[..small.len() - 2], &words].concat());
    assert!(
        said.contains("stopped before step 500: no lower validation loss in 2"),
        "{said}"
    );
    let last = losses(&scratch.path("run")).pop().unwrap();
    assert!(last.starts_with("{\"step\":15,"), "{last}");
}

#[test]
fn schedules_and_rules_are_kept_by_a_resumed_run() {
    let scratch = Scratch::new("rules");
    let rule = [
        "--optimizer",
        "sgd",
        "--momentum",
        "0.8",
        "--schedule",
        "step:10:0.5",
    ];
    let words = [&rule[..], &["--warmup", "0", "--eval-every", "10"]].concat();
    text(
        &scratch,
        &[&words[..], &["--steps", "40", "--out", "whole"]].concat(),
    );
    let rates: Vec<f64> = fs::read_to_string(scratch.path("whole/metrics.jsonl"))
        .unwrap()
        .lines()
        .filter(|line| line.contains("validation"))
        .map(|line| {
            let report: serde_json::Value = serde_json::from_str(line).unwrap();
            report["lr"].as_f64().unwrap()
        })
        .collect();
    assert_eq!(rates, [0.01, 0.005, 0.0025, 0.00125]);
    text(
        &scratch,
        &[&words[..], &["--steps", "20", "--out", "half"]].concat(),
    );
    let on = ["train", "--resume", "--out", "half", "--device", "cpu"];
    scratch.done(&[&on[..], &["--steps", "40"]].concat());
    let last = |run: &str| losses(&scratch.path(run)).pop().unwrap();
    assert_eq!(last("half"), last("whole"));
    for (words, message) in [
        (&["--optimizer", "adamw"][..], "was begun with kind \"sgd\""),
        (
            &["--schedule", "linear"],
            "was begun with schedule \"step:10:0.5\"",
        ),
    ] {
        scratch.refused(&[&on[..], words].concat(), message);
    }
    let new = tiny(&["train", "fox.txt"]);
    scratch.refused(
        &[&new[..], &["--momentum", "0.5"]].concat(),
        "for --optimizer sgd",
    );
    let momentum = ["--optimizer", "sgd", "--momentum", "1"];
    scratch.refused(
        &[&new[..], &momentum].concat(),
        "--momentum 1: must be from 0",
    );
    let output = scratch.run(&[&new[..], &["--schedule", "step:0:2"]].concat());
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        error.contains("must be cosine, linear, constant"),
        "{error}"
    );
}

#[test]
fn a_text_is_passed_over_as_often_as_asked() {
    let scratch = Scratch::new("epochs");
    // 1620 of 1800 characters train, 64 a step: 25.3 steps a pass.
    let said = text(&scratch, &["--epochs", "2", "--out", "run"]);
    assert!(said.contains("51 steps of 4 sequences"), "{said}");
    let last = losses(&scratch.path("run")).pop().unwrap();
    assert!(last.contains("\"epoch\":2.01"), "{last}");
    let endless = ["train", "--epochs", "1", "--device", "cpu"];
    scratch.refused(&endless, "--epochs is for a text");
}

#[test]
fn metrics_go_to_tensorboard_and_a_budget_is_watched() {
    let scratch = Scratch::new("events");
    fs::write(scratch.path("fox.txt"), corpus()).unwrap();
    let words = [
        "--tensorboard",
        "--memory-budget",
        "1kB",
        "--steps",
        "20",
        "--out",
        "run",
    ];
    let output = scratch.run(&[tiny(&["train", "fox.txt"]), words.to_vec()].concat());
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{error}");
    assert!(
        error.contains("warning: the run is expected to take"),
        "{error}"
    );
    assert!(
        error.contains("more than --memory-budget 0.0 MB"),
        "{error}"
    );
    let events = scratch.path("run/events.out.tfevents.0.riverrun");
    let bytes = fs::read(&events).unwrap();
    let text = String::from_utf8_lossy(&bytes);
    for tag in [
        "brain.Event:2",
        "loss/train",
        "loss/validation",
        "learning_rate",
    ] {
        assert!(text.contains(tag), "{tag}");
    }
    // One file for the whole run: what a resumed run repeats is in it once.
    let on = [
        "train",
        "--resume",
        "--out",
        "run",
        "--tensorboard",
        "--steps",
        "30",
    ];
    scratch.done(&[&on[..], &["--device", "cpu"]].concat());
    let longer = fs::read(&events).unwrap();
    let count = |bytes: &[u8], tag: &str| String::from_utf8_lossy(bytes).matches(tag).count();
    let reports = losses(&scratch.path("run"));
    let of = |split: &str| reports.iter().filter(|line| line.contains(split)).count();
    assert_eq!(count(&longer, "loss/train"), of("\"train\""));
    assert_eq!(count(&longer, "loss/validation"), of("\"validation\""));
}

#[test]
fn sums_are_learned() {
    let scratch = Scratch::new("adding");
    let words = [
        "train",
        "--task",
        "adding",
        "--context",
        "10",
        "--steps",
        "200",
        "--width",
        "16",
    ];
    let said = scratch.done(&[&words[..], &["--device", "cpu", "--out", "run"]].concat());
    assert!(said.contains("adding two marked numbers of 10"), "{said}");
    let found = said.split("mean squared error ").nth(1).unwrap();
    let found: f64 = found.split(' ').next().unwrap().parse().unwrap();
    assert!(found < 0.1, "{said}");
    let words = ["train", "--task", "adding", "--device", "cpu", "--model"];
    scratch.refused(&[&words[..], &["gpt2"]].concat(), "name a recurrent layer");
    scratch.refused(&[&words[..], &["mamba2"]].concat(), "no heads");
}

#[test]
fn the_average_of_weights_is_evaluated_and_gone_on_with() {
    let scratch = Scratch::new("average");
    let words = ["--average", "0.95", "--eval-every", "20", "--warmup", "0"];
    let words = [&words[..], &["--schedule", "constant"]].concat();
    let whole = ["--steps", "80", "--out", "whole"];
    text(&scratch, &[&words[..], &whole].concat());
    text(
        &scratch,
        &[&words[..], &["--steps", "40", "--out", "half"]].concat(),
    );
    let on = [
        "train", "--resume", "--out", "half", "--steps", "80", "--device", "cpu",
    ];
    scratch.done(&on);
    let last = |run: &str| losses(&scratch.path(run)).pop().unwrap();
    assert_eq!(last("half"), last("whole"));
    // The same steps, evaluated without it.
    let plain = ["--steps", "80", "--out", "plain"];
    text(&scratch, &[&words[2..], &plain].concat());
    let trained = |run: &str| -> Vec<String> {
        let lines = losses(&scratch.path(run));
        lines
            .into_iter()
            .filter(|line| line.contains("\"train\""))
            .collect()
    };
    assert_eq!(trained("plain"), trained("whole"));
    assert_ne!(last("plain"), last("whole"));
    let refused = [&words[2..], &["--average", "1"]].concat();
    let refused = [tiny(&["train", "fox.txt"]), refused].concat();
    scratch.refused(&refused, "--average 1: must be from 0");
}

#[test]
fn a_network_with_batch_norm_goes_on_to_the_same_numbers() {
    let scratch = Scratch::new("batch-norm");
    let words = [
        "train",
        "--task",
        "digits",
        "--batch-norm",
        "--batch",
        "8",
        "--device",
        "cpu",
    ];
    let words = [
        &words[..],
        &[
            "--eval-every",
            "10",
            "--warmup",
            "0",
            "--schedule",
            "constant",
        ],
    ]
    .concat();
    scratch.done(&[&words[..], &["--steps", "20", "--out", "whole"]].concat());
    scratch.done(&[&words[..], &["--steps", "10", "--out", "half"]].concat());
    let on = [
        "train", "--resume", "--out", "half", "--steps", "20", "--device", "cpu",
    ];
    scratch.done(&on);
    let last = |run: &str| losses(&scratch.path(run)).pop().unwrap();
    assert_eq!(last("half"), last("whole"));
    scratch.refused(
        &[&words[..], &["--net", "rows"]].concat(),
        "the networks conv and conv2 have it alone",
    );
    scratch.refused(
        &[&words[..], &["--dtype", "bf16", "-q"]].concat(),
        "statistics, which are in f32",
    );
}

#[test]
fn a_model_is_written_for_onnx() {
    let scratch = Scratch::new("onnx");
    text(&scratch, &["--steps", "10", "--out", "run"]);
    let said = scratch.done(&["export", "run"]);
    assert!(said.contains("operators of version 20"), "{said}");
    let bytes = fs::read(scratch.path("run/model.onnx")).unwrap();
    assert!(String::from_utf8_lossy(&bytes).contains("h_n_0"));
    scratch.done(&["export", "run", "--out", "elsewhere.onnx"]);
    assert_eq!(fs::read(scratch.path("elsewhere.onnx")).unwrap(), bytes);
    text(
        &scratch,
        &["--model", "kda", "--steps", "10", "--out", "heads"],
    );
    scratch.refused(&["export", "heads"], "a layer with heads has no ONNX form");
    scratch.refused(&["export", "nothing"], "is not a run folder");
}
