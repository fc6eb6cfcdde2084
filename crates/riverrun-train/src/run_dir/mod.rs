//! The folder of a run.

pub(crate) mod checksums;
mod files;
mod lines;
mod lock;
mod metrics;
mod module;
mod progress;
mod tensorboard;
#[cfg(test)]
mod tests;

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Error;
use files::remove_folder;
pub(crate) use files::write_atomic;
pub(crate) use files::{read_json, write_json};
pub(crate) use module::{load_module, save_module};
pub(crate) use progress::Progress;
pub(crate) use tensorboard::Events;

const CONFIG: &str = "config.json";
const METRICS: &str = "metrics.jsonl";
const CHECKPOINT: &str = "checkpoint";

/// The folder of the state after a step, once there is a later one.
fn kept_name(step: u64) -> String {
    format!("{CHECKPOINT}-{step}")
}

/// The folder of a run.
///
/// | file | content |
/// | --- | --- |
/// | `config.json` | the configuration: [`RunConfig`](crate::RunConfig) of a language model |
/// | `metrics.jsonl` | one [`Report`](crate::Report) a line |
/// | `trajectory.jsonl` | one [`Sighting`](crate::hybrid::Sighting) a line, of a hybrid run that records it |
/// | `checkpoint/` | the latest state: `model.bpk`, AdamW's moments, `progress.json`, and their checksums |
/// | `checkpoint-N/` | the state after step `N`, where [`keep`](crate::TrainingConfig::keep) is above 1 |
/// | `best/` | `model.bpk` with the lowest validation loss so far, its `report.json`, and their checksums |
/// | `loss.svg`, `loss.png` | the curves |
/// | `events.out.tfevents.0.riverrun` | the metrics for TensorBoard, where they are asked for |
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

    /// The folder of a run that another rank of it writes: for messages.
    pub fn of_another(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            lock: None,
            made: false,
        }
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
            metrics::TRAJECTORY,
            "loss.svg",
            "loss.png",
            "checkpoint.new",
            "best.new",
            tensorboard::NAME,
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

    /// The folder of the latest state. When a run died while it swapped two of them, the older.
    pub fn checkpoint(&self) -> Option<PathBuf> {
        let earlier = || Some(self.path.join(kept_name(*self.kept().last()?)));
        self.folder(CHECKPOINT).or_else(earlier)
    }

    /// The steps of the earlier states that are kept beside the latest, in ascending order.
    pub fn kept(&self) -> Vec<u64> {
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        let step = |name: &str| {
            name.strip_prefix(CHECKPOINT)?
                .strip_prefix('-')?
                .parse()
                .ok()
        };
        let mut steps: Vec<u64> = entries
            .filter_map(|entry| step(entry.file_name().to_str()?))
            .collect();
        steps.sort_unstable();
        steps
    }

    /// Makes the state that was kept after `step` the latest, and removes those after it.
    ///
    /// # Errors
    /// [`Error::NotKept`] for a step without a state; one that is damaged; a disk that refuses.
    pub fn return_to(&self, step: u64) -> Result<(), Error> {
        let kept = self.kept();
        if !kept.contains(&step) {
            if self.checkpoint().is_some() && self.steps_done()? == step {
                return Ok(());
            }
            return Err(Error::NotKept { step, kept });
        }
        let state = self.path.join(kept_name(step));
        checksums::check(&state)?;
        for later in kept.into_iter().filter(|&later| later > step) {
            remove_folder(&self.path.join(kept_name(later)))?;
        }
        for name in [CHECKPOINT.to_string(), format!("{CHECKPOINT}.old")] {
            remove_folder(&self.path.join(name))?;
        }
        let place = self.path.join(CHECKPOINT);
        fs::rename(&state, &place).map_err(|error| Error::write(&place, error))
    }

    /// Puts a new state in the place of the latest. Of the earlier ones, the last `keep - 1` stay.
    ///
    /// # Errors
    /// As [`replace_folder`](Self::replace_folder).
    pub(crate) fn replace_checkpoint(
        &self,
        keep: usize,
        step: u64,
        fill: impl FnOnce(&Path) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let place = self.path.join(CHECKPOINT);
        let before = match keep > 1 && place.is_dir() {
            true => Some(Progress::read(&place)?.step).filter(|&before| before != step),
            false => None,
        };
        self.replace(CHECKPOINT, before.map(kept_name), fill)?;
        let kept = self.kept();
        let most = keep.saturating_sub(1);
        for old in &kept[..kept.len().saturating_sub(most)] {
            remove_folder(&self.path.join(kept_name(*old)))?;
        }
        Ok(())
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
    /// The errors of `fill`, after which nothing has changed, and a disk that refuses.
    pub(crate) fn replace_folder(
        &self,
        name: &str,
        fill: impl FnOnce(&Path) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.replace(name, None, fill)
    }

    /// As [`replace_folder`](Self::replace_folder); the folder before gets another name, where there is one for it.
    fn replace(
        &self,
        name: &str,
        before: Option<String>,
        fill: impl FnOnce(&Path) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let (new, old, place) = (
            self.path.join(format!("{name}.new")),
            self.path
                .join(before.clone().unwrap_or(format!("{name}.old"))),
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
        match before {
            None => remove_folder(&old),
            Some(_) => Ok(()),
        }
    }
}
