//! One program at a time in a run's folder.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;

use crate::Error;

/// The file that is locked. It stays when the run ends: removing it could break the lock of another program.
pub(super) const NAME: &str = "lock";

/// Locks the folder until the file is dropped or the program ends.
///
/// # Errors
/// [`Error::Locked`] where another has the lock; a folder that cannot be written.
pub(super) fn lock(folder: &Path) -> Result<File, Error> {
    let path = folder.join(NAME);
    // Made for writing, but held for reading: a file that is open for writing would keep its file system from being
    // remounted read-only.
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(&path)
        .map_err(|error| Error::write(&path, error))?;
    let file = File::open(&path).map_err(|error| Error::read(&path, error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Error::Locked(folder.into())),
        Err(TryLockError::Error(error)) => {
            // Some network file systems have no locks; a run there is as safe as it was without.
            tracing::warn!(path = %path.display(), %error, "the run's folder cannot be locked");
            Ok(file)
        }
    }
}
