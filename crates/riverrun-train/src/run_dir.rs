//! The folder of a run.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{Error, Report, RunConfig};

/// The folder of a run.
///
/// | file | content |
/// | --- | --- |
/// | `config.json` | [`RunConfig`](crate::RunConfig) |
/// | `metrics.jsonl` | one [`Report`] a line |
/// | `checkpoint/` | the latest state: `model.bpk`, AdamW's moments, `progress.json` |
/// | `best/` | `model.bpk` with the lowest validation loss so far, and its `report.json` |
/// | `loss.svg`, `loss.png` | the curves |
///
/// Files are written beside their place and renamed into it, folders likewise: whatever happens,
/// what is there is whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunDir(PathBuf);

impl RunDir {
    /// Makes the folder of a new run, with the folders above it.
    ///
    /// # Errors
    /// A folder that holds a run or anything else; one that cannot be made.
    pub fn create(path: impl Into<PathBuf>) -> Result<Self, Error> {
        let path = path.into();
        if path.join("config.json").exists() {
            return Err(Error::RunExists(path));
        }
        fs::create_dir_all(&path).map_err(|error| Error::write(&path, error))?;
        let mut entries = fs::read_dir(&path).map_err(|error| Error::read(&path, error))?;
        if entries.next().is_some() {
            return Err(Error::NotEmpty(path));
        }
        Ok(Self(path))
    }

    /// Makes the first of `root/name-001`, `root/name-002`, … that is not there yet.
    ///
    /// # Errors
    /// A folder that cannot be made.
    pub fn next(root: impl AsRef<Path>, name: &str) -> Result<Self, Error> {
        let root = root.as_ref();
        fs::create_dir_all(root).map_err(|error| Error::write(root, error))?;
        for number in 1.. {
            let path = root.join(format!("{name}-{number:03}"));
            match fs::create_dir(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(Error::write(path, error)),
            }
        }
        unreachable!("the numbers do not run out")
    }

    /// Opens the folder of a run that has begun.
    ///
    /// # Errors
    /// A folder without `config.json`.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, Error> {
        let dir = Self(path.into());
        if !dir.config_path().is_file() {
            return Err(Error::NotARun(dir.0));
        }
        Ok(dir)
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Reads the configuration.
    ///
    /// # Errors
    /// A file that is missing or not a configuration.
    pub fn config(&self) -> Result<RunConfig, Error> {
        read_json(&self.config_path())
    }

    /// Writes the configuration.
    ///
    /// # Errors
    /// A disk that is full or refuses.
    pub fn write_config(&self, config: &RunConfig) -> Result<(), Error> {
        write_json(&self.config_path(), config)
    }

    /// Adds a line to the metrics.
    ///
    /// # Errors
    /// A disk that is full or refuses.
    pub fn append(&self, report: &Report) -> Result<(), Error> {
        let path = self.metrics_path();
        let mut line = serde_json::to_string(report).map_err(|error| Error::write(&path, error))?;
        line.push('\n');
        OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .and_then(|mut file| file.write_all(line.as_bytes()))
            .map_err(|error| Error::write(path, error))
    }

    /// Reads the metrics; none if there are none yet. A last line that was cut short is left out.
    ///
    /// # Errors
    /// A file that cannot be read; a line before the last that is not a report.
    pub fn metrics(&self) -> Result<Vec<Report>, Error> {
        let path = self.metrics_path();
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(Error::read(path, error)),
        };
        text.split_inclusive('\n')
            .filter(|line| line.ends_with('\n'))
            .map(|line| serde_json::from_str(line).map_err(|error| Error::damaged(&path, error)))
            .collect()
    }

    /// Drops the metrics after a step, which a resumed run will write again.
    ///
    /// # Errors
    /// As [`metrics`](Self::metrics), and a disk that is full or refuses.
    pub fn cut_metrics(&self, step: u64) -> Result<Vec<Report>, Error> {
        let mut reports = self.metrics()?;
        reports.retain(|report| report.step <= step);
        let path = self.metrics_path();
        let mut text = String::new();
        for report in &reports {
            text += &serde_json::to_string(report).map_err(|error| Error::write(&path, error))?;
            text.push('\n');
        }
        if path.exists() {
            write_atomic(&path, text.as_bytes())?;
        }
        Ok(reports)
    }

    /// The folder of the latest state. When a run died while it swapped two of them, the older.
    pub fn checkpoint(&self) -> Option<PathBuf> {
        self.folder("checkpoint")
    }

    /// The folder of the best model.
    pub fn best(&self) -> Option<PathBuf> {
        self.folder("best")
    }

    /// Where a curve goes: `loss.svg` or `loss.png`.
    pub fn curve_path(&self, extension: &str) -> PathBuf {
        self.0.join(format!("loss.{extension}"))
    }

    fn config_path(&self) -> PathBuf {
        self.0.join("config.json")
    }

    fn metrics_path(&self) -> PathBuf {
        self.0.join("metrics.jsonl")
    }

    fn folder(&self, name: &str) -> Option<PathBuf> {
        [name.to_string(), format!("{name}.old")]
            .iter()
            .map(|name| self.0.join(name))
            .find(|path| path.is_dir())
    }

    /// Fills a new folder and puts it in the place of the folder `name`.
    ///
    /// # Errors
    /// Those of `fill`, after which nothing has changed, and a disk that refuses.
    pub(crate) fn replace_folder(
        &self,
        name: &str,
        fill: impl FnOnce(&Path) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let (new, old, place) = (
            self.0.join(format!("{name}.new")),
            self.0.join(format!("{name}.old")),
            self.0.join(name),
        );
        // A leftover of a run that was killed at this point.
        remove_folder(&new)?;
        fs::create_dir(&new).map_err(|error| Error::write(&new, error))?;
        if let Err(error) = fill(&new) {
            // On a full disk every byte counts; the error of `fill` says more than one of this.
            let _ = fs::remove_dir_all(&new);
            return Err(error);
        }
        if place.exists() {
            remove_folder(&old)?;
            fs::rename(&place, &old).map_err(|error| Error::write(&old, error))?;
        }
        fs::rename(&new, &place).map_err(|error| Error::write(&place, error))?;
        remove_folder(&old)
    }
}

fn remove_folder(path: &Path) -> Result<(), Error> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::write(path, error)),
        _ => Ok(()),
    }
}

/// Writes a file beside its place and renames it into it.
pub(crate) fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let mut beside = OsString::from(".");
    beside.push(path.file_name().unwrap_or_default());
    beside.push(".new");
    let beside = path.with_file_name(beside);
    let written = File::create(&beside)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&beside, path));
    written.map_err(|error| {
        let _ = fs::remove_file(&beside);
        Error::write(path, error)
    })
}

pub(crate) fn write_json(path: &Path, value: &impl Serialize) -> Result<(), Error> {
    let text = serde_json::to_string_pretty(value).map_err(|error| Error::write(path, error))?;
    write_atomic(path, (text + "\n").as_bytes())
}

pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, Error> {
    let text = fs::read_to_string(path).map_err(|error| Error::read(path, error))?;
    serde_json::from_str(&text).map_err(|error| Error::damaged(path, error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Split;

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
            skipped: None,
            tokens_per_s: 1e4,
            lr: 1e-3,
            seconds: 0.5,
        }
    }

    #[test]
    fn a_folder_in_use_is_refused() {
        let scratch = Scratch::new("in-use");
        let dir = RunDir::create(&scratch.0).unwrap();
        dir.write_config(&RunConfig::selective_copy()).unwrap();
        assert!(matches!(
            RunDir::create(&scratch.0),
            Err(Error::RunExists(_))
        ));
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
        let torn = fs::read_to_string(&path).unwrap() + "{\"step\": 4, \"spl";
        fs::write(&path, torn).unwrap();
        assert_eq!(dir.cut_metrics(2).unwrap(), [report(1), report(2)]);
        assert_eq!(dir.metrics().unwrap(), [report(1), report(2)]);
    }

    #[test]
    fn a_failed_replacement_changes_nothing() {
        let scratch = Scratch::new("replace");
        let dir = RunDir::create(&scratch.0).unwrap();
        let fill = |text: &'static str| {
            move |path: &Path| write_atomic(&path.join("file"), text.as_bytes())
        };
        dir.replace_folder("best", fill("first")).unwrap();
        dir.replace_folder("best", fill("second")).unwrap();
        let refused = dir.replace_folder("best", |path| {
            fill("third")(path)?;
            Err(Error::Invalid("no".into()))
        });
        assert!(refused.is_err());
        let best = dir.best().unwrap();
        assert_eq!(fs::read_to_string(best.join("file")).unwrap(), "second");
        assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 1);
    }
}
