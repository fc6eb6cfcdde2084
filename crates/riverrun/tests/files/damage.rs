//! Damaged files: an error or the right weights, never a panic, an abort or an allocation out of proportion.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use riverrun::nn::{Gru, GruConfig};
use riverrun::weights::{from_pytorch, to_pytorch};

use crate::common::devices;
use crate::{all, golden, largest_allocation};

/// Damaged files of each kind.
const CASES: usize = 4000;

/// More than this in one allocation is out of proportion for files of a few kilobytes: buffers of the readers have up to 64 KiB.
const LARGEST: usize = 1 << 20;

/// One damage: some bits flipped, a burst overwritten, a piece cut out or inserted, a tail cut off.
fn damaged(whole: &[u8], random: &mut ChaCha8Rng) -> Vec<u8> {
    let mut bytes = whole.to_vec();
    // Structure stands at the beginning of a safetensors file and at the end of an archive: half of the damage is there.
    let at = match random.random_range(0..4) {
        0 => random.random_range(0..bytes.len().min(600)),
        1 => random.random_range(bytes.len().saturating_sub(800)..bytes.len()),
        _ => random.random_range(0..bytes.len()),
    };
    let length = random.random_range(1..=16.min(bytes.len() - at));
    match random.random_range(0..6) {
        0 | 1 => bytes[at] ^= 1 << random.random_range(0..8),
        2 => random.fill(&mut bytes[at..at + length]),
        3 => drop(bytes.drain(at..at + length)),
        4 => {
            let noise: Vec<u8> = (0..length).map(|_| random.random()).collect();
            drop(bytes.splice(at..at, noise));
        }
        _ => bytes.truncate(at),
    }
    bytes
}

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("riverrun-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a temporary folder");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// Damages a file again and again and loads it. Gives how many loaded, and whether with other weights.
fn damage(path: &Path, layer: &Gru, seed: u64) -> (usize, usize) {
    let whole = std::fs::read(path).expect("a file");
    let right = all(&from_pytorch(layer.clone(), path, "")
        .expect("the whole file")
        .stack);
    let name = path
        .file_name()
        .expect("a name")
        .to_string_lossy()
        .into_owned();
    let folder = Folder::new(&format!("damage-{seed}"));
    let file = folder.0.join(&name);
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let (mut loaded, mut wrong) = (0, 0);
    for case in 0..CASES {
        let bytes = damaged(&whole, &mut random);
        std::fs::write(&file, &bytes).expect("writing");
        largest_allocation();
        let result = catch_unwind(AssertUnwindSafe(|| from_pytorch(layer.clone(), &file, "")));
        let largest = largest_allocation();
        assert!(
            largest < LARGEST,
            "{name}, case {case}: {largest} bytes at once"
        );
        let result = result.unwrap_or_else(|_| panic!("{name}, case {case}: a panic"));
        match result {
            Ok(layer) => {
                loaded += 1;
                wrong += usize::from(all(&layer.stack) != right);
            }
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains(&name), "{name}, case {case}: {text}");
            }
        }
    }
    (loaded, wrong)
}

fn layer() -> Gru {
    let device = devices().into_iter().next().expect("a device").1;
    let config = GruConfig::new(4, 5).with_layers(2).with_bidirectional(true);
    config.init(&device)
}

#[test]
fn a_damaged_file_of_ours_loads_rightly_or_not_at_all() {
    let folder = Folder::new("whole");
    let path = folder.0.join("weights.safetensors");
    let layer = layer();
    to_pytorch(&layer, &path, "").expect("writing");
    let (loaded, wrong) = damage(&path, &layer, 1);
    println!("{loaded} of {CASES} damaged files load");
    assert_eq!(wrong, 0);
}

#[test]
fn a_damaged_archive_of_pytorch_loads_rightly_or_not_at_all() {
    let (loaded, wrong) = damage(&golden("gru-2-both.pt"), &layer(), 2);
    println!("{loaded} of {CASES} damaged archives load");
    assert_eq!(wrong, 0);
}

/// PyTorch's safetensors files have no checksum: damage to a number cannot be seen, damage to the structure is refused.
#[test]
fn a_damaged_safetensors_file_of_pytorch_makes_no_panic() {
    let (loaded, wrong) = damage(&golden("gru-2-both.safetensors"), &layer(), 3);
    println!("{loaded} of {CASES} damaged files load, {wrong} with other numbers");
}

#[test]
fn a_flipped_bit_in_any_byte_of_a_tensor_is_refused() {
    let folder = Folder::new("flipped");
    let path = folder.0.join("weights.safetensors");
    let layer = layer();
    to_pytorch(&layer, &path, "").expect("writing");
    let mut bytes = std::fs::read(&path).expect("a file");
    let header = u64::from_le_bytes(bytes[..8].try_into().expect("eight")) as usize;
    for at in 8 + header..bytes.len() {
        bytes[at] ^= 1 << (at % 8);
        std::fs::write(&path, &bytes).expect("writing");
        let error = from_pytorch(layer.clone(), &path, "").map(|_| ());
        let error = error.expect_err("a flipped bit").to_string();
        assert!(error.contains("checksum"), "{error}");
        bytes[at] ^= 1 << (at % 8);
    }
}
