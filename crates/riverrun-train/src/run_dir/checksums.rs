//! Checksums of the files of a checkpoint, which detect damaged weights.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use super::{read_json, write_json};
use crate::Error;

/// The file of checksums: names and CRC-32 of the contents, in hexadecimal.
const NAME: &str = "checksums.json";

/// Writes the checksums of all files in a folder.
pub(crate) fn write(folder: &Path) -> Result<(), Error> {
    let mut sums = BTreeMap::new();
    for entry in fs::read_dir(folder).map_err(|error| Error::read(folder, error))? {
        let entry = entry.map_err(|error| Error::read(folder, error))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        sums.insert(name, sum(&entry.path())?);
    }
    write_json(&folder.join(NAME), &sums)
}

/// Compares the files that have a checksum with it. Folders of earlier versions have none.
pub(crate) fn check(folder: &Path) -> Result<(), Error> {
    let path = folder.join(NAME);
    if !path.exists() {
        return Ok(());
    }
    let sums: BTreeMap<String, String> = read_json(&path)?;
    for (name, expected) in sums {
        let file = folder.join(&name);
        let found = sum(&file)?;
        if found != expected {
            let reason = format!("its checksum is {found}, {expected} was saved");
            return Err(Error::damaged(file, reason));
        }
    }
    Ok(())
}

fn sum(path: &Path) -> Result<String, Error> {
    let read = |error| Error::read(path, error);
    let mut file = File::open(path).map_err(read)?;
    let mut hasher = crc32fast::Hasher::new();
    let mut block = vec![0; 1 << 16];
    loop {
        match file.read(&mut block).map_err(read)? {
            0 => return Ok(format!("{:08x}", hasher.finalize())),
            n => hasher.update(&block[..n]),
        }
    }
}
