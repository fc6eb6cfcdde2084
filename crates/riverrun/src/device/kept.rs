//! Compiled kernels and tuning, kept from run to run.

use std::path::PathBuf;
#[cfg(all(feature = "persistence", not(target_family = "wasm")))]
use std::sync::OnceLock;

#[cfg(all(feature = "persistence", not(target_family = "wasm")))]
static FILE: OnceLock<Option<PathBuf>> = OnceLock::new();

/// Lets GPU runtimes keep compiled kernels, and which of several was the fastest, in a file in the user's cache folder, and
/// take them from there: the second run of a program finds what the first one made. Gives the file.
///
/// To be called before the first device is opened. Kernels of another build of the program, and tuning of another version
/// or device, are not taken. A `cubecl.toml` that names another place for it, in the folder of the program's start or above, is followed.
///
/// None, and nothing is kept, without the feature `persistence`, in the browser, where a device is open already, and, with a
/// warning, where the folder cannot be written to.
pub fn keep_compiled() -> Option<PathBuf> {
    #[cfg(all(feature = "persistence", not(target_family = "wasm")))]
    return FILE.get_or_init(configure).clone();
    #[cfg(not(all(feature = "persistence", not(target_family = "wasm"))))]
    None
}

/// The file that [`keep_compiled`] gave.
pub fn kept_in() -> Option<PathBuf> {
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
        tracing::warn!("compiled kernels are not kept in {folder}: {error}");
        config.compilation.cache = false;
        config.autotune.disable_cache = true;
        config.throughput.disable_cache = true;
    }
    let set = CubeClRuntimeConfig::try_set(config) && writable.is_ok();
    set.then(cubecl::environment::path)
}
