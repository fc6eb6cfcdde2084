//! Tensors that are written to: in place, as the inputs of recorded steps are, or in a copy where they have another owner.

use burn::tensor::{Int, Tensor, TensorData};
use riverrun::training::{FlatTensor, from_flat, refill, refill_int};

use crate::check::{Comparison, distance};
use crate::op::{download, random, upload};
use crate::{Failure, Operation, Part, Report, Row, Storage};

/// The entry in the table.
pub const OPERATION: Operation = Operation {
    name: "refill",
    about: "Tensors that are written to, in place or in a copy",
    storages: &[Storage::F32],
    forms: |_| vec!["refill", "shared"],
    check: |part, report| match part.form {
        "refill" => in_place(part, report),
        _ => in_copies(part, report),
    },
    weight: 0,
    shared: None,
    long: None,
};

/// Checks that the new numbers are read, and no longer the old ones.
fn in_place(part: &Part<'_>, table: &mut dyn Report) -> Result<(), Failure> {
    let device = &part.target.device;
    let mut row = Row::default();
    for (n, count) in [1, 7, 1000, 100_001].into_iter().enumerate() {
        let before = random::<f32>(n as u64, count, 1.0);
        let after = random::<f32>(90 + n as u64, count, 1.0);
        let numbers: Vec<i32> = (0..count as i32).map(|x| 3 - x).collect();
        let run = || -> Result<[Vec<f64>; 2], Failure> {
            let tensor = upload(&before, [count], part.storage, device);
            let floats = refill(tensor, TensorData::new(after.clone(), [count]))?;
            let old: Vec<i32> = (0..count as i32).collect();
            let integers = Tensor::<1, Int>::from_data(TensorData::new(old, [count]), device);
            let integers = refill_int(integers, TensorData::new(numbers.clone(), [count]))?;
            Ok([
                download(floats),
                integers.into_data().iter::<f64>().collect(),
            ])
        };
        let (found, again) = (run()?, run()?);
        let [floats, integers] = &found;
        let expected: Vec<f64> = numbers.iter().copied().map(f64::from).collect();
        let verdicts = [
            verdict("floats", floats, &after),
            verdict("integers", integers, &expected),
        ];
        row.case(&verdicts, found == again);
    }
    table.row(part.device(), "refill", "f32", "op", row)
}

/// Checks that a tensor has the new numbers, and its clone the old ones: of rows whose length suits the device, and of others.
fn in_copies(part: &Part<'_>, table: &mut dyn Report) -> Result<(), Failure> {
    let device = &part.target.device;
    let mut row = Row::default();
    for shape in [[3, 64], [5, 65], [1, 7], [100, 33]] {
        let count = shape[0] * shape[1];
        let before = random::<f32>(count as u64, count, 1.0);
        let after = random::<f32>(90 + count as u64, count, 1.0);
        let run = || -> Result<[Vec<f64>; 2], Failure> {
            let tensor = upload(&before, shape, part.storage, device);
            let vector = upload(&after, [count], part.storage, device);
            let flat = FlatTensor::new(tensor.clone(), 0, 0)?;
            let put = from_flat(vec![flat], &vector)?.remove(0);
            Ok([download(put.into_tensor::<2>()), download(tensor)])
        };
        let (found, again) = (run()?, run()?);
        let [new, old] = &found;
        let verdicts = [
            verdict("tensor", new, &after),
            verdict("clone", old, &before),
        ];
        row.case(&verdicts, found == again);
    }
    table.row(part.device(), "shared", "f32", "op", row)
}

fn verdict(tensor: &str, found: &[f64], expected: &[f64]) -> Comparison {
    Comparison {
        tensor: tensor.into(),
        error: distance(found, expected),
        allowed: 0.0,
    }
}
