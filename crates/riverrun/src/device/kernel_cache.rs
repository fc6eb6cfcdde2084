//! The file that keeps compiled kernels and tuning results between runs.

use std::path::PathBuf;
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
