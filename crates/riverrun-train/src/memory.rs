//! The memory of this machine.

use std::fs;

use burn::tensor::Device;

use crate::Error;

/// No device has more.
const MOST: u128 = 1 << 47;

/// Refuses what does not fit into a device's memory, where that is known.
///
/// # Errors
/// [`Error::Memory`].
pub(crate) fn check(what: &str, needed: u128, device: &Device) -> Result<(), Error> {
    let name = riverrun::device::name(device);
    let available = match name == "cpu" {
        true => host(),
        false => None,
    };
    match available {
        Some(available) if needed <= available => Ok(()),
        None if needed <= MOST => Ok(()),
        available => Err(Error::Memory {
            what: what.into(),
            needed,
            device: name,
            available,
        }),
    }
}

/// Bytes that this process can still have, where the system tells.
fn host() -> Option<u128> {
    let machine = machine(&fs::read_to_string("/proc/meminfo").ok()?)?;
    let group = |file: &str| -> Option<u128> {
        let text = fs::read_to_string(format!("/sys/fs/cgroup/{file}")).ok()?;
        text.trim().parse().ok()
    };
    // `memory.max` says "max" where there is no limit. Pages of files in the group's count are given up when needed.
    match (group("memory.max"), group("memory.current")) {
        (Some(most), Some(used)) => {
            let files = fs::read_to_string("/sys/fs/cgroup/memory.stat").ok();
            let files = files.and_then(|stat| line(&stat, "file ")).unwrap_or(0);
            Some(machine.min(most.saturating_sub(used.saturating_sub(files))))
        }
        _ => Some(machine),
    }
}

fn machine(meminfo: &str) -> Option<u128> {
    Some(line(meminfo, "MemAvailable:")? * 1024)
}

/// The number in the line that begins with `name`.
fn line(text: &str, name: &str) -> Option<u128> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    line[name.len()..].split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_words_are_understood() {
        let meminfo = "MemTotal:       24000000 kB\nMemAvailable:   20000000 kB\n";
        assert_eq!(machine(meminfo), Some(20_000_000 * 1024));
        assert_eq!(machine("nothing"), None);
        assert_eq!(line("anon 5\nfile 7\n", "file "), Some(7));
    }

    #[test]
    fn what_no_machine_has_is_refused() {
        let device = Device::default();
        assert!(check("a model", 1 << 20, &device).is_ok());
        let error = check("a model", u128::MAX, &device).unwrap_err();
        assert!(matches!(error, Error::Memory { .. }), "{error}");
    }
}
