//! The peak memory of a series of steps.

use std::fmt;

use burn::tensor::Device;
use serde::Serialize;

use crate::commands::memory::MemoryUse;

/// Bytes, if known.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Memory {
    /// On a GPU the size of its memory pools, an upper bound of the peak in use; on the CPU the peak resident size of the
    /// process.
    pub peak_bytes: Option<u64>,
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.peak_bytes {
            Some(bytes) => f.pad(&format!("{:.0}", bytes as f64 / 1e6)),
            None => f.pad("?"),
        }
    }
}

/// Measures from its creation on.
pub struct Meter {
    device: Device,
}

impl Meter {
    /// Starts a measurement; frees the memory of earlier work.
    pub fn new(device: &Device) -> Self {
        device.memory_cleanup();
        forget_peak();
        Self {
            device: device.clone(),
        }
    }

    pub fn read(&self) -> Memory {
        Memory {
            peak_bytes: MemoryUse::of(&self.device).peak,
        }
    }
}

/// Resets the peak resident size, where the system can.
fn forget_peak() {
    #[cfg(target_os = "linux")]
    // If it cannot be written, the peak is that of the whole process, which is no less.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}
