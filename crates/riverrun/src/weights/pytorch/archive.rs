//! `.pt` archives that the reader would misplace.
//!
//! `torch.save` ends every archive with ZIP64 records, whether its sizes need them or not. Between the directory and the last
//! record they take 76 bytes, and a reader that takes the directory to end where the last record begins looks for it 76 bytes
//! too late. Mostly there is nothing there that looks like an entry, and it searches on from the offset that the archive states;
//! but if the first entry takes 76 bytes itself (a name of 21 letters before `/data.pkl`), it finds the second one and drops
//! the first. Such a file is read from a copy without the needless records.

use std::fs::File;
use std::io::{Error, Read, Seek, SeekFrom, Write, copy};
use std::path::Path;

use tempfile::NamedTempFile;

/// The end record, without a comment.
const END: u64 = 22;
/// The ZIP64 end record and its locator.
const ZIP64: u64 = 56 + 20;
const ENTRY: &[u8] = b"PK\x01\x02";

/// The corrected copy of a file that needs one; deleted when this is dropped.
pub(super) fn readable_copy(path: &Path) -> Result<Option<NamedTempFile>, Error> {
    let mut file = File::open(path)?;
    let Some((directory_end, end_record)) = misplaced(&mut file)? else {
        return Ok(None);
    };
    let mut readable = NamedTempFile::new()?;
    file.seek(SeekFrom::Start(0))?;
    copy(&mut file.take(directory_end), &mut readable)?;
    readable.write_all(&end_record)?;
    readable.flush()?;
    Ok(Some(readable))
}

/// Where the directory ends, and the last record, of an archive whose first entry would be dropped.
fn misplaced(file: &mut File) -> Result<Option<(u64, Vec<u8>)>, Error> {
    let length = file.seek(SeekFrom::End(0))?;
    let Some(directory_end) = length.checked_sub(END + ZIP64) else {
        return Ok(None);
    };
    file.seek(SeekFrom::Start(directory_end))?;
    let mut tail = vec![0; (END + ZIP64) as usize];
    file.read_exact(&mut tail)?;
    let (zip64, end) = tail.split_at(ZIP64 as usize);
    let signed = zip64.starts_with(b"PK\x06\x06")
        && zip64[56..].starts_with(b"PK\x06\x07")
        && end.starts_with(b"PK\x05\x06");
    let number = |at: usize| {
        let bytes = [end[at], end[at + 1], end[at + 2], end[at + 3]];
        u64::from(u32::from_le_bytes(bytes))
    };
    let (size, start) = (number(12), number(16));
    // Sizes that need ZIP64 are all ones here, and do not add up.
    if !signed || size + start != directory_end {
        return Ok(None);
    }
    let mut found = [0; 4];
    file.seek(SeekFrom::Start(start + ZIP64))?;
    file.read_exact(&mut found)?;
    Ok((found == ENTRY).then(|| (directory_end, end.to_vec())))
}
