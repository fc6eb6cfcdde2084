//! The oracle against values made by PyTorch and against finite differences.

use riverrun_kernels::cell::check::{Case, Options, Random};
use riverrun_kernels::cell::{Cell, OutputGrads, Problem, oracle};
use serde_json::Value;

fn numbers(case: &Value, name: &str) -> Option<Vec<f64>> {
    let list = case.get(name)?.as_array().unwrap();
    Some(list.iter().map(|x| x.as_f64().unwrap()).collect())
}

/// The cases of `golden/cell.json` (made by `golden/make_cell.py`), each with its JSON.
fn golden() -> Vec<(Case<f64>, Value)> {
    let file: Value = serde_json::from_str(include_str!("../golden/cell.json")).unwrap();
    let size = |case: &Value, name: &str| case[name].as_u64().unwrap() as usize;
    let of = |case: Value| {
        let cell = Cell::all()
            .into_iter()
            .find(|cell| case["cell"] == cell.name())
            .unwrap();
        let problem = Problem::new(
            cell,
            size(&case, "batch"),
            size(&case, "steps"),
            size(&case, "hidden"),
        )
        .reversed(case["reverse"].as_bool().unwrap());
        let get = |name: &str| numbers(&case, name);
        let reset = |list: &Value| {
            list.as_array()
                .unwrap()
                .iter()
                .map(|x| x.as_bool().unwrap())
                .collect()
        };
        let inputs = Case {
            problem,
            xg: get("xg").unwrap(),
            u: get("u").unwrap(),
            bias: get("bias"),
            h0: get("h0"),
            c0: get("c0"),
            reset: case.get("reset").map(reset),
            lengths: None,
            d_h: get("d_h"),
            d_h_last: get("d_h_last"),
            d_c_last: get("d_c_last"),
        };
        (inputs, case)
    };
    file.as_array().unwrap().iter().cloned().map(of).collect()
}

fn assert_close(name: &str, found: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len(), "{name}");
    for (i, (f, e)) in found.iter().zip(expected).enumerate() {
        assert!(
            (f - e).abs() <= tolerance * (1.0 + e.abs()),
            "{name}[{i}]: {f} instead of {e}"
        );
    }
}

#[test]
fn oracle_equals_pytorch() {
    let cases = golden();
    assert_eq!(cases.len(), 15);
    for (case, json) in cases {
        let expect = |name: &str| numbers(&json, name).unwrap_or_default();
        let forward = oracle::forward(&case.problem, &case.inputs()).unwrap();
        let grads = oracle::backward(&case.problem, &case.inputs(), &case.grads()).unwrap();
        for (name, found) in [
            ("h", forward.h),
            ("h_last", forward.h_last),
            ("c_last", forward.c_last),
            ("d_xg", grads.d_xg),
            ("d_u", grads.d_u),
            ("d_bias", grads.d_bias),
            ("d_h0", grads.d_h0),
            ("d_c0", grads.d_c0),
        ] {
            assert_close(
                &format!("{} {name}", case.problem.cell.name()),
                &found,
                &expect(name),
                1e-12,
            );
        }
    }
}

#[test]
fn cpu_equals_pytorch() {
    for (case, json) in golden() {
        let expect = |name: &str| numbers(&json, name).unwrap_or_default();
        for routine in riverrun_kernels::cell::check::routines() {
            for (name, found) in case.run(routine).named() {
                assert_close(name, &found, &expect(name), 1e-12);
            }
            for (name, found) in case.to::<f32>().run(routine).named() {
                assert_close(name, &found, &expect(name), 1e-5);
            }
        }
    }
}

#[test]
fn oracle_gradients_are_finite_differences() {
    for cell in Cell::all() {
        let options = [
            (false, false, false),
            (true, true, false),
            (false, true, true),
            (true, true, true),
        ];
        for (index, (reverse, reset, lengths)) in options.into_iter().enumerate() {
            let problem = Problem::new(cell, 3, 4, 3).reversed(reverse);
            let mut case = Case::<f64>::random(
                problem,
                Options {
                    reset,
                    lengths,
                    ..Options::ALL
                },
                77 + index as u64,
            );
            let loss = |case: &Case<f64>| {
                let out = oracle::forward(&case.problem, &case.inputs()).unwrap();
                let OutputGrads {
                    d_h,
                    d_h_last,
                    d_c_last,
                } = case.grads();
                let dot = |a: &[f64], b: Option<&[f64]>| {
                    a.iter()
                        .zip(b.unwrap_or(&[]))
                        .map(|(a, b)| a * b)
                        .sum::<f64>()
                };
                dot(&out.h, d_h) + dot(&out.h_last, d_h_last) + dot(&out.c_last, d_c_last)
            };
            let grads = oracle::backward(&problem, &case.inputs(), &case.grads()).unwrap();
            type Pick = fn(&mut Case<f64>) -> &mut Vec<f64>;
            let mut inputs: Vec<(&str, Pick, Vec<f64>)> = vec![
                ("xg", |c| &mut c.xg, grads.d_xg),
                ("u", |c| &mut c.u, grads.d_u),
                ("bias", |c| c.bias.as_mut().unwrap(), grads.d_bias),
                ("h0", |c| c.h0.as_mut().unwrap(), grads.d_h0),
            ];
            if cell == Cell::Lstm {
                inputs.push(("c0", |c| c.c0.as_mut().unwrap(), grads.d_c0));
            }
            let mut rng = Random::new(3);
            for (name, pick, grad) in inputs {
                for _ in 0..12 {
                    let at = rng.bits() as usize % grad.len();
                    let (eps, x) = (1e-5, pick(&mut case)[at]);
                    pick(&mut case)[at] = x + eps;
                    let above = loss(&case);
                    pick(&mut case)[at] = x - eps;
                    let below = loss(&case);
                    pick(&mut case)[at] = x;
                    let slope = (above - below) / (2.0 * eps);
                    let error = (slope - grad[at]).abs();
                    assert!(
                        error < 1e-8 * (1.0 + slope.abs()),
                        "{} d_{name}[{at}]: {slope} {}",
                        cell.name(),
                        grad[at]
                    );
                }
            }
        }
    }
}

/// A padded sequence gives what the same sequence without its padding gives, and holds the state at the padding.
#[test]
fn lengths_cut_sequences() {
    for cell in Cell::all() {
        for reverse in [false, true] {
            let (batch, steps, hidden) = (5, 4, 3);
            let problem = Problem::new(cell, batch, steps, hidden).reversed(reverse);
            let mut case = Case::<f64>::random(problem, Options::ALL, 5);
            case.lengths = Some(vec![0, 1, 3, 4, 9]);
            let padded = case.oracle().unwrap();
            for b in 0..batch {
                let length = [0, 1, 3, 4, 4][b];
                let width = problem.gate_width();
                let state =
                    |x: &Option<Vec<f64>>| x.as_ref().map(|x| x[b * hidden..][..hidden].to_vec());
                let alone = Case::<f64> {
                    problem: Problem::new(cell, 1, length, hidden).reversed(reverse),
                    xg: case.xg[b * steps * width..][..length * width].to_vec(),
                    h0: state(&case.h0),
                    c0: state(&case.c0),
                    reset: case
                        .reset
                        .as_ref()
                        .map(|r| r[b * steps..][..length].to_vec()),
                    lengths: None,
                    d_h: None,
                    d_h_last: None,
                    d_c_last: None,
                    ..case.clone()
                };
                let expected = alone.oracle().unwrap();
                let rows = &padded.h[b * steps * hidden..][..steps * hidden];
                assert_eq!(rows[..length * hidden], expected.h, "{}", cell.name());
                assert_eq!(padded.h_last[b * hidden..][..hidden], expected.h_last);
                if cell == Cell::Lstm {
                    assert_eq!(padded.c_last[b * hidden..][..hidden], expected.c_last);
                }
                let held = match reverse {
                    false => &expected.h_last,
                    true => alone.h0.as_ref().unwrap(),
                };
                for row in rows.chunks_exact(hidden).skip(length) {
                    assert_eq!(row, held, "{}", cell.name());
                }
                let d_xg = &padded.d_xg[b * steps * width..][..steps * width];
                assert!(d_xg[length * width..].iter().all(|&x| x == 0.0));
            }
        }
    }
}
