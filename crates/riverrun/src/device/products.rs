//! The folder in which the choice of matmul algorithms lasts from one run to the next.

use std::path::PathBuf;

/// Lets matmuls on CUDA devices take the algorithms of cuBLASLt that a search has chosen, where they would take the first of
/// the library's heuristics: `riverrun bench linear --search` and `riverrun bench train --search` measure them once and save
/// the choices in the user's cache folder. Nothing is measured here, and without a file of choices nothing changes. Returns the
/// folder.
///
/// Call it before the first device is opened. With other algorithms the last bits of products differ; with one file, two runs
/// give the same bits. A file for another version of cuBLASLt or another GPU is not used, nor, with a warning, a damaged one.
///
/// Returns `None` without the feature `cuda`, where the user has no cache folder, and where another folder is in use.
pub fn keep_product_choices() -> Option<PathBuf> {
    #[cfg(feature = "cuda")]
    {
        let folder = cache_folder()?.join("riverrun");
        riverrun_kernels::gemm::vendor::keep_choices(&folder).then_some(folder)
    }
    #[cfg(not(feature = "cuda"))]
    None
}

/// The folder for files that programs can make again.
#[cfg(feature = "cuda")]
fn cache_folder() -> Option<PathBuf> {
    let folder = |name: &str| {
        let folder = PathBuf::from(std::env::var_os(name)?);
        folder.is_absolute().then_some(folder)
    };
    if cfg!(windows) {
        return folder("LOCALAPPDATA");
    }
    folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")))
}
