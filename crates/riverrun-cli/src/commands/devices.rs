//! `riverrun devices`: the devices of this machine, and the routine that each operation takes on them.

use std::io::{Write, stdout};

use crate::failure::Failure;

/// Lists the devices of this machine.
pub fn run() -> Result<(), Failure> {
    let mut out = stdout().lock();
    for info in riverrun::device::list() {
        let software = if info.software {
            " (software: for checking, not for speed)"
        } else {
            ""
        };
        writeln!(out, "{}: {}{software}", info.spec, info.name())?;
        #[cfg(feature = "gpu")]
        if let Some(client) = riverrun::device::client(&info.device) {
            gpu(&mut out, &client)?;
            continue;
        }
        writeln!(out, "  storage: f32, f16, bf16, f64")?;
        writeln!(
            out,
            "  recurrence: one SIMD loop over time, threads over sequences and channels"
        )?;
    }
    writeln!(
        out,
        "this build knows: {}",
        riverrun::device::built_in().join(", ")
    )?;
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
        match Routine::choose(client, &problem, None) {
            Ok(routine) => writeln!(out, "  recurrence, {what}: {}", routine.name())?,
            Err(error) => writeln!(out, "  recurrence, {what}: none, {error}")?,
        }
    }
    if let Some(reason) = Routine::LookBack.missing(client) {
        writeln!(out, "  recurrence: no look-back, because {reason}")?;
    }
    Ok(())
}

#[cfg(feature = "gpu")]
fn yes(there: bool) -> &'static str {
    if there { "yes" } else { "no" }
}
