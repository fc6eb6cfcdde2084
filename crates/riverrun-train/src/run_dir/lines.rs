//! Files with a JSON value a line, which grow with a run.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::files::write_atomic;
use crate::Error;

/// Adds a line.
pub(super) fn append(path: &Path, value: &impl Serialize) -> Result<(), Error> {
    let mut line = serde_json::to_string(value).map_err(|error| Error::write(path, error))?;
    line.push('\n');
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .and_then(|mut file| file.write_all(line.as_bytes()))
        .map_err(|error| Error::write(path, error))
}

/// The whole lines, and the value on each; none where there is no file. A last line that was cut short is left out.
pub(super) fn read<T: DeserializeOwned>(path: &Path) -> Result<Vec<(String, T)>, Error> {
    let bytes = match fs::read(path) {
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
                |reason: String| Error::damaged(path, format!("line {}: {reason}", i + 1));
            let text = str::from_utf8(line).map_err(|error| damaged(error.to_string()))?;
            let value = serde_json::from_str(text).map_err(|error| damaged(error.to_string()))?;
            Ok((text.to_string(), value))
        })
        .collect()
}

/// Drops the lines that are not to be kept. Lines that stay keep their bytes.
pub(super) fn cut<T: DeserializeOwned>(
    path: &Path,
    keep: impl Fn(&T) -> bool,
) -> Result<Vec<T>, Error> {
    let mut lines = read(path)?;
    lines.retain(|(_, value)| keep(value));
    let text: String = lines.iter().map(|(line, _)| line.as_str()).collect();
    if fs::metadata(path).is_ok_and(|file| file.len() != text.len() as u64) {
        write_atomic(path, text.as_bytes())?;
    }
    Ok(lines.into_iter().map(|(_, value)| value).collect())
}
