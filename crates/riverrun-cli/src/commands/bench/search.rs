//! `--search`: the algorithms of cuBLASLt, measured for the matmuls that a benchmark has run, and the fastest kept.

use std::io::Write;

use super::setup::Setup;
use crate::failure::Failure;

/// Refuses a device without cuBLASLt, before anything is measured.
pub(super) fn check(setup: &Setup) -> Result<(), Failure> {
    #[cfg(feature = "cuda")]
    if let Some(client) = setup.client()? {
        let vendor = riverrun_kernels::gemm::vendor::Vendor::of(&client);
        return vendor
            .map(|_| ())
            .map_err(|reason| Failure::User(format!("--search needs cuBLASLt: {reason}")));
    }
    let device = &setup.origin.device;
    Err(Failure::User(format!(
        "--search needs cuBLASLt, and {device} has none in this build"
    )))
}

/// Measures, prints and keeps.
#[cfg(feature = "cuda")]
pub(super) fn run(setup: &Setup, out: &mut impl Write) -> Result<(), Failure> {
    use riverrun_kernels::gemm::vendor::Vendor;

    let Some(client) = setup.client()? else {
        return check(setup);
    };
    let vendor = Vendor::of(&client).map_err(Failure::User)?;
    writeln!(
        out,
        "\n{:<5} {:>6} x {:>6} x {:>6}  {:<34} {:>10} {:>9} {:>10} {:>7}",
        "type", "m", "k", "n", "epilogue", "algorithm", "first us", "chosen us", "gain"
    )?;
    for problem in vendor.problems() {
        let (m, k, n) = (problem.m, problem.k, problem.n);
        let line = format!(
            "{:<5} {m:>6} x {k:>6} x {n:>6}  {:<34}",
            problem.dtype.name(),
            format!("{:?}", problem.epilogue)
        );
        match vendor.search(&client, &problem) {
            Ok(choice) => writeln!(
                out,
                "{line} {:>10} {:>9.2} {:>10.2} {:>6.1}%",
                format!("{} of {}", choice.algorithm + 1, choice.of),
                choice.first * 1e6,
                choice.chosen * 1e6,
                100.0 * (choice.first / choice.chosen - 1.0)
            )?,
            Err(reason) => writeln!(out, "{line} {reason}")?,
        }
    }
    let path = vendor.save().map_err(Failure::User)?;
    writeln!(
        out,
        "kept in {}; delete it to take cuBLASLt's own choices again",
        path.display()
    )?;
    Ok(())
}

#[cfg(not(feature = "cuda"))]
pub(super) fn run(setup: &Setup, _out: &mut impl Write) -> Result<(), Failure> {
    check(setup)
}
