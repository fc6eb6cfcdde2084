//! The file that keeps compiled kernels and tuning results between runs.

use std::path::{Path, PathBuf};
#[cfg(all(feature = "persistence", not(target_family = "wasm")))]
use std::sync::OnceLock;

#[cfg(all(feature = "persistence", not(target_family = "wasm")))]
static FILE: OnceLock<Option<PathBuf>> = OnceLock::new();

/// Lets GPU runtimes save compiled kernels and tuning results in a file in the user's cache folder, and load them from it: the
/// second run of a program starts with the kernels of the first. Returns the file.
///
/// Call it before the first device is opened. Kernels of another build of the program and tuning of another version or
/// device are not reused. A `cubecl.toml` in the working directory or above it that names another location is respected.
///
/// Returns `None` and saves nothing without the feature `persistence`, in the browser, if a device is open already, and, with
/// a warning, if the folder is not writable.
pub fn enable_kernel_cache() -> Option<PathBuf> {
    #[cfg(all(feature = "persistence", not(target_family = "wasm")))]
    return FILE.get_or_init(configure).clone();
    #[cfg(not(all(feature = "persistence", not(target_family = "wasm"))))]
    None
}

/// The file that [`enable_kernel_cache`] returned.
pub fn kernel_cache() -> Option<PathBuf> {
    #[cfg(all(feature = "persistence", not(target_family = "wasm")))]
    return FILE.get().cloned().flatten();
    #[cfg(not(all(feature = "persistence", not(target_family = "wasm"))))]
    None
}

/// One kind of what the kernel cache holds: kernels of a runtime, or the results of tuning an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CachedKernels {
    /// The kind, as the runtime names it.
    pub name: String,
    /// Kernels, or results.
    pub entries: u64,
    /// Their size in bytes, keys included.
    pub bytes: u64,
}

/// The contents of the file of [`enable_kernel_cache`], by kind; nothing without such a file.
pub fn cached_kernels() -> Vec<CachedKernels> {
    #[cfg(all(feature = "persistence", not(target_family = "wasm")))]
    if kernel_cache().is_some_and(|file| file.exists()) {
        let kinds = cubecl::environment::namespaces().into_iter();
        return kinds
            .map(|kind| CachedKernels {
                name: kind.namespace,
                entries: kind.entries,
                bytes: kind.bytes,
            })
            .collect();
    }
    Vec::new()
}

/// Removes the file of [`enable_kernel_cache`], so that later programs compile and tune from the start, and returns its size in
/// bytes. Programs that have it open keep what they have. Call it before the first device is opened.
///
/// # Errors
/// A file that cannot be removed.
pub fn clear_kernel_cache() -> std::io::Result<u64> {
    kernel_cache().map_or(Ok(0), |file| remove(&file))
}

/// Removes a database with the files that its engine keeps beside it.
fn remove(file: &Path) -> std::io::Result<u64> {
    let mut freed = 0;
    for beside in ["", "-wal", "-shm"] {
        let mut name = file.as_os_str().to_owned();
        name.push(beside);
        let part = Path::new(&name);
        match std::fs::metadata(part) {
            Ok(known) => {
                std::fs::remove_file(part)?;
                freed += known.len();
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(freed)
}

#[cfg(all(feature = "persistence", not(target_family = "wasm")))]
fn configure() -> Option<PathBuf> {
    use cubecl::config::cache::CacheConfig;
    use cubecl::config::{CubeClRuntimeConfig, RuntimeConfig};

    let mut config = CubeClRuntimeConfig::from_current_dir().override_from_env();
    config.compilation.cache = true;
    if matches!(config.environment.path, CacheConfig::Target) {
        config.environment.path = CacheConfig::Global;
    }
    let folder = config.environment.path.root();
    let trial = folder.join(format!("trial-{}", std::process::id()));
    let writable = std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(&trial, []));
    let _ = std::fs::remove_file(trial);
    if let Err(error) = &writable {
        let folder = folder.display();
        tracing::warn!("cannot save compiled kernels in {folder}: {error}");
        config.compilation.cache = false;
        config.autotune.disable_cache = true;
        config.throughput.disable_cache = true;
    }
    let set = CubeClRuntimeConfig::try_set(config) && writable.is_ok();
    set.then(cubecl::environment::path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_goes_with_the_files_beside_it() {
        let folder = std::env::temp_dir().join(format!("riverrun-cache-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("kernels.db");
        assert_eq!(remove(&file).unwrap(), 0);
        std::fs::write(&file, [0; 100]).unwrap();
        std::fs::write(folder.join("kernels.db-wal"), [0; 20]).unwrap();
        std::fs::write(folder.join("other.db"), [0; 3]).unwrap();
        assert_eq!(remove(&file).unwrap(), 120);
        let left: Vec<_> = std::fs::read_dir(&folder).unwrap().collect();
        assert_eq!(left.len(), 1);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
