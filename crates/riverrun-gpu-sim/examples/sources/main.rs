//! Writes the CUDA C++ that kernels become, one file a kernel, without a device.
//!
//! ```text
//! cargo run --release -p riverrun-gpu-sim --example sources --features cuda -- <folder> [<part of a name> ...]
//! ```
//!
//! Two revisions can be compared with `diff -r`, and what a compiler makes of a file can be looked at with NVIDIA's
//! tools (`ptxas -v`, `nvdisasm`). With parts of names, only files whose names have one of them.

mod cells;
mod embedding;
mod normal;
mod recurrences;

use std::error::Error;
use std::fs;
use std::path::PathBuf;

use cubecl::client::Client;
use riverrun_gpu_sim::Recorder;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut writer = Writer {
        folder: arguments
            .next()
            .ok_or("give the folder to write to")?
            .into(),
        parts: arguments.collect(),
        recorder: Recorder::new(),
        written: 0,
    };
    recurrences::write(&mut writer)?;
    cells::write(&mut writer)?;
    embedding::write(&mut writer)?;
    println!("{} kernels in {}", writer.written, writer.folder.display());
    Ok(())
}

/// Launches on the device that is not there, and where their sources go.
struct Writer {
    folder: PathBuf,
    parts: Vec<String>,
    recorder: Recorder,
    written: usize,
}

impl Writer {
    /// What `launch` launches, as `<name>.cu`, or `<name>-<n>.cu` where it launches several kernels.
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
            let path = self.folder.join(match sources.len() {
                1 => format!("{name}.cu"),
                _ => format!("{name}-{n}.cu"),
            });
            fs::create_dir_all(path.parent().unwrap_or(&self.folder))?;
            fs::write(path, text)?;
        }
        self.written += sources.len();
        Ok(())
    }
}
