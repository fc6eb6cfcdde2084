//! `riverrun bench transfer`: bytes from the host to the device and back, through tensors, and from one buffer of the device to
//! another.

use std::hint::black_box;

use burn::tensor::{DType, Tensor, TensorData};

use super::report::{Report, bug};
use super::row::Row;
use crate::failure::Failure;

/// Options of `riverrun bench transfer`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Example:\n  riverrun bench transfer --device cuda:0 --json transfer.json")]
pub struct Args {
    /// Bytes of a tensor, separated by commas
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "4096,65536,1048576,16777216,268435456", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(4..))]
    bytes: Vec<usize>,
}

/// Measures and prints.
pub fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    let device = report.device.clone();
    for &bytes in &args.bytes {
        let numbers = bytes / 4;
        let data: Vec<f32> = (0..numbers).map(|n| n as f32).collect();
        let upload = || {
            let data = TensorData::new(data.clone(), [numbers]);
            Tensor::<1>::from_data(data, (&device, DType::F32))
        };
        let there = upload();
        let back = there.clone().into_data();
        if back.as_slice::<f32>().map_err(bug)? != data {
            return Err(Failure::Bug("numbers came back as others".into()));
        }
        // What a call does beside the transfer.
        let copied = report.time(0.1, || drop(black_box(data.clone())));
        let sent = report.time(0.2, || {
            let there = upload();
            device.sync().expect("a device that answers");
            drop(there);
        });
        // The bytes come when they are first looked at.
        let read = report.time(0.2, || {
            let back = there.clone().into_data();
            drop(black_box(back.as_slice::<f32>().map(<[f32]>::last)));
        });
        let moved = report.time(0.2, || {
            let moved = there.clone() + 1.0;
            device.sync().expect("a device that answers");
            drop(moved);
        });
        let rate = |seconds: f64| bytes as f64 / seconds / 1e9;
        report.add(
            Row::new()
                .count("bytes", bytes)
                .us("to_device", sent)
                .number("to_gb_per_s", 2, rate(sent.median))
                .us("from_device", read)
                .number("from_gb_per_s", 2, rate(read.median))
                .us("on_device", moved)
                .us("on_host", copied),
        )?;
    }
    report.line(
        "to and from: a tensor made of a host's vector and read into one, waited for; on device: one addition to every number, waited\n\
         for; on host: the copy of the vector that `to` begins with.",
    )
}
