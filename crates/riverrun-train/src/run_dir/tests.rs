//! Folders of runs: locks, numbers, metrics, replacement.

use std::fs;
use std::path::{Path, PathBuf};

use super::*;
use crate::{Report, RunConfig, Split};

/// A folder that goes away with its test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("riverrun-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn report(step: u64) -> Report {
    Report {
        step,
        split: Split::Train,
        loss: 1.0 / 3.0,
        accuracy: None,
        epoch: None,
        skipped: None,
        gradient: None,
        gradients: Default::default(),
        hybrid: None,
        tokens_per_s: 1e4,
        lr: 1e-3,
        seconds: 0.5,
    }
}

#[test]
fn a_folder_in_use_is_refused() {
    let scratch = Scratch::new("in-use");
    let dir = RunDir::create(&scratch.0).unwrap();
    assert!(matches!(RunDir::create(&scratch.0), Err(Error::Locked(_))));
    dir.write_config(&RunConfig::selective_copy()).unwrap();
    assert!(matches!(
        RunDir::create(&scratch.0),
        Err(Error::RunExists(_))
    ));
    let reader = RunDir::open(&scratch.0).unwrap();
    assert!(matches!(reader.clone().lock(), Err(Error::Locked(_))));
    drop(dir);
    drop(reader.lock().unwrap());
    fs::remove_file(scratch.0.join("config.json")).unwrap();
    assert!(RunDir::create(&scratch.0).is_ok());
    fs::write(scratch.0.join("notes"), "mine").unwrap();
    assert!(matches!(
        RunDir::create(&scratch.0),
        Err(Error::NotEmpty(_))
    ));
    assert!(matches!(RunDir::open(&scratch.0), Err(Error::NotARun(_))));
}

#[test]
fn numbered_folders_do_not_collide() {
    let scratch = Scratch::new("numbered");
    assert!(
        RunDir::next(&scratch.0, "copy")
            .unwrap()
            .path()
            .ends_with("copy-001")
    );
    assert!(
        RunDir::next(&scratch.0, "copy")
            .unwrap()
            .path()
            .ends_with("copy-002")
    );
    assert!(
        RunDir::next(&scratch.0, "text")
            .unwrap()
            .path()
            .ends_with("text-001")
    );
}

#[test]
fn metrics_are_cut_at_a_step_and_survive_a_torn_line() {
    let scratch = Scratch::new("metrics");
    let dir = RunDir::create(&scratch.0).unwrap();
    assert!(dir.metrics().unwrap().is_empty());
    for step in [1, 2, 3] {
        dir.append(&report(step)).unwrap();
    }
    let path = scratch.0.join("metrics.jsonl");
    let whole = fs::read_to_string(&path).unwrap();
    fs::write(&path, whole + "{\"step\": 4, \"spl").unwrap();
    assert_eq!(dir.cut_metrics(2).unwrap(), [report(1), report(2)]);
    assert_eq!(dir.metrics().unwrap(), [report(1), report(2)]);
    // Lines of another hand stay as they were written.
    let spaced = fs::read_to_string(&path).unwrap().replace(',', ", ");
    fs::write(&path, format!("{spaced}torn")).unwrap();
    assert_eq!(dir.cut_metrics(2).unwrap().len(), 2);
    assert_eq!(fs::read_to_string(&path).unwrap(), spaced);
    fs::write(&path, spaced.replacen("step", "stop", 1)).unwrap();
    let error = dir.cut_metrics(2).unwrap_err().to_string();
    assert!(
        error.contains("metrics.jsonl") && error.contains("line 1"),
        "{error}"
    );
}

#[test]
fn a_failed_replacement_changes_nothing() {
    let scratch = Scratch::new("replace");
    let dir = RunDir::create(&scratch.0).unwrap();
    let fill =
        |text: &'static str| move |path: &Path| write_atomic(&path.join("file"), text.as_bytes());
    dir.replace_folder("best", fill("first")).unwrap();
    dir.replace_folder("best", fill("second")).unwrap();
    let refused = dir.replace_folder("best", |path| {
        fill("third")(path)?;
        Err(Error::Unsupported("no".into()))
    });
    assert!(refused.is_err());
    let best = dir.best().unwrap();
    assert_eq!(fs::read_to_string(best.join("file")).unwrap(), "second");
    let mut left: Vec<_> = fs::read_dir(&scratch.0)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    left.sort();
    assert_eq!(left, ["best", "lock"]);
}

#[test]
fn a_folder_in_which_nothing_was_saved_goes_away() {
    let scratch = Scratch::new("discard");
    let dir = RunDir::create(&scratch.0).unwrap();
    dir.write_config(&RunConfig::selective_copy()).unwrap();
    dir.append(&report(1)).unwrap();
    dir.discard_unless_begun();
    assert!(!scratch.0.exists());

    let dir = RunDir::create(&scratch.0).unwrap();
    dir.replace_folder("checkpoint", |_| Ok(())).unwrap();
    dir.discard_unless_begun();
    assert!(scratch.0.join("checkpoint").is_dir());
}
