//! The peak memory of a series of steps.

use burn::tensor::Device;

use crate::commands::memory::MemoryUse;

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

    /// Bytes, if known: on a GPU the size of its memory pools, an upper bound of the peak in use; on the CPU the peak resident
    /// size of the process.
    pub fn peak(&self) -> Option<u64> {
        MemoryUse::of(&self.device).peak
    }
}

/// Resets the peak resident size, where the system can.
fn forget_peak() {
    #[cfg(target_os = "linux")]
    // If it cannot be written, the peak is that of the whole process, which is no less.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}
