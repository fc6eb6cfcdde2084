//! The folder of a run.

pub(crate) mod checksums;
mod files;
mod lock;
mod progress;

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{Error, Report};
use files::remove_folder;
pub(crate) use files::{read_json, write_atomic, write_json};
pub(crate) use progress::Progress;

const CONFIG: &str = "config.json";
const METRICS: &str = "metrics.jsonl";

/// The folder of a run.
///
/// | file | content |
/// | --- | --- |
/// | `config.json` | the configuration: [`RunConfig`](crate::RunConfig) of a language model |
/// | `metrics.jsonl` | one [`Report`] a line |
/// | `checkpoint/` | the latest state: `model.bpk`, AdamW's moments, `progress.json`, and their checksums |
/// | `best/` | `model.bpk` with the lowest validation loss so far, its `report.json`, and their checksums |
/// | `loss.svg`, `loss.png` | the curves |
/// | `lock` | empty; locked while a program trains in the folder |
///
/// Files are written beside their place and renamed into it, folders likewise: whatever happens,
/// each of them is whole or not there.
#[derive(Debug, Clone)]
pub struct RunDir {
    path: PathBuf,
    /// Held by those who train.
    lock: Option<Arc<File>>,
    /// Whether this program has made the folder.
    made: bool,
}

impl RunDir {
    /// Makes the folder of a new run, with the folders above it, and locks it.
    ///
    /// # Errors
    /// A folder that holds a run or anything else, or that another program has locked; one that cannot be made.
    pub fn create(path: impl Into<PathBuf>) -> Result<Self, Error> {
        let path = path.into();
        Self::vacant(&path)?;
        let made = !path.exists();
        fs::create_dir_all(&path).map_err(|error| Error::write(&path, error))?;
        let dir = Self {
            path,
            lock: None,
            made,
        };
        let dir = dir.lock()?;
        // Another program may have begun, and ended, since the first look.
        Self::vacant(&dir.path)?;
        Ok(dir)
    }

    /// Checks that a new run could have this folder: there is none, or an empty one.
    ///
    /// # Errors
    /// [`Error::RunExists`], [`Error::NotEmpty`]; a folder that cannot be read.
    pub fn vacant(path: impl AsRef<Path>) -> Result<(), Error> {
        let path = path.as_ref();
        if path.join(CONFIG).exists() {
            return Err(Error::RunExists(path.into()));
        }
        let entries = match fs::read_dir(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            entries => entries.map_err(|error| Error::read(path, error))?,
        };
        for entry in entries {
            let entry = entry.map_err(|error| Error::read(path, error))?;
            // Left by a program that was killed before it wrote its configuration.
            if entry.file_name() != lock::NAME && entry.file_name() != ".config.json.new" {
                return Err(Error::NotEmpty(path.into()));
            }
        }
        Ok(())
    }

    /// Makes the first of `root/name-001`, `root/name-002`, … that is not there yet, and locks it.
    ///
    /// # Errors
    /// A folder that cannot be made.
    pub fn next(root: impl AsRef<Path>, name: &str) -> Result<Self, Error> {
        let root = root.as_ref();
        fs::create_dir_all(root).map_err(|error| Error::write(root, error))?;
        for number in 1.. {
            let path = root.join(format!("{name}-{number:03}"));
            match fs::create_dir(&path) {
                Ok(()) => {
                    let dir = Self {
                        path,
                        lock: None,
                        made: true,
                    };
                    return dir.lock();
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(Error::write(path, error)),
            }
        }
        unreachable!("the numbers do not run out")
    }

    /// Opens the folder of a run that has begun, to read.
    ///
    /// # Errors
    /// A folder without `config.json`.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, Error> {
        let dir = Self {
            path: path.into(),
            lock: None,
            made: false,
        };
        if !dir.config_path().is_file() {
            return Err(Error::NotARun(dir.path));
        }
        Ok(dir)
    }

    /// Locks the folder, to train in it, until this value and its clones are dropped.
    ///
    /// # Errors
    /// [`Error::Locked`] where another program has locked it; a folder that cannot be written.
    pub fn lock(mut self) -> Result<Self, Error> {
        if self.lock.is_none() {
            self.lock = Some(Arc::new(lock::lock(&self.path)?));
        }
        Ok(self)
    }

    /// Removes a folder that this program has made and in which no checkpoint has been saved: nobody could go on from it.
    pub(crate) fn discard_unless_begun(&self) {
        if self.lock.is_none() || self.checkpoint().is_some() || self.best().is_some() {
            return;
        }
        let known = [
            CONFIG,
            METRICS,
            "loss.svg",
            "loss.png",
            "checkpoint.new",
            "best.new",
            lock::NAME,
        ];
        for name in known {
            let path = self.path.join(name);
            // What cannot be removed stays: the error that ended the run says more than one of this.
            let _ = match path.is_dir() {
                true => fs::remove_dir_all(path),
                false => fs::remove_file(path),
            };
        }
        if self.made {
            let _ = fs::remove_dir(&self.path);
        }
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the configuration.
    ///
    /// # Errors
    /// A file that is missing or not such a configuration.
    pub fn config<C: DeserializeOwned>(&self) -> Result<C, Error> {
        read_json(&self.config_path())
    }

    /// The name of the run's task, `task.kind` in its configuration, if it has one.
    ///
    /// # Errors
    /// As [`config`](Self::config).
    pub fn task(&self) -> Result<Option<String>, Error> {
        let config: serde_json::Value = self.config()?;
        let kind = config.pointer("/task/kind").and_then(|kind| kind.as_str());
        Ok(kind.map(String::from))
    }

    /// Writes the configuration.
    ///
    /// # Errors
    /// A disk that is full or refuses.
    pub fn write_config(&self, config: &impl Serialize) -> Result<(), Error> {
        write_json(&self.config_path(), config)
    }

    /// The steps that the latest checkpoint has done; 0 where there is none.
    ///
    /// # Errors
    /// A checkpoint that is damaged.
    pub fn steps_done(&self) -> Result<u64, Error> {
        match self.checkpoint() {
            Some(folder) => {
                checksums::check(&folder)?;
                Ok(Progress::read(&folder)?.step)
            }
            None => Ok(0),
        }
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
        Ok(self
            .lines()?
            .into_iter()
            .map(|(_, report)| report)
            .collect())
    }

    /// Drops the metrics after a step, which a resumed run will write again. Lines that stay keep their bytes.
    ///
    /// # Errors
    /// As [`metrics`](Self::metrics), and a disk that is full or refuses.
    pub fn cut_metrics(&self, step: u64) -> Result<Vec<Report>, Error> {
        let mut lines = self.lines()?;
        lines.retain(|(_, report)| report.step <= step);
        let text: String = lines.iter().map(|(line, _)| line.as_str()).collect();
        let path = self.metrics_path();
        if fs::metadata(&path).is_ok_and(|file| file.len() != text.len() as u64) {
            write_atomic(&path, text.as_bytes())?;
        }
        Ok(lines.into_iter().map(|(_, report)| report).collect())
    }

    /// The whole lines of the metrics, with what they say.
    fn lines(&self) -> Result<Vec<(String, Report)>, Error> {
        let path = self.metrics_path();
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(Error::read(path, error)),
        };
        bytes
            .split_inclusive(|&byte| byte == b'\n')
            .filter(|line| line.ends_with(b"\n"))
            .enumerate()
            .map(|(i, line)| {
                let damaged =
                    |reason: String| Error::damaged(&path, format!("line {}: {reason}", i + 1));
                let text = str::from_utf8(line).map_err(|error| damaged(error.to_string()))?;
                let report =
                    serde_json::from_str(text).map_err(|error| damaged(error.to_string()))?;
                Ok((text.to_string(), report))
            })
            .collect()
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
        self.path.join(format!("loss.{extension}"))
    }

    fn config_path(&self) -> PathBuf {
        self.path.join(CONFIG)
    }

    fn metrics_path(&self) -> PathBuf {
        self.path.join(METRICS)
    }

    fn folder(&self, name: &str) -> Option<PathBuf> {
        [name.to_string(), format!("{name}.old")]
            .iter()
            .map(|name| self.path.join(name))
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
            self.path.join(format!("{name}.new")),
            self.path.join(format!("{name}.old")),
            self.path.join(name),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RunConfig, Split};

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
        let fill = |text: &'static str| {
            move |path: &Path| write_atomic(&path.join("file"), text.as_bytes())
        };
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
}
