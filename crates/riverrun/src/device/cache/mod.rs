//! Compiled kernels, kept from run to run in the user's cache folder.
//!
//! CubeCL keeps the PTX of each kernel in a table in memory, by the kernel's source and architecture. Here that table is filled
//! from files when it is first needed, and entries that are new are written to a file of their own.

#[cfg(feature = "cuda")]
mod ahead;
#[cfg(feature = "cuda")]
mod segments;

use std::path::PathBuf;

use burn::tensor::Device;

/// One kind of what the kernel cache holds: kernels of a runtime and an architecture.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Kernels {
    /// The kind, as the runtime names it.
    pub name: String,
    /// Kernels.
    pub entries: u64,
    /// Their size in bytes, keys included.
    pub bytes: u64,
}

/// Keeps the kernels that CUDA devices compile in the user's cache folder, and takes those that earlier runs kept: a second run
/// starts without compiling. Returns the folder.
///
/// Call it before the first device is opened. A kernel is found by its source, the GPU's architecture and the version of the
/// compiler. Several programs may use the folder at once. A damaged entry is left out and compiled again.
///
/// Kernels are written every two seconds while there are new ones, and by [`save`].
///
/// Returns `None`, and keeps nothing, without the feature `cuda`, if a device is open already, where the user has no cache
/// folder, and, with a warning, if the folder is not writable.
pub fn enable() -> Option<PathBuf> {
    #[cfg(feature = "cuda")]
    return keep::folder(true);
    #[cfg(not(feature = "cuda"))]
    None
}

/// The folder that [`enable`] returned.
pub fn folder() -> Option<PathBuf> {
    #[cfg(feature = "cuda")]
    return keep::folder(false);
    #[cfg(not(feature = "cuda"))]
    None
}

/// Writes the kernels that were compiled since the last time. A program calls it before it ends.
pub fn save() {
    #[cfg(feature = "cuda")]
    keep::save();
}

/// Compiles the kernels of some work by several threads before the work is done; otherwise each is compiled at its first launch,
/// one after another. Returns the number of kernels compiled.
///
/// `work` is called by several threads, each with another device, on which launches are compiled and do nothing: what it
/// computes there has no meaning, and it must launch the same kernels whatever it reads. Nothing else may launch on a GPU of
/// this process meanwhile; its launches would be dropped too.
///
/// `name` stands for the kernels of the work: where this build has kept work of that name, or the
/// [folder](enable) is not used, or the device is no CUDA device, or NVRTC is missing, nothing is done.
pub fn compile_ahead(device: &Device, name: &str, work: impl Fn(&Device) + Sync) -> usize {
    #[cfg(feature = "cuda")]
    if folder().is_some()
        && keep::version().is_some()
        && let Some(client) = super::client(device)
        && riverrun_kernels::gpu::cuda::is_cuda(&client)
    {
        return ahead::compile(&client, name, &work);
    }
    let _ = (device, name, work);
    0
}

/// Takes the kernels of earlier runs, once: the first device with a compiler is about to be opened.
pub(super) fn load() {
    #[cfg(feature = "cuda")]
    keep::load();
}

/// The contents of the folder of [`enable`], by kind; nothing without such a folder.
pub fn list() -> Vec<Kernels> {
    #[cfg(feature = "cuda")]
    if let Some(folder) = folder() {
        return segments::summary(&folder);
    }
    Vec::new()
}

/// Removes the kernels in the folder of [`enable`], so that later programs compile them again, and returns their
/// size in bytes. Programs that run keep what they have.
///
/// # Errors
/// A file that cannot be removed.
pub fn clear() -> std::io::Result<u64> {
    #[cfg(feature = "cuda")]
    if let Some(folder) = folder() {
        return segments::clear(&folder);
    }
    Ok(0)
}

#[cfg(feature = "cuda")]
mod keep {
    //! The table in memory and the folder.

    use std::collections::HashSet;
    use std::path::{Path, PathBuf};
    use std::sync::{Mutex, Once, OnceLock, PoisonError};
    use std::time::Duration;

    use cubecl::config::cache::CacheConfig;
    use cubecl::config::{CubeClRuntimeConfig, RuntimeConfig};
    use cubecl_environment::bytes::Bytes;
    use cubecl_environment::persistence::{MemoryStorage, Origin, open};

    use super::segments::{self, Entry};

    /// The time between two looks for new kernels.
    const PAUSE: Duration = Duration::from_secs(2);

    static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();

    /// The entries that are in files, by their checksums.
    static KEPT: Mutex<Option<HashSet<u64>>> = Mutex::new(None);

    pub fn folder(enable: bool) -> Option<PathBuf> {
        match enable {
            true => FOLDER.get_or_init(configure).clone(),
            false => FOLDER.get().cloned().flatten(),
        }
    }

    fn configure() -> Option<PathBuf> {
        let folder = riverrun_kernels::tuned::user_cache()?
            .join("riverrun")
            .join("kernels");
        if let Err(error) = writable(&folder) {
            let folder = folder.display();
            tracing::warn!("compiled kernels are not kept: {folder}: {error}");
            return None;
        }
        let mut config = CubeClRuntimeConfig::from_current_dir().override_from_env();
        config.compilation.cache = true;
        config.environment.path = CacheConfig::Directory(folder.clone());
        CubeClRuntimeConfig::try_set(config).then_some(folder)
    }

    fn writable(folder: &Path) -> std::io::Result<()> {
        std::fs::create_dir_all(folder)?;
        tempfile::tempfile_in(folder).map(|_| ())
    }

    pub fn load() {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            let Some(folder) = folder(false) else {
                return;
            };
            let mut kept = HashSet::new();
            for entry in segments::read(&folder, &compiler()) {
                kept.insert(entry.checksum());
                let (key, value) = (entry.key, Bytes::from_bytes_vec(entry.value));
                open(&entry.namespace).insert(&key, value, Origin::Local);
            }
            tracing::debug!(folder = %folder.display(), kernels = kept.len(), "kept kernels");
            *KEPT.lock().unwrap_or_else(PoisonError::into_inner) = Some(kept);
            let watch = || {
                loop {
                    std::thread::sleep(PAUSE);
                    save();
                }
            };
            let thread = std::thread::Builder::new().name("kernel cache".into());
            if let Err(error) = thread.spawn(watch) {
                tracing::debug!("new kernels are written at the end alone: {error}");
            }
        });
    }

    /// The compiler's version: PTX of one is not taken for that of another.
    fn compiler() -> String {
        match version() {
            Some((major, minor)) => format!("nvrtc-{major}.{minor}"),
            None => "nvrtc".into(),
        }
    }

    /// The version of NVRTC, where it can be loaded.
    pub fn version() -> Option<(i32, i32)> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: two integers that outlive the call; the library is asked only where it can be loaded.
        let known = unsafe {
            cudarc::nvrtc::sys::is_culib_present()
                && cudarc::nvrtc::sys::nvrtcVersion(&raw mut major, &raw mut minor)
                    == cudarc::nvrtc::sys::nvrtcResult::NVRTC_SUCCESS
        };
        known.then_some((major, minor))
    }

    pub fn save() {
        let Some(folder) = folder(false).filter(|_| !super::ahead::running()) else {
            return;
        };
        let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
        // Without a device there is nothing to write.
        let Some(kept) = kept.as_mut() else {
            return;
        };
        let spaces = MemoryStorage::namespaces();
        let count: u64 = spaces.iter().map(|space| space.entries).sum();
        if count <= kept.len() as u64 {
            return;
        }
        let mut new = Vec::new();
        for space in spaces {
            open(&space.namespace).scan(&mut |key, value| {
                let entry = Entry {
                    namespace: space.namespace.clone(),
                    key: key.to_vec(),
                    value: value.to_vec(),
                };
                if kept.insert(entry.checksum()) {
                    new.push(entry);
                }
            });
        }
        if let Err(error) = segments::write(&folder, &compiler(), &new) {
            tracing::debug!("new kernels are not kept: {}: {error}", folder.display());
        }
    }
}
