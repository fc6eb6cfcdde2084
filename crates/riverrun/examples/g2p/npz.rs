//! The arrays of an `.npz` file: a zip archive of `.npy` files, stored as they are.

use std::collections::BTreeMap;
use std::path::Path;

pub struct Array {
    pub shape: Vec<usize>,
    pub values: Vec<f32>,
}

/// Reads every array of little-endian `f32` in row-major order.
pub fn read(path: &Path) -> Result<BTreeMap<String, Array>, String> {
    let file = std::fs::read(path).map_err(|error| error.to_string())?;
    let damaged = || "the archive is damaged".to_string();
    // The directory at the end says where each file's own header is.
    let end = (0..file.len().saturating_sub(21))
        .rev()
        .find(|&at| file[at..].starts_with(b"PK\x05\x06"))
        .ok_or_else(|| "this is not a zip archive".to_string())?;
    let number = |at: usize, width: usize| -> Result<usize, String> {
        let bytes = file.get(at..at + width).ok_or_else(damaged)?;
        Ok(bytes.iter().rev().fold(0, |n, &b| n << 8 | usize::from(b)))
    };
    let (count, mut at) = (number(end + 10, 2)?, number(end + 16, 4)?);
    let mut arrays = BTreeMap::new();
    for _ in 0..count {
        let (method, size) = (number(at + 10, 2)?, number(at + 20, 4)?);
        let lengths = [28, 30, 32].map(|field| number(at + field, 2));
        let [name, extra, comment] = lengths;
        let (name, extra, comment) = (name?, extra?, comment?);
        let header = number(at + 42, 4)?;
        let text = file.get(at + 46..at + 46 + name).ok_or_else(damaged)?;
        let text = String::from_utf8_lossy(text);
        if method != 0 {
            return Err(format!("`{text}` is compressed"));
        }
        let start = header + 30 + number(header + 26, 2)? + number(header + 28, 2)?;
        let bytes = file.get(start..start + size).ok_or_else(damaged)?;
        let array = array(bytes).map_err(|error| format!("`{text}`: {error}"))?;
        arrays.insert(text.trim_end_matches(".npy").to_string(), array);
        at += 46 + name + extra + comment;
    }
    Ok(arrays)
}

fn array(bytes: &[u8]) -> Result<Array, String> {
    let unknown = || "this is not an array of little-endian f32".to_string();
    if !bytes.starts_with(b"\x93NUMPY\x01") || bytes.len() < 10 {
        return Err(unknown());
    }
    let length = usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    let header = bytes.get(10..10 + length).ok_or_else(unknown)?;
    let header = String::from_utf8_lossy(header);
    if !header.contains("'<f4'") || !header.contains("'fortran_order': False") {
        return Err(unknown());
    }
    let shape = header
        .split_once('(')
        .and_then(|(_, rest)| rest.split_once(')'))
        .ok_or_else(unknown)?
        .0;
    let shape: Vec<usize> = shape
        .split(',')
        .filter_map(|size| size.trim().parse().ok())
        .collect();
    let values: Vec<f32> = bytes[10 + length..]
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        .collect();
    match shape.iter().product::<usize>() == values.len() {
        true => Ok(Array { shape, values }),
        false => Err(format!("{} numbers for shape {shape:?}", values.len())),
    }
}
