//! What `riverrun tune` has measured on a card: a table in the user's folder, which is asked before the rules in code.
//!
//! A table is a file of its card, `riverrun/tuning/<card>.tuning` in the user's cache folder. It is read once, when the first
//! kernel that asks it is planned; a launch looks it up without a lock. The environment variable `RIVERRUN_TUNING` names another
//! file, and `RIVERRUN_TUNING=off` leaves tables out. A file that is damaged, of another format or of another card is not used, and
//! a warning says so: the rules stand for it.
//!
//! ```text
//! riverrun tuning 1
//! device NVIDIA H200
//! scan raw bf16 forward 512 4:32:8:1:1
//! ```
//!
//! A scan with another tuning adds up in another order: its results differ within rounding, and are the same bits each time.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::OnceLock;

use cubecl::client::Client;

use crate::recurrence::gpu::{Class, Tuning};

/// Switches tables off, or names the file to read.
const VARIABLE: &str = "RIVERRUN_TUNING";
/// The first line: the format with its version.
const FORMAT: &str = "riverrun tuning 1";
/// The end of a table's file name.
const EXTENSION: &str = "tuning";

/// What was measured to be faster than the rules, on one kind of card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    device: String,
    file: Option<PathBuf>,
    scans: Vec<(Class, Tuning)>,
}

impl Table {
    /// An empty table of a card, by the name that the card has for itself.
    pub fn new(device: &str) -> Self {
        Self {
            device: device.into(),
            file: None,
            scans: Vec::new(),
        }
    }

    /// The table in use on a device.
    pub fn of(client: &Client) -> Option<&'static Self> {
        static TABLES: OnceLock<Vec<Table>> = OnceLock::new();
        let device = || &client.properties().identity.name;
        let tables = TABLES.get_or_init(|| load(device()));
        tables.iter().find(|table| table.device == *device())
    }

    /// The table in a file.
    ///
    /// # Errors
    /// A file that cannot be read, is damaged, or has another format.
    pub fn read(file: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(file).map_err(|error| error.to_string())?;
        let table: Self = text.parse()?;
        Ok(Self {
            file: Some(file.into()),
            ..table
        })
    }

    /// The name of the card.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// The file that it was read from.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// The number of its entries.
    pub fn len(&self) -> usize {
        self.scans.len()
    }

    /// Whether it has no entries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The tuning of a class of scans; of the other type of 16 bits where only that was measured.
    pub fn scan(&self, class: Class) -> Option<Tuning> {
        let find = |class: Class| self.scans.iter().find(|(known, _)| *known == class);
        let found = find(class).or_else(|| find(class.other_half()?));
        found.map(|(_, tuning)| *tuning)
    }

    /// Sets the tuning of a class, or removes it.
    pub fn set_scan(&mut self, class: Class, tuning: Option<Tuning>) {
        self.scans.retain(|(known, _)| *known != class);
        self.scans.extend(tuning.map(|tuning| (class, tuning)));
    }
}

/// The content of the file.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{FORMAT}\ndevice {}", self.device)?;
        let mut scans = self.scans.iter();
        scans.try_for_each(|(class, tuning)| writeln!(f, "scan {class} {tuning}"))
    }
}

impl FromStr for Table {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut lines = text.lines();
        if lines.next() != Some(FORMAT) {
            return Err(format!("its first line is not `{FORMAT}`"));
        }
        let device = lines.next().and_then(|line| line.strip_prefix("device "));
        let mut table = Self::new(device.ok_or("its second line names no device")?);
        for line in lines {
            let entry = line
                .strip_prefix("scan ")
                .and_then(|line| line.rsplit_once(' '));
            let (class, tuning) = entry.ok_or_else(|| format!("`{line}` is no entry"))?;
            let (class, tuning) = (class.parse()?, tuning.parse::<Tuning>()?);
            if !tuning.fits(class) {
                return Err(format!("{tuning} does not fit {class}"));
            }
            table.set_scan(class, Some(tuning));
        }
        Ok(table)
    }
}

/// The tables of this process, when the first device that asks is `device`.
fn load(device: &str) -> Vec<Table> {
    let (files, device) = match variable() {
        Some(name) if is_off(&name) => return Vec::new(),
        Some(name) => (vec![PathBuf::from(name)], Some(device)),
        None => (kept(), None),
    };
    let warn = |file: &Path, reason: &String| {
        tracing::warn!("the tuning table {} is not used: {reason}", file.display());
    };
    let tables = files.iter().filter_map(|file| {
        let table = usable(file, device);
        table.inspect_err(|reason| warn(file, reason)).ok()
    });
    tables.collect()
}

/// The table in a file, if it is one of `device`, or else of the card that the file is named for.
fn usable(file: &Path, device: Option<&str>) -> Result<Table, String> {
    let table = Table::read(file)?;
    let own = match device {
        Some(device) => table.device == device,
        None => kept_file(&table.device).is_some_and(|kept| kept == file),
    };
    match own {
        true => Ok(table),
        false => Err(format!("it is of another card, {}", table.device)),
    }
}

fn variable() -> Option<OsString> {
    std::env::var_os(VARIABLE).filter(|name| !name.is_empty())
}

fn is_off(name: &OsStr) -> bool {
    name == "off" || name == "0"
}

/// Where the table of a device is: the file that `RIVERRUN_TUNING` names, else one in the user's folder. `None` where there is no such
/// folder.
pub fn file(device: &str) -> Option<PathBuf> {
    match variable().filter(|name| !is_off(name)) {
        Some(name) => Some(name.into()),
        None => kept_file(device),
    }
}

fn kept_file(device: &str) -> Option<PathBuf> {
    let word = |c: char| {
        if c.is_ascii_alphanumeric() {
            c.to_ascii_lowercase()
        } else {
            '-'
        }
    };
    let name: String = device.chars().map(word).collect();
    Some(folder()?.join(format!("{name}.{EXTENSION}")))
}

fn folder() -> Option<PathBuf> {
    Some(user_cache()?.join("riverrun").join("tuning"))
}

/// The tables in the user's folder.
fn kept() -> Vec<PathBuf> {
    let entries = folder().and_then(|folder| std::fs::read_dir(folder).ok());
    let files = entries
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    files
        .filter(|file| file.extension().is_some_and(|end| end == EXTENSION))
        .collect()
}

/// The user's folder for files that programs can make again.
#[doc(hidden)]
pub fn user_cache() -> Option<PathBuf> {
    let folder = |name: &str| {
        let folder = PathBuf::from(std::env::var_os(name)?);
        folder.is_absolute().then_some(folder)
    };
    if cfg!(windows) {
        return folder("LOCALAPPDATA");
    }
    folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        "riverrun tuning 1\ndevice NVIDIA H200\nscan raw bf16 forward 512 4:32:8:1:1\n";

    #[test]
    fn a_table_is_read_as_it_was_written() {
        let table: Table = TEXT.parse().unwrap();
        assert_eq!(table.to_string(), TEXT);
        let class: Class = "raw f16 forward 512".parse().unwrap();
        let found = table.scan(class).map(|tuning| tuning.to_string());
        assert_eq!(found.as_deref(), Some("4:32:8:1:1"), "of the other 16 bits");
        let f32 = "raw f32 forward 512".parse().unwrap();
        assert_eq!(table.scan(f32), None);
        let mut emptied = table.clone();
        emptied.set_scan(class.other_half().unwrap(), None);
        assert_eq!(emptied, Table::new("NVIDIA H200"));
    }

    #[test]
    fn damaged_tables_and_entries_that_do_not_fit_are_refused() {
        let entry = |tuning: &str| TEXT.replace("4:32:8:1:1", tuning);
        for wrong in [
            String::new(),
            TEXT.replace("tuning 1", "tuning 2"),
            TEXT.replace("device", "card"),
            TEXT.replace("scan", "scam"),
            TEXT.replace("512", "511"),
            TEXT[..TEXT.len() - 6].into(),
            // Too many registers, planes that are no power of two, no steps, numbers beyond a word.
            entry("8:128:16:1:1"),
            entry("4:32:7:1:1"),
            entry("4:0:8:1:1"),
            entry("4:32:64:1:1"),
            entry("4:32:8:99999999999:1"),
            entry("4294967295:4294967295:8:1:1"),
            entry("4:32:16:2:1"),
        ] {
            assert!(wrong.parse::<Table>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_table_of_another_card_is_not_used() {
        let name = format!("riverrun-{}-nvidia-h200.tuning", std::process::id());
        let file = std::env::temp_dir().join(name);
        let reason = |device| usable(&file, device).map(|_| ()).unwrap_err();
        assert!(!reason(Some("NVIDIA H200")).is_empty(), "there is no file");
        std::fs::write(&file, TEXT).unwrap();
        let found = usable(&file, Some("NVIDIA H200")).unwrap();
        assert_eq!((found.len(), found.file()), (1, Some(&*file)));
        // As a table of the card that it names, it would be in another place.
        for device in [Some("NVIDIA A100"), None] {
            assert!(reason(device).contains("another card, NVIDIA H200"));
        }
        std::fs::remove_file(&file).unwrap();
    }
}
