//! `riverrun bench hybrid --latency`: microseconds of each piece of the method.

use std::io::Write;
use std::time::{Duration, Instant};

use riverrun_train::hybrid::latency::{Piece, device_pieces, host_pieces};
use serde::Serialize;

use crate::commands::bench::setup::Setup;
use crate::commands::bench::stats::{Refused, Timing, repeat};
use crate::failure::Failure;

/// Seconds of one call.
#[derive(Debug, Serialize)]
struct Row {
    piece: String,
    time: Timing,
}

/// All pieces.
#[derive(Debug, Serialize)]
pub struct Latencies {
    host: Vec<Row>,
    device: Vec<Row>,
    refused: Vec<String>,
}

/// Measures and prints.
pub fn run(out: &mut impl Write, setup: &Setup) -> Result<Latencies, Failure> {
    let mut refused = Refused::default();
    writeln!(out, "{:<44} {:>10} {:>6}", "on the host", "us", "±")?;
    let host = measure(out, host_pieces(), &mut refused)?;
    writeln!(out, "on {}: {}", setup.origin.device, setup.origin.name)?;
    let device = measure(out, device_pieces(&setup.device)?, &mut refused)?;
    Ok(Latencies {
        host,
        device,
        refused: refused.names().to_vec(),
    })
}

fn measure(
    out: &mut impl Write,
    pieces: Vec<Piece>,
    refused: &mut Refused,
) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    for mut piece in pieces {
        // The first call may compile kernels.
        piece.run()?;
        let mut failed = None;
        let time = repeat(Duration::from_millis(100), || {
            let start = Instant::now();
            failed = failed.take().or(piece.run().err());
            start.elapsed().as_secs_f64() / piece.calls as f64
        });
        if let Some(error) = failed {
            return Err(error.into());
        }
        if refused.admits(|| piece.name.clone(), &time) {
            writeln!(
                out,
                "{:<44} {:>10.3} {:>5.1}%",
                piece.name,
                time.median * 1e6,
                time.spread() * 100.0
            )?;
            rows.push(Row {
                piece: piece.name,
                time,
            });
        }
    }
    Ok(rows)
}
