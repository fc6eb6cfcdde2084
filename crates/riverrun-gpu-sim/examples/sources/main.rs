//! Writes the CUDA C++ that kernels become, one file a kernel, without a device.
//!
//! ```text
//! cargo run --release -p riverrun-gpu-sim --example sources --features alone -- <folder> [--card 75|80|89|90|100] [--sample] [<part of a name> ...]
//! ```
//!
//! Two revisions can be compared with `diff -r`, and what a compiler makes of a file can be looked at with NVIDIA's
//! tools (`ptxas -v`, `nvdisasm`). With parts of names, only files whose names have one of them. `--sample` writes every
//! kernel once, and no text twice: for NVRTC (`check_nvrtc.sh`).

mod attention;
mod cells;
mod embedding;
mod matrix_state;
mod normal;
mod recurrences;
mod rollout;
mod rows;
mod rssm;
mod steps;

use std::collections::HashSet;
use std::error::Error;
use std::fs;
use std::path::PathBuf;

use cubecl::client::Client;
use riverrun_gpu_sim::{Card, Recorder};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or("give the folder to write to")?;
    let (mut card, mut sample, mut parts) = (Card::H200, false, Vec::new());
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--sample" => sample = true,
            "--card" => {
                let capability: u32 = arguments.next().ok_or("--card: which?")?.parse()?;
                let mut cards = Card::ALL.into_iter();
                let found = cards.find(|card| card.capability == capability);
                card = found.ok_or("--card: 75, 80, 89, 90 or 100")?;
            }
            _ => parts.push(argument),
        }
    }
    let mut writer = Writer {
        folder: folder.into(),
        sample,
        parts,
        recorder: Recorder::new(card),
        texts: HashSet::new(),
    };
    recurrences::write(&mut writer)?;
    cells::write(&mut writer)?;
    embedding::write(&mut writer)?;
    rollout::write(&mut writer)?;
    rows::write(&mut writer)?;
    attention::write(&mut writer)?;
    matrix_state::write(&mut writer)?;
    rssm::write(&mut writer)?;
    steps::write(&mut writer)?;
    let count = writer.texts.len();
    println!("{count} kernels in {}", writer.folder.display());
    Ok(())
}

/// Launches on a card that is not there, and writes their sources.
struct Writer {
    folder: PathBuf,
    /// Every kernel once.
    sample: bool,
    parts: Vec<String>,
    recorder: Recorder,
    /// Those that have been written.
    texts: HashSet<String>,
}

impl Writer {
    /// The kernels that `launch` launches, as `<name>.cu`, or `<name>-<n>.cu` where there are several.
    fn write(
        &mut self,
        name: &str,
        launch: impl FnOnce(&Client) -> Result<(), riverrun_kernels::Error>,
    ) -> Result<(), Box<dyn Error>> {
        let wanted = |part: &String| name.contains(part.as_str());
        if !self.parts.is_empty() && !self.parts.iter().any(wanted) {
            return Ok(());
        }
        launch(&self.recorder.client)?;
        let sources = self.recorder.take();
        for (n, source) in sources.iter().enumerate() {
            let text = match &source.text {
                Ok(text) => normal::normal(text, &source.name),
                Err(error) => return Err(format!("{name}, {}: {error}", source.name).into()),
            };
            let new = self.texts.insert(text.clone());
            if self.sample && !new {
                continue;
            }
            let path = self.folder.join(match sources.len() {
                1 => format!("{name}.cu"),
                _ => format!("{name}-{n}.cu"),
            });
            fs::create_dir_all(path.parent().unwrap_or(&self.folder))?;
            fs::write(path, text)?;
        }
        Ok(())
    }
}
