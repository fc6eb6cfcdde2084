//! `riverrun devices`: what there is to compute on.

use std::io::{Write, stdout};

use crate::failure::Failure;

/// Lists the devices of this machine.
pub fn run() -> Result<(), Failure> {
    let mut out = stdout().lock();
    for device in riverrun::device::list() {
        writeln!(out, "{device:?}")?;
    }
    Ok(())
}
