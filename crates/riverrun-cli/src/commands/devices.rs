//! `riverrun devices`: the devices of this machine, and the routine that each operation takes on them.

use std::io::{Write, stdout};

use burn::tensor::Device;
use riverrun::ops::product_libraries;

use crate::failure::Failure;

/// Lists the devices of this machine; `verbose`, the library that computes the matmuls of each type too.
pub fn run(verbose: bool) -> Result<(), Failure> {
    let mut out = stdout().lock();
    for info in riverrun::device::list() {
        let software = if info.software {
            " (software: for checking, not for speed)"
        } else {
            ""
        };
        writeln!(out, "{}: {}{software}", info.spec, info.name())?;
        #[cfg(feature = "gpu")]
        let client = riverrun::device::client(&info.device);
        #[cfg(not(feature = "gpu"))]
        let client: Option<()> = None;
        match client {
            #[cfg(feature = "gpu")]
            Some(client) => gpu(&mut out, &client)?,
            _ => {
                writeln!(out, "  storage: f32, f16, bf16, f64")?;
                writeln!(
                    out,
                    "  recurrence: one SIMD loop over time, threads over sequences and channels"
                )?;
            }
        }
        if verbose {
            matmuls(&mut out, &info.device)?;
            #[cfg(all(feature = "cuda", unix))]
            attention(&mut out, &info.device)?;
        }
    }
    writeln!(
        out,
        "this build knows: {}",
        riverrun::device::built_in().join(", ")
    )?;
    writeln!(out, "kernel cache: {}", super::cache::summary())?;
    Ok(())
}

/// The library that computes the matmuls of each type.
fn matmuls(out: &mut impl Write, device: &Device) -> Result<(), Failure> {
    for found in product_libraries(device) {
        let dtype = format!("{:?}", found.dtype).to_lowercase();
        let reason = found
            .reason
            .map_or_else(String::new, |why| format!(" ({why})"));
        writeln!(out, "  matmuls in {dtype}: {}{reason}", found.name)?;
    }
    Ok(())
}

/// The library that computes attention in 16 bits on a GPU.
#[cfg(all(feature = "cuda", unix))]
fn attention(out: &mut impl Write, device: &Device) -> Result<(), Failure> {
    use riverrun_kernels::attention::vendor::Vendor;

    let Some(client) = riverrun::device::client(device) else {
        return Ok(());
    };
    match Vendor::of(&client) {
        Ok(vendor) => writeln!(out, "  attention in 16 bits: cuDNN {}", vendor.version())?,
        Err(reason) => {
            let tensor_cores = riverrun_kernels::gpu::capability(&client) >= Some(80);
            let form = match tensor_cores {
                true => "tiles, on tensor cores in 16 bits",
                false => "tiles",
            };
            writeln!(out, "  attention: {form} ({reason})")?;
        }
    }
    Ok(())
}

#[cfg(feature = "gpu")]
fn gpu(out: &mut impl Write, client: &cubecl::client::Client) -> Result<(), Failure> {
    use riverrun_kernels::gpu::Dtype;
    use riverrun_kernels::recurrence::{Gate, Problem, Routine, Shape};

    let hardware = &client.properties().hardware;
    let features = client.features();
    let dtypes: Vec<&str> = Dtype::ALL
        .into_iter()
        .filter(|dtype| dtype.supported(client))
        .map(Dtype::name)
        .collect();
    writeln!(out, "  storage: {}", dtypes.join(", "))?;
    writeln!(
        out,
        "  features: memory order between cubes {}, clusters {}, {} multiprocessors, {} units a cube",
        yes(features.device_memory_scope),
        yes(features.cube_cluster),
        hardware
            .num_streaming_multiprocessors
            .map_or("unknown number of".into(), |n| n.to_string()),
        hardware.max_units_per_cube,
    )?;
    for (what, shape) in [
        ("short (16x64x256)", Shape::new(16, 64, 256)),
        ("long (16x4096x256)", Shape::new(16, 4096, 256)),
    ] {
        let problem = Problem::new(shape, Gate::Raw);
        match Routine::choose(client, &problem, Dtype::F32, None) {
            Ok(routine) => writeln!(out, "  recurrence, {what}: {}", routine.name())?,
            Err(error) => writeln!(out, "  recurrence, {what}: none, {error}")?,
        }
    }
    if let Some(reason) = Routine::LookBack.missing(client) {
        writeln!(out, "  recurrence: no look-back, because {reason}")?;
    }
    if let Some(table) = riverrun_kernels::tuned::Table::of(client)
        && let Some(file) = table.file()
    {
        let changed = std::fs::metadata(file).and_then(|known| known.modified());
        let (entries, file, date) = (table.len(), file.display(), changed.map(date));
        let date = date.map_or_else(|_| String::new(), |date| format!(" of {date}"));
        writeln!(out, "  tuning: {entries} entries{date}, {file}")?;
    }
    Ok(())
}

/// The day of a moment, by the calendar of UTC.
#[cfg(feature = "gpu")]
fn date(moment: std::time::SystemTime) -> String {
    let since = moment.duration_since(std::time::UNIX_EPOCH);
    // Days since March 1st of the year 0; years begin in March, 400 of them have 146 097 days.
    let days = since.map_or(0, |since| since.as_secs() / 86_400) + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let year = era * 400 + year + u64::from(month >= 10);
    let month = (month + 2) % 12 + 1;
    format!("{year}-{month:02}-{day:02}")
}

#[cfg(feature = "gpu")]
fn yes(there: bool) -> &'static str {
    if there { "yes" } else { "no" }
}

#[cfg(all(test, feature = "gpu"))]
mod tests {
    use super::*;

    #[test]
    fn days_have_dates() {
        let date = |days: u64| {
            let since = std::time::Duration::from_secs(days * 86_400 + 86_399);
            date(std::time::UNIX_EPOCH + since)
        };
        assert_eq!(date(0), "1970-01-01");
        assert_eq!(date(11_016), "2000-02-29");
        assert_eq!(date(20_453), "2025-12-31");
        assert_eq!(date(20_454), "2026-01-01");
    }
}
