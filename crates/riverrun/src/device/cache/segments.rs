//! Files of entries, each written once and never changed: `<compiler>-<random>.kernels`.
//!
//! A file is a magic line and then records: three lengths and a checksum, 8 bytes each, the namespace, the key and the value. A
//! program writes its new entries to a file of its own, which appears under its name when it is complete, so that programs
//! never wait for each other. When there are many files, one program joins them.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use xxhash_rust::xxh3::Xxh3Default;

use super::Kernels;

const MAGIC: &[u8] = b"riverrun kernels 1\n";
const SUFFIX: &str = ".kernels";

/// Files above which they are joined.
const MANY: usize = 16;

/// Bytes of all files above which the oldest go.
const MOST_BYTES: u64 = 1 << 30;

/// An entry of CubeCL's table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The runtime, its version and the architecture.
    pub namespace: String,
    pub key: Vec<u8>,
    pub value: Vec<u8>,
}

impl Entry {
    fn parts(&self) -> [&[u8]; 3] {
        [self.namespace.as_bytes(), &self.key, &self.value]
    }

    pub fn checksum(&self) -> u64 {
        checksum(self.parts())
    }
}

fn checksum(parts: [&[u8]; 3]) -> u64 {
    let mut hash = Xxh3Default::new();
    for part in parts {
        hash.update(&(part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.digest()
}

/// The files of one compiler, or of all, the oldest first.
fn files(folder: &Path, compiler: &str) -> Vec<(PathBuf, u64)> {
    let Ok(found) = std::fs::read_dir(folder) else {
        return Vec::new();
    };
    let mut files: Vec<(SystemTime, PathBuf, u64)> = found
        .filter_map(|file| {
            let file = file.ok()?;
            let name = file.file_name().into_string().ok()?;
            let known = file.metadata().ok()?;
            let ours = name.ends_with(SUFFIX) && name.starts_with(compiler) && known.is_file();
            ours.then(|| {
                let changed = known.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                (changed, file.path(), known.len())
            })
        })
        .collect();
    files.sort();
    files
        .into_iter()
        .map(|(_, path, size)| (path, size))
        .collect()
}

/// The entries of a file, up to the first that is damaged.
fn entries(path: &Path) -> Vec<Entry> {
    let Ok(bytes) = std::fs::read(path) else {
        return Vec::new();
    };
    let Some(mut rest) = bytes.strip_prefix(MAGIC) else {
        tracing::debug!("not a file of kernels: {}", path.display());
        return Vec::new();
    };
    let mut entries = Vec::new();
    while !rest.is_empty() {
        let Some((entry, after)) = entry(rest) else {
            tracing::debug!(
                "damaged, its kernels are compiled again: {}",
                path.display()
            );
            break;
        };
        entries.push(entry);
        rest = after;
    }
    entries
}

fn entry(bytes: &[u8]) -> Option<(Entry, &[u8])> {
    let (head, mut rest) = bytes.split_at_checked(32)?;
    let mut numbers = head
        .chunks_exact(8)
        .map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes")));
    let mut next = || numbers.next().expect("4 words");
    let lengths = [next(), next(), next()];
    let expected = next();
    let mut parts = [&[][..]; 3];
    for (part, length) in parts.iter_mut().zip(lengths) {
        (*part, rest) = rest.split_at_checked(usize::try_from(length).ok()?)?;
    }
    if checksum(parts) != expected {
        return None;
    }
    let [namespace, key, value] = parts;
    let entry = Entry {
        namespace: String::from_utf8(namespace.to_vec()).ok()?,
        key: key.to_vec(),
        value: value.to_vec(),
    };
    Some((entry, rest))
}

/// The entries of a compiler.
pub fn read(folder: &Path, compiler: &str) -> Vec<Entry> {
    let files = files(folder, compiler);
    let all: Vec<Entry> = files.iter().flat_map(|(path, _)| entries(path)).collect();
    if files.len() > MANY {
        if let Err(error) = join(folder, compiler, &files, &all) {
            tracing::debug!("files of kernels are not joined: {error}");
        }
    }
    let mut left: u64 = files.iter().map(|(_, size)| size).sum();
    for (path, size) in &files {
        if left <= MOST_BYTES {
            break;
        }
        let _ = std::fs::remove_file(path);
        left -= size;
    }
    all
}

/// Puts entries that have been read into one file in place of theirs; one program at a time does so.
fn join(
    folder: &Path,
    compiler: &str,
    files: &[(PathBuf, u64)],
    all: &[Entry],
) -> std::io::Result<()> {
    let lock = File::create(folder.join("lock"))?;
    if lock.try_lock().is_err() {
        return Ok(());
    }
    let mut seen = std::collections::HashSet::new();
    let distinct: Vec<Entry> = all
        .iter()
        .filter(|entry| seen.insert(entry.checksum()))
        .cloned()
        .collect();
    write(folder, compiler, &distinct)?;
    for (path, _) in files {
        // Another program may have removed it.
        let _ = std::fs::remove_file(path);
    }
    Ok(())
}

/// Writes entries to a new file.
pub fn write(folder: &Path, compiler: &str, entries: &[Entry]) -> std::io::Result<()> {
    if entries.is_empty() {
        return Ok(());
    }
    let file = tempfile::Builder::new()
        .prefix(&format!("{compiler}-"))
        .tempfile_in(folder)?;
    let mut out = std::io::BufWriter::new(file);
    out.write_all(MAGIC)?;
    for entry in entries {
        for part in entry.parts() {
            out.write_all(&(part.len() as u64).to_le_bytes())?;
        }
        out.write_all(&entry.checksum().to_le_bytes())?;
        for part in entry.parts() {
            out.write_all(part)?;
        }
    }
    let file = out
        .into_inner()
        .map_err(std::io::IntoInnerError::into_error)?;
    let mut name = file.path().as_os_str().to_owned();
    name.push(SUFFIX);
    file.persist(name).map(|_| ()).map_err(|error| error.error)
}

/// Entries and bytes by namespace.
pub fn summary(folder: &Path) -> Vec<Kernels> {
    let mut kinds: Vec<Kernels> = Vec::new();
    for entry in files(folder, "").iter().flat_map(|(path, _)| entries(path)) {
        let bytes = (entry.key.len() + entry.value.len()) as u64;
        match kinds.iter_mut().find(|kind| kind.name == entry.namespace) {
            Some(kind) => {
                kind.entries += 1;
                kind.bytes += bytes;
            }
            None => kinds.push(Kernels {
                name: entry.namespace,
                entries: 1,
                bytes,
            }),
        }
    }
    kinds
}

/// Removes all files and returns their bytes.
pub fn clear(folder: &Path) -> std::io::Result<u64> {
    let mut freed = 0;
    for (path, size) in files(folder, "") {
        match std::fs::remove_file(path) {
            Ok(()) => freed += size,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(freed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some(number: u8) -> Entry {
        Entry {
            namespace: "cuda/ptx_sm90".into(),
            key: vec![number],
            value: vec![number; 100],
        }
    }

    #[test]
    fn entries_come_back_and_are_joined() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        for number in 0..=MANY as u8 {
            write(folder, "nvrtc-13.0", &[some(number), some(0)]).unwrap();
        }
        assert_eq!(files(folder, "nvrtc-13.0").len(), MANY + 1);
        assert!(read(folder, "nvrtc-12.8").is_empty());
        let mut found = read(folder, "nvrtc-13.0");
        found.sort_by_key(|entry| entry.key.clone());
        found.dedup();
        assert_eq!(found, (0..=MANY as u8).map(some).collect::<Vec<_>>());
        assert_eq!(files(folder, "nvrtc-13.0").len(), 1);
        assert_eq!(read(folder, "nvrtc-13.0").len(), MANY + 1);
        assert_eq!(summary(folder)[0].entries, MANY as u64 + 1);
        assert!(clear(folder).unwrap() > 100 * MANY as u64);
        assert!(read(folder, "nvrtc-13.0").is_empty());
    }

    #[test]
    fn a_damaged_file_loses_what_is_damaged_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let all: Vec<Entry> = (0..4).map(some).collect();
        write(folder, "nvrtc", &all).unwrap();
        let path = files(folder, "nvrtc")[0].0.clone();
        let whole = std::fs::read(&path).unwrap();
        let record = (whole.len() - MAGIC.len()) / 4;
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x10;
            std::fs::write(&path, &damaged).unwrap();
            let intact = at.saturating_sub(MAGIC.len()) / record;
            let intact = if at < MAGIC.len() { 0 } else { intact };
            assert_eq!(read(folder, "nvrtc"), all[..intact], "byte {at}");
        }
        for length in 0..whole.len() {
            std::fs::write(&path, &whole[..length]).unwrap();
            let intact = length.saturating_sub(MAGIC.len()) / record;
            assert_eq!(read(folder, "nvrtc"), all[..intact], "{length} bytes");
        }
    }
}
