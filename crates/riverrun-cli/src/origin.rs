//! The origin of results: program, commit, machine, driver.

use std::path::Path;

use serde::Serialize;

/// The origin in a file of results.
#[derive(Debug, Clone, Serialize)]
pub struct Origin {
    version: &'static str,
    commit: &'static str,
    command: String,
    /// The device's name on the command line.
    pub device: String,
    /// The name of the hardware.
    pub name: String,
    driver: String,
}

impl Origin {
    /// The origin of this run's results.
    pub fn new(device: &str, name: &str) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION"),
            commit: env!("RIVERRUN_COMMIT"),
            command: command(),
            device: device.into(),
            name: name.into(),
            driver: driver(device),
        }
    }

    /// The origin above results in a text: the command, the commit and the machine.
    pub fn heading(&self) -> String {
        let Self {
            version,
            commit,
            command,
            device,
            name,
            driver,
        } = self;
        format!("{command}\nriverrun {version}, commit {commit}; {device}: {name}, {driver}")
    }
}

/// The command line, with the program's name without its folder.
fn command() -> String {
    let mut words = std::env::args();
    let program = words.next().unwrap_or_default();
    let name = Path::new(&program).file_name().unwrap_or_default();
    let words = std::iter::once(name.to_string_lossy().into_owned()).chain(words);
    words.collect::<Vec<_>>().join(" ")
}

/// The kernel driver's version, if known.
fn driver(device: &str) -> String {
    let known = device
        .starts_with("cuda")
        .then(|| std::fs::read_to_string("/proc/driver/nvidia/version").ok())
        .flatten()
        .and_then(|text| {
            let version = |word: &&str| word.chars().all(|c| c.is_ascii_digit() || c == '.');
            let found = text
                .split_whitespace()
                .find(|word| word.contains('.') && version(word));
            found.map(|version| format!("NVIDIA {version}"))
        });
    known.unwrap_or_else(|| std::env::consts::OS.into())
}
