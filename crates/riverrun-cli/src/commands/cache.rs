//! `riverrun cache`: the folder that keeps compiled kernels from run to run.

use std::io::{Write, stdout};

use riverrun::device::cache;

use super::memory::megabytes;
use crate::args::CacheCommand;
use crate::failure::Failure;

/// Shows or clears the folder.
pub fn run(what: CacheCommand) -> Result<(), Failure> {
    let mut out = stdout().lock();
    match (what, cache::folder()) {
        (CacheCommand::List, _) => {
            writeln!(out, "kernel cache: {}", summary())?;
            for kind in cache::list() {
                let (name, entries) = (kind.name, kind.entries);
                writeln!(
                    out,
                    "  {name}: {entries} entries, {}",
                    megabytes(kind.bytes)
                )?;
            }
        }
        (CacheCommand::Clear, None) => writeln!(out, "kernel cache: {}", summary())?,
        (CacheCommand::Clear, Some(folder)) => {
            let folder = folder.display();
            let freed = cache::clear()
                .map_err(|error| Failure::User(format!("{folder} cannot be cleared: {error}")))?;
            writeln!(out, "kernel cache: {folder} cleared, {}", megabytes(freed))?;
        }
    }
    Ok(())
}

/// The folder with its size, or the reason why there is none.
pub fn summary() -> String {
    let Some(folder) = cache::folder() else {
        return "none: this build has no CUDA, or the folder cannot be written".into();
    };
    let (folder, kinds) = (folder.display(), cache::list());
    let entries: u64 = kinds.iter().map(|kind| kind.entries).sum();
    let bytes: u64 = kinds.iter().map(|kind| kind.bytes).sum();
    match entries {
        0 => format!("{folder}, empty"),
        _ => format!("{folder}, {entries} entries, {}", megabytes(bytes)),
    }
}
