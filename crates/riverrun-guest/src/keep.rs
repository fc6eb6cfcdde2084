//! Machine code that is kept from run to run: a file for each kernel in the user's cache folder.

use std::io::Write;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_128;

/// The bytes of a checksum.
const CHECKSUM: usize = 16;

/// A folder of machine code for one architecture and compiler.
pub struct Kept {
    folder: Option<PathBuf>,
}

impl Kept {
    /// The user's folder: `riverrun/code/<name>` in the user's cache folder. Without one nothing is kept.
    #[cfg(feature = "cuda")]
    pub fn of_user(name: &str) -> Self {
        let cache = riverrun_kernels::tuned::user_cache();
        let folder = cache.map(|cache| cache.join("riverrun").join("code").join(name));
        Self { folder }
    }

    fn file(&self, source: &str) -> Option<PathBuf> {
        let name = format!("{:032x}.cubin", xxh3_128(source.as_bytes()));
        Some(self.folder.as_ref()?.join(name))
    }

    /// The code of a source, if it is there and whole.
    pub fn find(&self, source: &str) -> Option<Vec<u8>> {
        let content = std::fs::read(self.file(source)?).ok()?;
        let (checksum, code) = content.split_at_checked(CHECKSUM)?;
        (checksum == xxh3_128(code).to_le_bytes()).then(|| code.to_vec())
    }

    /// Keeps code. A folder that cannot be written is no error: the code is compiled again.
    pub fn keep(&self, source: &str, code: &[u8]) {
        let Some(file) = self.file(source) else {
            return;
        };
        if let Err(error) = write(&file, code) {
            tracing::debug!("{}: compiled code is not kept: {error}", file.display());
        }
    }
}

/// Another process may do the same: each moves a whole file.
fn write(file: &Path, code: &[u8]) -> std::io::Result<()> {
    let folder = file.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    let mut whole = tempfile::NamedTempFile::new_in(folder)?;
    whole.write_all(&xxh3_128(code).to_le_bytes())?;
    whole.write_all(code)?;
    whole.persist(file).map_err(|error| error.error)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_code_is_not_found() {
        let folder = tempfile::tempdir().expect("a folder");
        let kept = Kept {
            folder: Some(folder.path().join("new")),
        };
        assert_eq!(kept.find("a"), None);
        kept.keep("a", b"code");
        assert_eq!(kept.find("a").as_deref(), Some(&b"code"[..]));
        assert_eq!(kept.find("b"), None);
        let file = kept.file("a").expect("a folder");
        for damaged in [&b""[..], b"short", &[7; 40]] {
            std::fs::write(&file, damaged).expect("a file");
            assert_eq!(kept.find("a"), None, "{damaged:?}");
        }
        kept.keep("a", b"again");
        assert_eq!(kept.find("a").as_deref(), Some(&b"again"[..]));
    }
}
