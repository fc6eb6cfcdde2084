//! Sequences of different lengths in one batch, against each alone.

use burn::tensor::{Bool, Device, Tensor, TensorData};
use riverrun::Sequence;
use riverrun::ops::{
    Candidate, Cell, CellOptions, CellState, CellWeights, Gate, ScanOptions, block_diagonal_scan,
    cell_layer, gated_scan, linear_scan, linear_scan_gradients,
};

use crate::common::{assert_close, devices, numbers};
use crate::random;

const T: usize = 9;
const LENGTHS: [usize; 4] = [9, 4, 0, 1];
const D: usize = 6;

/// Where a NaN must not matter: `x` with NaN at the padded steps.
fn poisoned<const N: usize>(x: Tensor<N>, device: &Device) -> Tensor<N> {
    let shape = x.dims();
    let padded: Vec<bool> = LENGTHS
        .iter()
        .flat_map(|&length| (0..T).map(move |t| t >= length))
        .collect();
    let mask = Tensor::<2, Bool>::from_data(TensorData::new(padded, [LENGTHS.len(), T]), device);
    let mut wide = [1; N];
    wide[..2].copy_from_slice(&[LENGTHS.len(), T]);
    x.mask_fill(mask.reshape(wide).expand(shape), f32::NAN)
}

/// Every output and gradient of the whole batch, and of each sequence alone, have the same numbers.
///
/// `run` takes the input, the state, the resets and the lengths, and gives all states and the last one.
fn same<const N: usize>(
    name: &str,
    device: &Device,
    shape: [usize; N],
    exact: bool,
    run: impl Fn(Tensor<N>, Sequence) -> (Tensor<3>, Tensor<2>),
) {
    let batch = LENGTHS.len();
    let x: Tensor<N> = poisoned(random(shape, device), device)
        .detach()
        .require_grad();
    let h0: Tensor<2> = random([batch, D], device).require_grad();
    let marks: Vec<bool> = (0..batch * T).map(|n| n % 5 == 3).collect();
    let reset = Tensor::<2, Bool>::from_data(TensorData::new(marks, [batch, T]), device);
    let (d_h, d_last): (Tensor<3>, Tensor<2>) =
        (random([batch, T, D], device), random([batch, D], device));
    let whole = Sequence::new()
        .with_state(h0.clone())
        .with_reset(reset.clone())
        .with_lengths(&LENGTHS);
    let (h, last) = run(x.clone(), whole);
    let loss = (h.clone() * d_h.clone()).sum() + (last.clone() * d_last.clone()).sum();
    let grads = loss.backward();
    let d_x = x.grad(&grads).expect("a gradient");
    let d_h0 = h0.grad(&grads).expect("a gradient");
    let tolerance = if exact { 0.0 } else { 2e-6 };
    for (b, length) in LENGTHS.into_iter().enumerate() {
        let what = |what: &str| format!("{name} sequence {b} {what}");
        let close = |part: &str, found: Vec<f64>, expected: Vec<f64>| {
            assert_close(&what(part), &found, &expected, tolerance);
        };
        if length < T {
            let past = numbers(h.clone().narrow(0, b, 1).narrow(1, length, T - length));
            assert!(past.iter().all(|&h| h == 0.0), "{}", what("padding"));
            let past = numbers(d_x.clone().narrow(0, b, 1).narrow(1, length, T - length));
            assert!(past.iter().all(|&d| d == 0.0), "{}", what("d_x of padding"));
        }
        if length == 0 {
            close(
                "last",
                numbers(last.clone().narrow(0, b, 1)),
                numbers(h0.clone().narrow(0, b, 1)),
            );
            close(
                "d_h0",
                numbers(d_h0.clone().narrow(0, b, 1)),
                numbers(d_last.clone().narrow(0, b, 1)),
            );
            continue;
        }
        let one_x = x.clone().narrow(0, b, 1).narrow(1, 0, length).detach();
        let one_x = one_x.require_grad();
        let one_h0 = h0.clone().narrow(0, b, 1).detach().require_grad();
        let alone = Sequence::new()
            .with_state(one_h0.clone())
            .with_reset(reset.clone().narrow(0, b, 1).narrow(1, 0, length));
        let (one_h, one_last) = run(one_x.clone(), alone);
        let one_d_h = d_h.clone().narrow(0, b, 1).narrow(1, 0, length);
        let loss = (one_h.clone() * one_d_h).sum()
            + (one_last.clone() * d_last.clone().narrow(0, b, 1)).sum();
        let grads = loss.backward();
        close(
            "h",
            numbers(h.clone().narrow(0, b, 1).narrow(1, 0, length)),
            numbers(one_h),
        );
        close(
            "last",
            numbers(last.clone().narrow(0, b, 1)),
            numbers(one_last),
        );
        close(
            "d_x",
            numbers(d_x.clone().narrow(0, b, 1).narrow(1, 0, length)),
            numbers(one_x.grad(&grads).expect("a gradient")),
        );
        close(
            "d_h0",
            numbers(d_h0.clone().narrow(0, b, 1)),
            numbers(one_h0.grad(&grads).expect("a gradient")),
        );
    }
}

#[test]
fn scans() {
    let batch = LENGTHS.len();
    for (name, device) in devices() {
        let device = device.autodiff();
        let exact = name == "cpu";
        for reverse in [false, true] {
            let name = format!("{name} reverse {reverse}");
            let options = ScanOptions::new().with_reverse(reverse);
            let shape = [batch, T, D];
            same(&name, &device, shape, exact, |x, sequence| {
                linear_scan(x.clone(), x, sequence, options).unwrap()
            });
            let candidate = Candidate::default();
            for gate in [
                Gate::Sigmoid,
                Gate::MinGru { candidate },
                Gate::MinLstm {
                    candidate,
                    normalized: true,
                },
                Gate::MinLstm {
                    candidate,
                    normalized: false,
                },
                Gate::RgLru,
            ] {
                let name = format!("{name} {gate:?}");
                let shape = [batch, T, gate.inputs() * D];
                same(&name, &device, shape, exact, |k, sequence| {
                    gated_scan(k, gate, sequence, options).unwrap()
                });
            }
        }
    }
}

#[test]
fn block_diagonal() {
    for (name, device) in devices() {
        let device = device.autodiff();
        for reverse in [false, true] {
            let options = ScanOptions::new().with_reverse(reverse);
            let shape = [LENGTHS.len(), T, 2, 3, 3];
            let name = format!("{name} reverse {reverse}");
            same(&name, &device, shape, false, |a, sequence| {
                let [batch, steps, ..] = a.dims();
                let b = a.clone().narrow(4, 0, 1).reshape([batch, steps, D]);
                block_diagonal_scan(a / 3.0, b, sequence, options).unwrap()
            });
        }
    }
}

#[test]
fn gradients_of_their_own() {
    for (name, device) in devices() {
        let device = device.autodiff();
        let shape = [LENGTHS.len(), T, D];
        let a = poisoned(random(shape, &device), &device)
            .detach()
            .require_grad();
        let b = poisoned(random(shape, &device), &device)
            .detach()
            .require_grad();
        let d_h = random(shape, &device);
        let sequence = || Sequence::new().with_lengths(&LENGTHS);
        for reverse in [false, true] {
            let options = ScanOptions::new().with_reverse(reverse);
            let (h, _) = linear_scan(a.clone(), b.clone(), sequence(), options).unwrap();
            let grads = (h * d_h.clone()).sum().backward();
            let (x, y) = (a.clone(), b.clone());
            let d = linear_scan_gradients(x, y, sequence(), options, d_h.clone(), None).unwrap();
            for (what, found, leaf) in [("a", d.a, &a), ("b", d.b, &b)] {
                let expected = numbers(leaf.grad(&grads).expect("a gradient"));
                let what = format!("{name} reverse {reverse} {what}");
                assert_close(&what, &numbers(found), &expected, 2e-6);
            }
        }
    }
}

#[test]
fn cells() {
    for (name, device) in devices() {
        let device = device.autodiff();
        for cell in Cell::all() {
            for reverse in [false, true] {
                let rows = cell.gates() * D;
                let weights = CellWeights::new(
                    random([rows, 3], &device).detach(),
                    random([rows, D], &device).detach(),
                )
                .with_biases(Some(random([rows], &device).detach()), None);
                let options = CellOptions::new().with_reverse(reverse);
                let name = format!("{name} {} reverse {reverse}", cell.name());
                let shape = [LENGTHS.len(), T, 3];
                same(&name, &device, shape, false, |x, sequence| {
                    let sequence = sequence.map_state(|h| match cell {
                        Cell::Lstm => CellState::new(h.clone()).with_c(h),
                        _ => CellState::new(h),
                    });
                    let (h, last) =
                        cell_layer(x, weights.clone(), cell, sequence, options).unwrap();
                    match last.c {
                        Some(c) => (h, (last.h + c) * 0.5),
                        None => (h, last.h),
                    }
                });
            }
        }
    }
}

#[test]
fn padding_leaves_the_weights_alone() {
    for (name, device) in devices() {
        let device = device.autodiff();
        let x = poisoned(random([LENGTHS.len(), T, 3], &device), &device);
        let w = random([3 * D, 3], &device).require_grad();
        let u = random([3 * D, D], &device).require_grad();
        let weights = CellWeights::new(w.clone(), u.clone());
        let cell = Cell::Gru {
            reset: Default::default(),
        };
        let sequence = Sequence::new().with_lengths(&LENGTHS);
        let (h, _) = cell_layer(x, weights, cell, sequence, CellOptions::new()).unwrap();
        let grads = h.sum().backward();
        for leaf in [&w, &u] {
            let gradient = numbers(leaf.grad(&grads).expect("a gradient"));
            assert!(gradient.iter().all(|x| x.is_finite()), "{name}");
        }
    }
}
