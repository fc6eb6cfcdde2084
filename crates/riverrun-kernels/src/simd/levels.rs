//! The instruction sets of this machine, for tests that want each of them.

use pulp::Arch;

/// Every instruction set that a kernel can be compiled for and that this machine has, widest first.
pub fn available() -> Vec<Arch> {
    let mut levels = Vec::new();
    #[cfg(target_arch = "x86_64")]
    {
        levels.extend(pulp::x86::V4::try_new().map(Arch::V4));
        levels.extend(pulp::x86::V3::try_new().map(Arch::V3));
        levels.push(Arch::Scalar);
    }
    #[cfg(not(target_arch = "x86_64"))]
    levels.push(Arch::new());
    levels
}
