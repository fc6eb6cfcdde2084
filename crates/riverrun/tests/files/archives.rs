//! `.pt` archives as `torch.save` lays them out for every length of the file's name.

use riverrun::nn::GruConfig;
use riverrun::weights::from_pytorch;

use crate::common::devices;
use crate::{all, golden};

/// Where an entry's data starts, as PyTorch places it.
const ALIGNMENT: usize = 64;

fn u16_at(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}

fn u32_at(bytes: &[u8], at: usize) -> usize {
    let bytes = [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
    u32::from_le_bytes(bytes) as usize
}

fn put(into: &mut [u8], at: usize, number: usize, width: usize) {
    into[at..at + width].copy_from_slice(&(number as u64).to_le_bytes()[..width]);
}

/// An archive of `torch.save` as it would be under another name: the folder's name in every entry, the data aligned anew by
/// an extra field, sizes behind the data, and ZIP64 records at the end.
fn under_another_name(archive: &[u8], root: &str) -> Vec<u8> {
    let end = archive.len() - 22;
    let (mut at, mut out, mut directory) = (u32_at(archive, end + 16), Vec::new(), Vec::new());
    let count = u16_at(archive, end + 10);
    for _ in 0..count {
        let header = &archive[at..at + 46];
        let (name, extra, comment) = (u16_at(header, 28), u16_at(header, 30), u16_at(header, 32));
        assert_eq!((extra, comment), (0, 0), "as PyTorch writes it");
        let old = std::str::from_utf8(&archive[at + 46..at + 46 + name]).expect("a name");
        let (_, inside) = old.split_once('/').expect("a folder");
        let new = format!("{root}/{inside}");
        let local = u32_at(header, 42);
        let data = local + 30 + u16_at(archive, local + 26) + u16_at(archive, local + 28);
        let size = u32_at(header, 20);

        let start = out.len();
        out.extend_from_slice(&archive[local..local + 30]);
        let padding = (ALIGNMENT - (start + 30 + new.len() + 4) % ALIGNMENT) % ALIGNMENT;
        put(&mut out, start + 26, new.len(), 2);
        put(&mut out, start + 28, 4 + padding, 2);
        out.extend_from_slice(new.as_bytes());
        out.extend_from_slice(b"FB");
        out.extend_from_slice(&(padding as u16).to_le_bytes());
        out.resize(out.len() + padding, b'Z');
        assert_eq!(out.len() % ALIGNMENT, 0);
        // The data, and behind it a signature, a checksum and two sizes.
        out.extend_from_slice(&archive[data..data + size + 16]);

        let mut entry = header.to_vec();
        put(&mut entry, 28, new.len(), 2);
        put(&mut entry, 42, start, 4);
        directory.extend_from_slice(&entry);
        directory.extend_from_slice(new.as_bytes());
        at += 46 + name;
    }
    let (start, size) = (out.len(), directory.len());
    out.extend_from_slice(&directory);
    let zip64 = out.len();
    let mut tail = archive[archive.len() - 98..].to_vec();
    put(&mut tail, 40, size, 8);
    put(&mut tail, 48, start, 8);
    put(&mut tail, 56 + 8, zip64, 8);
    put(&mut tail, 76 + 12, size, 4);
    put(&mut tail, 76 + 16, start, 4);
    out.extend_from_slice(&tail);
    out
}

#[test]
fn the_layout_made_here_is_the_one_of_pytorch() {
    for name in ["gru-1", "lstm-2-both", "rnn-relu-1"] {
        let archive = std::fs::read(golden(&format!("{name}.pt"))).expect("a golden file");
        assert!(under_another_name(&archive, name) == archive, "{name}");
    }
}

#[test]
fn an_archive_loads_whatever_the_length_of_its_name() {
    let device = devices().into_iter().next().expect("a device").1;
    let path = golden("gru-1.pt");
    let archive = std::fs::read(&path).expect("a golden file");
    let layer = || GruConfig::new(4, 5).init(&device);
    let expected = all(&from_pytorch(layer(), &path, "")
        .expect("PyTorch's file")
        .stack);
    let folder = std::env::temp_dir().join(format!("riverrun-names-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a temporary folder");
    for length in 1..=100 {
        let name = "a".repeat(length);
        let file = folder.join(format!("{name}.pt"));
        std::fs::write(&file, under_another_name(&archive, &name)).expect("writing");
        let loaded = from_pytorch(layer(), &file, "");
        let loaded = loaded.unwrap_or_else(|error| panic!("{length} letters: {error}"));
        assert_eq!(all(&loaded.stack), expected, "{length} letters");
    }
    std::fs::remove_dir_all(&folder).expect("removing the temporary folder");
}
