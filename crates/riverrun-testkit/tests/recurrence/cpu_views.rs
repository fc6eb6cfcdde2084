//! Views: packed, time-major and contiguous tensors give the same bits.

use riverrun_testkit::recurrence::check::{Case, Options};
use riverrun_testkit::recurrence::{Gate, Problem, Rows, RowsMut, Shape, cpu};

use crate::recurrence::assertions::assert_same_bits;

const SHAPE: Shape = Shape {
    batch: 3,
    steps: 7,
    dim: 37,
};

fn narrow(x: &[f64]) -> Vec<f32> {
    x.iter().map(|&x| x as f32).collect()
}

fn widen(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&x| f64::from(x)).collect()
}

/// `[B, T, D]` tensors side by side: `[B, T, G * D]`.
fn pack(tensors: &[Vec<f64>]) -> Vec<f32> {
    let rows = 0..SHAPE.batch * SHAPE.steps;
    let row = |r: usize| {
        tensors
            .iter()
            .flat_map(move |x| &x[r * SHAPE.dim..][..SHAPE.dim])
    };
    rows.flat_map(row).map(|&x| x as f32).collect()
}

/// `[B, T, D]` to `[T, B, D]`, or back if `batch` and `steps` are exchanged.
fn transpose<T: Copy>(x: &[T], batch: usize, steps: usize) -> Vec<T> {
    let row = |t: usize, b: usize| &x[(b * steps + t) * SHAPE.dim..][..SHAPE.dim];
    (0..steps)
        .flat_map(|t| (0..batch).flat_map(move |b| row(t, b)))
        .copied()
        .collect()
}

fn cases() -> impl Iterator<Item = Case> {
    let gates = Gate::all().into_iter().enumerate();
    gates.map(|(n, gate)| {
        let case = Case::random(
            Problem::new(SHAPE, gate),
            Options::nth(7 * n + 15),
            n as u64,
        );
        case.rounded::<f32>()
    })
}

#[test]
fn packed_tensors_give_the_same_bits() {
    for case in cases() {
        let groups = case.inputs.len();
        let expected = case.cpu::<f32>();
        let inputs = pack(&case.inputs);
        let view = |index| Rows::packed(&inputs, SHAPE, groups, index).unwrap();
        let inputs: Vec<Rows<f32>> = (0..groups).map(view).collect();
        let (h0, reset) = (case.h0.as_deref().map(narrow), case.reset.as_deref());

        // h goes into the middle of three columns, and the others must not be touched.
        let mut packed = vec![f32::NAN; 3 * SHAPE.elements()];
        let middle = RowsMut::split_packed(&mut packed, SHAPE, 3)
            .unwrap()
            .swap_remove(1);
        cpu::forward(&case.problem, &inputs, h0.as_deref(), reset, middle).unwrap();
        for step in packed.chunks(3 * SHAPE.dim) {
            assert!(step[..SHAPE.dim].iter().all(|x| x.is_nan()));
            assert!(step[2 * SHAPE.dim..].iter().all(|x| x.is_nan()));
        }
        let h = Rows::packed(&packed, SHAPE, 3, 1).unwrap();
        let found: Vec<f32> = (0..SHAPE.batch)
            .flat_map(|b| (0..SHAPE.steps).flat_map(move |t| h.row(b, t)))
            .copied()
            .collect();
        assert_same_bits("h", &widen(&found), &expected.h);

        let mut d_packed = vec![f32::NAN; groups * SHAPE.elements()];
        let d_inputs = RowsMut::split_packed(&mut d_packed, SHAPE, groups).unwrap();
        let d_h = narrow(&case.d_h);
        let d_h_last = case.d_h_last.as_deref().map(narrow);
        cpu::backward(
            &case.problem,
            &inputs,
            h0.as_deref(),
            reset,
            h,
            Rows::contiguous(&d_h, SHAPE).unwrap(),
            d_h_last.as_deref(),
            d_inputs,
            None,
        )
        .unwrap();
        assert_same_bits(
            "d_inputs",
            &widen(&d_packed),
            &widen(&pack(&expected.d_inputs)),
        );
    }
}

#[test]
fn time_major_tensors_give_the_same_bits() {
    let Shape { batch, steps, .. } = SHAPE;
    for case in cases() {
        let expected = case.cpu::<f32>();
        let inputs: Vec<Vec<f32>> = case
            .inputs
            .iter()
            .map(|x| transpose(&narrow(x), batch, steps))
            .collect();
        let inputs: Vec<Rows<f32>> = inputs
            .iter()
            .map(|x| Rows::time_major(x, SHAPE).unwrap())
            .collect();
        let (h0, reset) = (case.h0.as_deref().map(narrow), case.reset.as_deref());
        let mut h = vec![f32::NAN; SHAPE.elements()];
        let out = RowsMut::time_major(&mut h, SHAPE).unwrap();
        cpu::forward(&case.problem, &inputs, h0.as_deref(), reset, out).unwrap();
        assert_same_bits("h", &widen(&transpose(&h, steps, batch)), &expected.h);

        let d_h = transpose(&narrow(&case.d_h), batch, steps);
        let d_h_last = case.d_h_last.as_deref().map(narrow);
        let mut d = vec![vec![f32::NAN; SHAPE.elements()]; inputs.len()];
        let mut d_h0 = vec![f32::NAN; SHAPE.state()];
        cpu::backward(
            &case.problem,
            &inputs,
            h0.as_deref(),
            reset,
            Rows::time_major(&h, SHAPE).unwrap(),
            Rows::time_major(&d_h, SHAPE).unwrap(),
            d_h_last.as_deref(),
            d.iter_mut()
                .map(|d| RowsMut::time_major(d, SHAPE).unwrap())
                .collect(),
            Some(&mut d_h0),
        )
        .unwrap();
        for (found, expected) in d.iter().zip(&expected.d_inputs) {
            assert_same_bits("d_input", &widen(&transpose(found, steps, batch)), expected);
        }
        assert_same_bits("d_h0", &widen(&d_h0), &expected.d_h0);
    }
}
