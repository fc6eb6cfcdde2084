//! `riverrun bench hybrid --latency`: microseconds of each piece of the method.

use riverrun_train::hybrid::latency::{device_pieces, host_pieces};

use crate::commands::bench::report::Report;
use crate::commands::bench::row::Row;
use crate::failure::Failure;

/// Measures and prints.
pub fn run(report: &mut Report) -> Result<(), Failure> {
    let device = report.origin.device.clone();
    let host = host_pieces().into_iter().map(|piece| ("host", piece));
    let there = device_pieces(&report.device)?.into_iter();
    for (place, mut piece) in host.chain(there.map(|piece| (&device[..], piece))) {
        // The first call may compile kernels.
        piece.run()?;
        let mut failed = None;
        let time = report.time(0.1, || failed = failed.take().or(piece.run().err()));
        if let Some(error) = failed {
            return Err(error.into());
        }
        report.add(
            Row::new()
                .text("place", place)
                .wide("piece", 44, &piece.name)
                .us("time", time.divided(piece.calls)),
        )?;
    }
    Ok(())
}
