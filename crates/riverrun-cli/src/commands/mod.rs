//! The commands, one file or folder each.

pub mod bench;
pub mod cache;
pub mod devices;
pub mod export;
pub mod generate;
pub mod hybrid;
#[cfg(unix)]
pub mod launch;
mod memory;
pub mod plan;
pub mod train;
pub mod tune;
pub mod verify;

use std::path::Path;

use serde::Serialize;

use crate::failure::Failure;

/// Writes the file of `--json`.
fn write_json(path: &Path, report: &impl Serialize) -> Result<(), Failure> {
    let text =
        serde_json::to_string_pretty(report).map_err(|error| Failure::Bug(error.to_string()))?;
    std::fs::write(path, text)
        .map_err(|error| Failure::User(format!("{}: {error}", path.display())))
}
