//! IDX files: the format of MNIST and its relatives.

use std::fs;
use std::path::Path;

use super::{PIXELS, SIDE};
use crate::Error;

/// Images with their labels.
pub(super) struct Set {
    /// One byte a pixel, image by image.
    pub pixels: Vec<u8>,
    pub labels: Vec<u8>,
}

/// Reads `<part>-images-idx3-ubyte` and `<part>-labels-idx1-ubyte`.
///
/// # Errors
/// A file that cannot be read, or is no IDX file of 28 × 28 images with labels 0 to 9.
pub(super) fn read(folder: &Path, part: &str) -> Result<Set, Error> {
    let images = folder.join(format!("{part}-images-idx3-ubyte"));
    let labels = folder.join(format!("{part}-labels-idx1-ubyte"));
    let pixels = parse(&read_file(&images)?, &[SIDE as u32, SIDE as u32])
        .map_err(|reason| Error::damaged(&images, reason))?;
    let found =
        parse(&read_file(&labels)?, &[]).map_err(|reason| Error::damaged(&labels, reason))?;
    if pixels.len() != found.len() * PIXELS {
        let (images_of, labels_of) = (pixels.len() / PIXELS, found.len());
        let reason = format!("{labels_of} labels for {images_of} images");
        return Err(Error::damaged(&labels, reason));
    }
    if let Some(label) = found.iter().find(|label| **label > 9) {
        return Err(Error::damaged(
            &labels,
            format!("a label of {label}; expected 0 to 9"),
        ));
    }
    if found.is_empty() {
        return Err(Error::damaged(&labels, "no images"));
    }
    Ok(Set {
        pixels,
        labels: found,
    })
}

fn read_file(path: &Path) -> Result<Vec<u8>, Error> {
    fs::read(path).map_err(|source| Error::read(path, source))
}

/// The bytes of an IDX file of bytes, whose dimensions after the first are `inner`.
fn parse(bytes: &[u8], inner: &[u32]) -> Result<Vec<u8>, String> {
    let word = |at: usize| {
        let word = bytes
            .get(4 * at..4 * at + 4)
            .ok_or("the header is cut short")?;
        Ok::<u32, String>(u32::from_be_bytes(word.try_into().expect("four bytes")))
    };
    let magic = 0x0801 + inner.len() as u32;
    if word(0)? != magic {
        return Err(format!(
            "expected the magic number {magic:#06x}, found {:#06x}",
            word(0)?
        ));
    }
    let count = word(1)? as usize;
    for (i, expected) in inner.iter().enumerate() {
        let found = word(2 + i)?;
        if found != *expected {
            return Err(format!(
                "expected images of 28 x 28, found a side of {found}"
            ));
        }
    }
    let start = 8 + 4 * inner.len();
    let each: usize = inner.iter().map(|side| *side as usize).product();
    let expected = count.checked_mul(each).ok_or("a count beyond all memory")?;
    match bytes.len() - start {
        found if found == expected => Ok(bytes[start..].to_vec()),
        found => Err(format!("expected {expected} bytes of data, found {found}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(magic: u32, words: &[u32], data: &[u8]) -> Vec<u8> {
        let header = std::iter::once(&magic)
            .chain(words)
            .flat_map(|word| word.to_be_bytes());
        header.chain(data.iter().copied()).collect()
    }

    #[test]
    fn whole_files_are_read_and_damaged_ones_refused() {
        let image = vec![9; 2 * PIXELS];
        assert_eq!(
            parse(&file(0x0803, &[2, 28, 28], &image), &[28, 28]).unwrap(),
            image
        );
        assert_eq!(
            parse(&file(0x0801, &[3], &[1, 2, 3]), &[]).unwrap(),
            [1, 2, 3]
        );
        let damaged = [
            file(0x0801, &[2, 28, 28], &image),
            file(0x0803, &[2, 28, 27], &image),
            file(0x0803, &[3, 28, 28], &image),
            file(0x0803, &[u32::MAX, 28, 28], &image),
            file(0x0803, &[1], &[]),
            vec![],
        ];
        for bytes in damaged {
            assert!(parse(&bytes, &[28, 28]).is_err());
        }
    }
}
