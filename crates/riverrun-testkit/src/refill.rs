//! Tensors that are filled again in place, as the inputs of recorded steps are.

use burn::tensor::{Int, Tensor, TensorData};
use riverrun::training::{refill, refill_int};

use crate::check::{Comparison, distance};
use crate::op::{download, random, upload};
use crate::{Failure, Operation, Part, Report, Row, Storage};

/// The entry in the table.
pub const OPERATION: Operation = Operation {
    name: "refill",
    about: "Tensors that are filled again in place",
    storages: &[Storage::F32],
    forms: |_| vec!["refill"],
    check: verify,
    weight: 0,
    shared: None,
    long: None,
};

/// Checks that the new numbers are read, and no longer the old ones.
pub fn verify(part: &Part<'_>, table: &mut dyn Report) -> Result<(), Failure> {
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

        let verdict = |tensor: &str, found: &[f64], expected: &[f64]| Comparison {
            tensor: tensor.into(),
            error: distance(found, expected),
            allowed: 0.0,
        };
        let verdicts = [
            verdict("floats", floats, &after),
            verdict("integers", integers, &expected),
        ];
        row.case(&verdicts, found == again);
    }
    table.row(part.device(), "refill", "f32", "op", row)
}
