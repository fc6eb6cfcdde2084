//! The CPU form against the oracle, for every output and every gradient.

use half::{bf16, f16};
use riverrun_kernels::CpuElement;
use riverrun_kernels::cell::check::{Case, Options, Random, Results, compare, routines};
use riverrun_kernels::cell::{
    Cell, InputGrads, Inputs, Layer, LayerGrads, Outputs, Problem, cpu, oracle,
};

/// The results of the oracle, in the order of [`Results::named`].
fn exact(case: &Case<f64>) -> Results<f64> {
    case.oracle().unwrap()
}

fn worst(found: &[f64], exact: &[f64]) -> f64 {
    assert_eq!(found.len(), exact.len());
    // Not `f64::max`, which drops NaN.
    found
        .iter()
        .zip(exact)
        .map(|(f, e)| (f - e).abs())
        .fold(0.0, |a, b| if b > a || b.is_nan() { b } else { a })
}

fn scale(values: &[f64]) -> f64 {
    values.iter().fold(0.0, |a: f64, b| a.max(b.abs()))
}

fn check(case: &Case<f32>, routines: &[cpu::Routine]) {
    for &routine in routines {
        for verdict in compare(case, &case.run(routine)).unwrap() {
            assert!(
                verdict.passes(),
                "{:?} {routine:?}: {verdict:?}",
                case.problem
            );
        }
    }
}

#[test]
fn f32_every_shape() {
    let mut seed = 0;
    for cell in Cell::all() {
        for batch in [0, 1, 3, 16] {
            for steps in [0, 1, 2, 33, 127] {
                for hidden in [1, 3, 64, 100, 256] {
                    seed += 1;
                    // The slow forms of the large ones once each; the small ones in every routine.
                    let large = batch * steps * hidden * hidden > 1 << 22;
                    if large && steps == 127 && (batch == 16 || hidden == 256 && batch != 1) {
                        continue;
                    }
                    let problem = Problem::new(cell, batch, steps, hidden).reversed(seed % 2 == 0);
                    let options = if seed % 3 == 0 {
                        Options::NONE
                    } else {
                        Options::ALL
                    };
                    let all = routines();
                    check(
                        &Case::random(problem, options, seed),
                        if large { &all[..3] } else { &all },
                    );
                }
            }
        }
    }
}

#[test]
fn f32_large() {
    for cell in Cell::all() {
        check(
            &Case::random(Problem::new(cell, 16, 127, 100), Options::ALL, 5),
            &routines()[..3],
        );
        check(
            &Case::random(Problem::new(cell, 3, 127, 256), Options::ALL, 6),
            &routines()[..3],
        );
    }
}

#[test]
fn optional_inputs_one_by_one() {
    let options = [
        Options {
            bias: true,
            ..Options::NONE
        },
        Options {
            initial: true,
            ..Options::NONE
        },
        Options {
            reset: true,
            ..Options::NONE
        },
        Options {
            last_grads: true,
            ..Options::NONE
        },
        Options {
            last_grads: true,
            no_d_h: true,
            ..Options::NONE
        },
        Options {
            no_d_h: true,
            ..Options::NONE
        },
    ];
    for cell in Cell::all() {
        for (seed, options) in options.into_iter().enumerate() {
            for reverse in [false, true] {
                let problem = Problem::new(cell, 5, 9, 20).reversed(reverse);
                check(&Case::random(problem, options, seed as u64), &routines());
            }
        }
    }
}

/// Every number of rows that a tile can have.
#[test]
fn every_tile() {
    for cell in [Cell::all()[0], Cell::all()[1], Cell::Lstm] {
        for batch in 1..=19 {
            check(
                &Case::random(Problem::new(cell, batch, 3, 52), Options::ALL, batch as u64),
                &routines(),
            );
        }
    }
}

#[test]
fn f64_is_the_oracle() {
    for cell in Cell::all() {
        for (batch, steps, hidden) in [(1, 33, 64), (3, 20, 13), (16, 7, 100)] {
            let case =
                Case::<f64>::random(Problem::new(cell, batch, steps, hidden), Options::ALL, 9);
            let exact = exact(&case).named();
            for routine in routines() {
                for ((name, found), (_, exact)) in case.run(routine).named().iter().zip(&exact) {
                    let allowed = 1e-13 * (1.0 + scale(exact)) * (steps * hidden) as f64;
                    assert!(
                        worst(found, exact) <= allowed,
                        "{name} {:e}",
                        worst(found, exact)
                    );
                }
            }
        }
    }
}

/// The input product made inside against the same made outside in `f64`.
#[test]
fn layer_makes_its_input_product() {
    for cell in Cell::all() {
        for (batch, steps, hidden, width) in [
            (1, 70, 36, 20),
            (3, 33, 20, 1),
            (17, 19, 64, 64),
            (2, 1, 5, 9),
            (40, 29, 20, 24),
            (140, 5, 12, 17),
            (0, 3, 4, 4),
            (3, 0, 4, 4),
        ] {
            let problem = Problem::new(cell, batch, steps, hidden).reversed(width % 2 == 0);
            let mut case = Case::<f32>::random(problem, Options::ALL, 11);
            let mut rng = Random::new(5);
            let mut numbers = |len| {
                rng.vec(len, 0.3)
                    .into_iter()
                    .map(|x| x as f32)
                    .collect::<Vec<_>>()
            };
            let (x, w) = (
                numbers(batch * steps * width),
                numbers(problem.gate_width() * width),
            );
            let bias = numbers(problem.gate_width());
            for (row, to) in case.xg.chunks_exact_mut(problem.gate_width()).enumerate() {
                for (gate, to) in to.iter_mut().enumerate() {
                    let products = (0..width)
                        .map(|i| f64::from(x[row * width + i]) * f64::from(w[gate * width + i]));
                    *to = (products.sum::<f64>() + f64::from(bias[gate])) as f32;
                }
            }
            let exact = oracle::forward(&problem, &case.to::<f64>().inputs()).unwrap();
            for routine in routines() {
                let layer = Layer {
                    x: &x,
                    width,
                    w: &w,
                    bias: Some(&bias),
                };
                let nan = |len: usize| vec![f32::NAN; len];
                let (mut h, mut h_last, mut saved) = (
                    nan(problem.outputs()),
                    nan(problem.state()),
                    nan(problem.saved()),
                );
                let outputs = Outputs {
                    h: &mut h,
                    h_last: &mut h_last,
                    c_last: None,
                    saved: Some(&mut saved),
                };
                let inputs = Inputs {
                    xg: &[],
                    ..case.inputs()
                };
                cpu::forward_layer(&problem, &layer, &inputs, outputs, routine).unwrap();

                let (mut d_xg, mut d_x) = (nan(case.xg.len()), nan(x.len()));
                let (mut d_w, mut d_bias) = (nan(w.len()), nan(bias.len()));
                let into = InputGrads {
                    d_xg: &mut d_xg,
                    d_u: None,
                    d_bias: None,
                    d_h0: None,
                    d_c0: None,
                };
                let of_layer = LayerGrads {
                    d_x: Some(&mut d_x),
                    d_w: Some(&mut d_w),
                    d_bias: Some(&mut d_bias),
                };
                let grads = case.grads();
                cpu::backward_layer(
                    &problem, &layer, &inputs, &h, &saved, &grads, into, of_layer, routine,
                )
                .unwrap();
                // Without a place for `d_xg`, which is then kept for some steps at a time.
                let [mut d_x_again, mut d_w_again] = [nan(x.len()), nan(w.len())];
                let into = InputGrads {
                    d_xg: &mut [],
                    d_u: None,
                    d_bias: None,
                    d_h0: None,
                    d_c0: None,
                };
                let of_layer = LayerGrads {
                    d_x: Some(&mut d_x_again),
                    d_w: Some(&mut d_w_again),
                    d_bias: None,
                };
                cpu::backward_layer(
                    &problem, &layer, &inputs, &h, &saved, &grads, into, of_layer, routine,
                )
                .unwrap();
                assert!(d_x_again == d_x && d_w_again == d_w);
                // The same from `d_xg` in `f64`.
                let (gates, rows) = (problem.gate_width(), batch * steps);
                let d = |row: usize, gate: usize| f64::from(d_xg[row * gates + gate]);
                let close = |name: &str, found: f32, exact: f64| {
                    assert!(
                        (f64::from(found) - exact).abs() < 1e-4 * (1.0 + exact.abs()),
                        "{name}: {found} {exact}"
                    );
                };
                for gate in 0..gates {
                    close(
                        "d_bias",
                        d_bias[gate],
                        (0..rows).map(|row| d(row, gate)).sum(),
                    );
                    for i in 0..width {
                        let sum = (0..rows)
                            .map(|row| d(row, gate) * f64::from(x[row * width + i]))
                            .sum();
                        close("d_w", d_w[gate * width + i], sum);
                    }
                }
                for (at, &found) in d_x.iter().enumerate() {
                    let (row, i) = (at / width, at % width);
                    close(
                        "d_x",
                        found,
                        (0..gates)
                            .map(|gate| d(row, gate) * f64::from(w[gate * width + i]))
                            .sum(),
                    );
                }
                let h: Vec<f64> = h.iter().map(|&x| x.into()).collect();
                let allowed = 4.0
                    * f64::from(f32::EPSILON)
                    * ((steps * hidden) as f64).sqrt()
                    * scale(&exact.h);
                assert!(
                    worst(&h, &exact.h) <= allowed,
                    "{problem:?} {routine:?} {:e}",
                    worst(&h, &exact.h)
                );
            }
        }
    }
}

/// Storage in 16 bits: inputs are exact, so the error is that of rounding the results (and `h` before backward).
fn half_precision<E: CpuElement>() {
    for cell in Cell::all() {
        let case = Case::<E>::random(Problem::new(cell, 3, 17, 40), Options::ALL, 21);
        let exact = exact(&case.to()).named();
        for routine in routines() {
            for ((name, found), (_, exact)) in case.run(routine).named().iter().zip(&exact) {
                let allowed = 2.0 * E::EPSILON * scale(exact);
                assert!(
                    worst(found, exact) <= allowed,
                    "{} {name} {:e}",
                    E::NAME,
                    worst(found, exact)
                );
            }
        }
    }
}

#[test]
fn f16_storage() {
    half_precision::<f16>();
}

#[test]
fn bf16_storage() {
    half_precision::<bf16>();
}

/// Gates that are closed or open all the way pass the state on exactly.
#[test]
fn saturated_gates_are_exact() {
    let (hidden, steps) = (20, 50);
    let p = Problem::new(Cell::all()[0], 1, steps, hidden);
    let mut case = Case::<f32>::random(
        p,
        Options {
            initial: true,
            ..Options::NONE
        },
        2,
    );
    case.u.fill(0.0);
    for x in case.xg.chunks_exact_mut(3 * hidden) {
        x[hidden..2 * hidden].fill(200.0);
    }
    for routine in routines() {
        assert_eq!(case.run(routine).h_last, case.h0.clone().unwrap());
    }
    let p = Problem::new(Cell::Lstm, 1, steps, hidden);
    let mut case = Case::<f32>::random(
        p,
        Options {
            initial: true,
            ..Options::NONE
        },
        2,
    );
    case.u.fill(0.0);
    for x in case.xg.chunks_exact_mut(4 * hidden) {
        x[..hidden].fill(-200.0);
        x[hidden..2 * hidden].fill(200.0);
    }
    for routine in routines() {
        assert_eq!(case.run(routine).c_last, case.c0.clone().unwrap());
    }
}

#[test]
fn zero_inputs_leave_a_zero_state() {
    for cell in Cell::all() {
        let mut case = Case::<f32>::random(Problem::new(cell, 3, 4, 40), Options::NONE, 4);
        case.xg.fill(0.0);
        for routine in routines() {
            let found = case.run(routine);
            assert!(found.h.iter().all(|&h| h == 0.0), "{}", cell.name());
        }
        check(&case, &routines());
    }
}

/// A step of more hidden units than a GPU's largest cube has threads.
#[test]
fn wide_states() {
    let routine = [cpu::Routine::default()];
    let tanh = Cell::Elman {
        activation: riverrun_kernels::cell::Activation::Tanh,
    };
    for (cell, hidden) in [(Cell::all()[0], 2048), (Cell::all()[1], 2048), (tanh, 4096)] {
        let problem = Problem::new(cell, 1, 1, hidden);
        check(&Case::random(problem, Options::ALL, 3), &routine);
    }
}

/// One step from a zero state without recurrent weights, where every result is a formula of its own pre-activations:
/// near 0 and near saturation each number keeps its own digits, not just those that the largest number has.
#[test]
fn small_and_saturated_values_keep_their_digits() {
    let magnitudes: Vec<f64> = (-60..=19)
        .map(|i| 10f64.powf(f64::from(i) / 10.0))
        .collect();
    let values: Vec<f32> = magnitudes
        .iter()
        .flat_map(|&x| [x as f32, -x as f32])
        .collect();
    let hidden = values.len();
    let sigmoid = |x: f64| {
        if x < 0.0 {
            x.exp() / (1.0 + x.exp())
        } else {
            1.0 / (1.0 + (-x).exp())
        }
    };
    for cell in Cell::all() {
        let problem = Problem::new(cell, 1, 1, hidden);
        let mut case = Case::<f32>::random(problem, Options::NONE, 3);
        case.u.fill(0.0);
        for (gate, x) in case.xg.chunks_exact_mut(hidden).enumerate() {
            x.copy_from_slice(&values);
            x.rotate_left(gate * 7);
        }
        let x = |gate: usize, j: usize| f64::from(case.xg[gate * hidden + j]);
        for routine in routines() {
            let found = case.run(routine);
            for j in 0..hidden {
                let (exact, h) = match cell {
                    Cell::Elman { activation } => match activation {
                        riverrun_kernels::cell::Activation::Tanh => (x(0, j).tanh(), found.h[j]),
                        riverrun_kernels::cell::Activation::Relu => (x(0, j).max(0.0), found.h[j]),
                    },
                    Cell::Lstm => (sigmoid(x(0, j)) * x(2, j).tanh(), found.c_last[j]),
                    // An update gate near 1 leaves `1 - z` the digits that `z` does not have.
                    Cell::Gru { .. } if x(1, j) > 0.0 => continue,
                    Cell::Gru { .. } => (sigmoid(-x(1, j)) * x(2, j).tanh(), found.h[j]),
                };
                let allowed = 12.0 * f64::from(f32::EPSILON) * exact.abs() + 1e-37;
                let error = (f64::from(h) - exact).abs();
                let name = cell.name();
                assert!(
                    error <= allowed,
                    "{name} {routine:?} unit {j}: {h:e} for {exact:e}"
                );
            }
        }
    }
}
