//! Linear recurrences that compute their states again in the backward pass.

use burn::tensor::Device;
use riverrun::Sequence;
use riverrun::ops::{SavedStates, ScanOptions, gated_scan, linear_scan};
use riverrun_kernels::Element;
use riverrun_kernels::recurrence::{Gate, Problem, Shape};

use crate::op::{download, gradient, mask, same_bits, upload};
use crate::recurrence::check::{Case, Options, Outcome, compare, naive};
use crate::{Failure, Operation, Part, Report, Row, Storage, Target, by_storage};

/// The entry in the table.
pub const OPERATION: Operation = Operation {
    name: "recompute",
    about: "Linear recurrences that save fewer states and recompute the others",
    storages: &[Storage::F32, Storage::F16, Storage::Bf16],
    forms,
    check: verify,
    weight: 2,
    shared: crate::storage::HALVES,
    long: None,
};

const FORMS: [&str; 3] = ["raw", "min-gru", "min-lstm"];

/// Three gates represent all: recomputation is the same for each.
pub fn forms(_: &Target) -> Vec<&'static str> {
    FORMS.to_vec()
}

/// Checks gradients from recomputed states.
pub fn verify(part: &Part<'_>, table: &mut dyn Report) -> Result<(), Failure> {
    by_storage!(part.storage, check(part, table))
}

fn check<E: Element>(part: &Part<'_>, table: &mut dyn Report) -> Result<(), Failure> {
    let gate = Gate::all()
        .into_iter()
        .find(|gate| gate.name() == part.form)
        .expect("one of the forms");
    let mut row = Row::default();
    for n in 0..3 {
        let problem = Problem::new(Shape::new(2, 70, 12), gate);
        let case = Case::random(problem, Options::nth(6 * n + 3), 40 + n as u64).rounded::<E>();
        let device = &part.target.device;
        let run = || run(device, part.storage, &case, SavedStates::None);
        let (found, again) = (run()?, run()?);
        let repeats = same_bits(&tensors(&found), &tensors(&again));
        let verdicts = compare::<E>(70, &found, &naive::run::<E>(&case), &case.oracle());
        row.case(&verdicts, repeats);
    }
    let what = format!("recompute {}", part.form);
    table.row(part.device(), &what, E::NAME, "op", row)
}

/// Every tensor of an outcome.
pub fn tensors(outcome: &Outcome) -> Vec<Vec<f64>> {
    let tensors = outcome.tensors().into_iter();
    tensors.map(|(_, tensor)| tensor.to_vec()).collect()
}

/// Runs a case through the operation and its backward pass.
pub fn run(
    device: &Device,
    storage: Storage,
    case: &Case,
    saved_states: SavedStates,
) -> Result<Outcome, Failure> {
    let device = device.clone().autodiff();
    let Shape { batch, steps, dim } = case.problem.shape;
    let gate = case.problem.gate;
    let groups = gate.inputs();
    let up = |numbers: &[f64], width: usize| {
        upload(numbers, [batch, steps, width], storage, &device).require_grad()
    };
    let state = |numbers: &Vec<f64>| upload(numbers, [batch, dim], storage, &device);
    let h0 = case.h0.as_ref().map(|h0| state(h0).require_grad());
    let reset = case.reset.as_ref();
    let reset = reset.map(|marks| mask(marks, [batch, steps], &device));
    let mut sequence = Sequence::from(h0.clone());
    sequence.reset = reset;
    let options = ScanOptions::new()
        .with_reverse(case.problem.reverse)
        .with_saved_states(saved_states);
    let (leaves, (h, last)) = if gate == Gate::Raw {
        let leaves = vec![up(&case.inputs[0], dim), up(&case.inputs[1], dim)];
        let out = linear_scan(leaves[0].clone(), leaves[1].clone(), sequence, options)?;
        (leaves, out)
    } else {
        // Side by side in every step.
        let rows = (0..batch * steps).flat_map(|row| {
            let inputs = case.inputs.iter();
            inputs.flat_map(move |input| input[row * dim..(row + 1) * dim].iter().copied())
        });
        let leaves = vec![up(&rows.collect::<Vec<f64>>(), groups * dim)];
        let out = gated_scan(leaves[0].clone(), gate, sequence, options)?;
        (leaves, out)
    };
    let d_h = upload(&case.d_h, [batch, steps, dim], storage, &device);
    let mut loss = (h.clone() * d_h).sum();
    if let Some(d_last) = &case.d_h_last {
        loss = loss + (last.clone() * state(d_last)).sum();
    }
    let gradients = loss.backward();
    let d_inputs = if gate == Gate::Raw {
        leaves
            .iter()
            .map(|leaf| gradient(leaf, &gradients))
            .collect()
    } else {
        let packed = gradient(&leaves[0], &gradients);
        let part = |k: usize| {
            let rows = packed.chunks(groups * dim);
            rows.flat_map(|row| row[k * dim..(k + 1) * dim].to_vec())
                .collect()
        };
        (0..groups).map(part).collect()
    };
    // Without an initial state there is no gradient of it to compare.
    let d_h0 = match h0 {
        Some(h0) => gradient(&h0, &gradients),
        None => case.oracle().d_h0,
    };
    Ok(Outcome {
        h: download(h),
        h_last: download(last),
        d_inputs,
        d_h0,
    })
}
