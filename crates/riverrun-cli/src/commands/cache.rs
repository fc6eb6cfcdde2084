//! `riverrun cache`: the file that keeps compiled kernels and tuning from run to run.

use std::io::{Write, stdout};

use riverrun::device::{cached_kernels, clear_kernel_cache, kernel_cache};

use super::memory::megabytes;
use crate::args::CacheCommand;
use crate::failure::Failure;

/// Shows or clears the file.
pub fn run(what: CacheCommand) -> Result<(), Failure> {
    let mut out = stdout().lock();
    match (what, kernel_cache()) {
        (CacheCommand::List, _) => {
            writeln!(out, "kernel cache: {}", summary())?;
            for kind in cached_kernels() {
                let (name, entries) = (kind.name, kind.entries);
                writeln!(
                    out,
                    "  {name}: {entries} entries, {}",
                    megabytes(kind.bytes)
                )?;
            }
        }
        (CacheCommand::Clear, None) => writeln!(out, "kernel cache: {}", summary())?,
        (CacheCommand::Clear, Some(file)) => {
            let file = file.display();
            let freed = clear_kernel_cache()
                .map_err(|error| Failure::User(format!("{file} cannot be removed: {error}")))?;
            writeln!(out, "kernel cache: {file} removed, {}", megabytes(freed))?;
        }
    }
    Ok(())
}

/// The file with its size, or the reason why there is none.
pub fn summary() -> String {
    let Some(file) = kernel_cache() else {
        return "none: this build keeps no kernels, or the folder cannot be written".into();
    };
    let name = file.display();
    match std::fs::metadata(&file) {
        Ok(known) => {
            let entries: u64 = cached_kernels().iter().map(|kind| kind.entries).sum();
            format!("{name}, {entries} entries, {}", megabytes(known.len()))
        }
        Err(_) => format!("{name}, empty"),
    }
}
