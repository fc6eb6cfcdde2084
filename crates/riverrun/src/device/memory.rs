//! The memory of a device.

use burn::tensor::Device;

/// Memory of a device at one moment, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Memory {
    /// Bytes that can still be allocated.
    pub free: u64,
    /// Total bytes.
    pub total: u64,
}

/// The memory of a device. For the CPU (Linux only): the machine's, or that of this process's control group if smaller. For an
/// NVIDIA GPU: the card's, for which the device is opened. `None` where it is not known.
pub fn memory(device: &Device) -> Option<Memory> {
    if super::is_cpu(device) {
        return host();
    }
    #[cfg(feature = "cuda")]
    if let burn::backend::DispatchDevice::Cube(burn_cubecl::CubeDevice::Cuda(device)) =
        device.clone().without_autodiff().as_dispatch()
    {
        let context = cudarc::driver::CudaContext::new(device.index).ok()?;
        let (free, total) = context.mem_get_info().ok()?;
        return Some(Memory {
            free: free as u64,
            total: total as u64,
        });
    }
    None
}

fn host() -> Option<Memory> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let machine = Memory {
        free: number_after(&text, "MemAvailable:")? * 1024,
        total: number_after(&text, "MemTotal:")? * 1024,
    };
    let number = |file: &str| -> Option<u64> {
        let text = std::fs::read_to_string(format!("/sys/fs/cgroup/{file}")).ok()?;
        text.trim().parse().ok()
    };
    // `memory.max` is the word `max` where there is no limit. Cached files count as used, and are dropped when memory is short.
    match (number("memory.max"), number("memory.current")) {
        (Some(total), Some(used)) => {
            let statistics = std::fs::read_to_string("/sys/fs/cgroup/memory.stat").ok();
            let cached = statistics
                .and_then(|text| number_after(&text, "file "))
                .unwrap_or(0);
            let free = total.saturating_sub(used.saturating_sub(cached));
            Some(Memory {
                free: machine.free.min(free),
                total: machine.total.min(total),
            })
        }
        _ => Some(machine),
    }
}

fn number_after(text: &str, field: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    line.trim().trim_end_matches("kB").trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_of_the_kernel_s_table_is_read() {
        let text = "MemTotal:       24614316 kB\nMemAvailable:   23148796 kB\n";
        assert_eq!(number_after(text, "MemAvailable:"), Some(23_148_796));
        assert_eq!(number_after(text, "SwapFree:"), None);
    }
}
