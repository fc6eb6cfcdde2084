//! Padded sequences on the CPU.

use riverrun_kernels::CpuElement;
use riverrun_kernels::cell::check::{Case, Options, compare, routines};
use riverrun_kernels::cell::cpu::{self, PackedLayer, Routine, State};
use riverrun_kernels::cell::{Cell, InputGrads, Inputs, Layer, LayerGrads, Outputs, Problem};

const LENGTHS: Options = Options {
    lengths: true,
    ..Options::ALL
};

fn check<E: CpuElement>(case: &Case<E>, routine: Routine) {
    for comparison in compare(case, &case.run(routine)).unwrap() {
        let problem = case.problem;
        assert!(
            comparison.passes(),
            "{problem:?} {routine:?}: {comparison:?}"
        );
    }
}

#[test]
fn every_cell_direction_and_routine() {
    for cell in Cell::all() {
        for (seed, (batch, steps, hidden)) in [(1, 5, 3), (4, 9, 20), (7, 33, 37), (2, 1, 16)]
            .into_iter()
            .enumerate()
        {
            for reverse in [false, true] {
                let problem = Problem::new(cell, batch, steps, hidden).reversed(reverse);
                for options in [
                    LENGTHS,
                    Options {
                        reset: false,
                        ..LENGTHS
                    },
                ] {
                    let case = Case::<f32>::random(problem, options, seed as u64);
                    routines()
                        .into_iter()
                        .for_each(|routine| check(&case, routine));
                }
                let case = Case::<half::bf16>::random(problem, LENGTHS, seed as u64);
                check(&case, Routine::default());
            }
        }
    }
}

/// Whatever the padding of inputs holds, NaN too, nothing comes of it.
#[test]
fn padding_is_never_read() {
    for cell in Cell::all() {
        let (batch, steps, hidden, width) = (5, 12, 20, 9);
        for reverse in [false, true] {
            let problem = Problem::new(cell, batch, steps, hidden).reversed(reverse);
            let clean = Case::<f32>::random(problem, LENGTHS, 3);
            let mut poisoned = clean.clone();
            let lengths = clean.lengths.as_deref().unwrap();
            let gates = problem.gate_width();
            let padding = (0..batch * steps)
                .filter(|row| row % steps >= lengths[row / steps] as usize)
                .collect::<Vec<_>>();
            assert!(!padding.is_empty());
            for &row in &padding {
                poisoned.xg[row * gates..][..gates].fill(f32::NAN);
                poisoned.reset.as_mut().unwrap()[row] ^= true;
            }
            for routine in routines() {
                let (a, b) = (clean.run(routine), poisoned.run(routine));
                assert_eq!(a.bits(), b.bits(), "{} {routine:?}", cell.name());
            }
            // The same where the layer makes its input product.
            let mut rng = riverrun_kernels::cell::check::Random::new(8);
            let mut numbers =
                |len| -> Vec<f32> { rng.vec(len, 0.3).into_iter().map(|x| x as f32).collect() };
            let (mut x, w) = (numbers(batch * steps * width), numbers(gates * width));
            let mut results = Vec::new();
            for poison in [0.5, f32::NAN] {
                for &row in &padding {
                    x[row * width..][..width].fill(poison);
                }
                let layer = Layer {
                    x: &x,
                    width,
                    w: &w,
                    bias: None,
                };
                let inputs = Inputs {
                    xg: &[],
                    ..clean.inputs()
                };
                let zeros = |len: usize| vec![0.0f32; len];
                let [mut h, mut h_last] = [zeros(problem.outputs()), zeros(problem.state())];
                let mut saved = zeros(problem.saved());
                let outputs = Outputs {
                    h: &mut h,
                    h_last: &mut h_last,
                    c_last: None,
                    saved: Some(&mut saved),
                };
                cpu::forward_layer(&problem, &layer, &inputs, outputs, Routine::default()).unwrap();
                let [mut d_u, mut d_w] = [zeros(clean.u.len()), zeros(w.len())];
                let mut d_x = zeros(x.len());
                let into = InputGrads {
                    d_xg: &mut [],
                    d_u: Some(&mut d_u),
                    d_bias: None,
                    d_h0: None,
                    d_c0: None,
                };
                let into_layer = LayerGrads {
                    d_x: Some(&mut d_x),
                    d_w: Some(&mut d_w),
                    d_bias: None,
                };
                let grads = clean.grads();
                cpu::backward_layer(
                    &problem,
                    &layer,
                    &inputs,
                    &h,
                    &saved,
                    &grads,
                    into,
                    into_layer,
                    Routine::default(),
                )
                .unwrap();
                for &row in &padding {
                    assert!(d_x[row * width..][..width].iter().all(|&x| x == 0.0));
                }
                // Weights packed before give the same.
                let packed = PackedLayer::new(
                    cell,
                    [batch, width, hidden],
                    [&w, &clean.u],
                    [None, clean.bias.as_deref()],
                    Routine::default(),
                )
                .unwrap();
                let [mut h_packed, mut last] = [zeros(h.len()), zeros(h_last.len())];
                let outputs = Outputs {
                    h: &mut h_packed,
                    h_last: &mut last,
                    c_last: None,
                    saved: None,
                };
                let state = State {
                    h0: clean.h0.as_deref(),
                    c0: clean.c0.as_deref(),
                    reset: clean.reset.as_deref(),
                    lengths: clean.lengths.as_deref(),
                };
                if !reverse {
                    packed.forward([batch, steps], &x, state, outputs).unwrap();
                    assert!(h_packed == h && last == h_last);
                }
                assert!(h.iter().all(|x| x.is_finite()));
                results.push((h, h_last, d_u, d_w, d_x));
            }
            assert_eq!(results[0], results[1], "{}", cell.name());
        }
    }
}

#[test]
fn a_wrong_number_of_lengths_is_refused() {
    let problem = Problem::new(Cell::Lstm, 3, 4, 5);
    let mut case = Case::<f32>::random(problem, LENGTHS, 1);
    case.lengths = Some(vec![1; 2]);
    let mut h = vec![7.0f32; problem.outputs()];
    let mut last = vec![0.0f32; problem.state()];
    let outputs = Outputs {
        h: &mut h,
        h_last: &mut last,
        c_last: None,
        saved: None,
    };
    let error = cpu::forward(&problem, &case.inputs(), outputs, Routine::default());
    assert!(matches!(
        error,
        Err(riverrun_kernels::Error::Length {
            what: "lengths",
            ..
        })
    ));
    assert!(h.iter().all(|&x| x == 7.0));
}
