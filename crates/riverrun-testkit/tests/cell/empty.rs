//! Problems without sequences, steps or inputs, and small ones at the portable level: what `cargo miri test` runs too.

use riverrun_kernels::cell::check::{Case, Options, compare};
use riverrun_kernels::cell::cpu::{self, Level, Routine, Split};
use riverrun_kernels::cell::{Cell, InputGrads, Inputs, Layer, LayerGrads, Outputs, Problem};

/// Two threads in either division, without vector instructions.
fn portable() -> [Routine; 3] {
    [Split::None, Split::Batch, Split::Units].map(|split| Routine {
        split,
        threads: Some(2),
        level: Some(Level::Portable),
    })
}

fn pool(run: impl FnOnce() + Send) {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build();
    pool.unwrap().install(run);
}

fn layer(problem: Problem, width: usize, routine: Routine) {
    let case = Case::<f32>::random(problem, Options::ALL, 4);
    let values = |len: usize| {
        (0..len)
            .map(|i| (i % 7) as f32 / 7.0 - 0.4)
            .collect::<Vec<_>>()
    };
    let (x, w) = (
        values(problem.batch * problem.steps * width),
        values(problem.gate_width() * width),
    );
    let layer = Layer {
        x: &x,
        width,
        w: &w,
        bias: None,
    };
    let inputs = Inputs {
        xg: &[],
        ..case.inputs()
    };
    let nan = |len: usize| vec![f32::NAN; len];
    let [mut h, mut h_last] = [nan(problem.outputs()), nan(problem.state())];
    let mut saved = nan(problem.saved());
    let outputs = Outputs {
        h: &mut h,
        h_last: &mut h_last,
        c_last: None,
        saved: Some(&mut saved),
    };
    cpu::forward_layer(&problem, &layer, &inputs, outputs, routine).unwrap();
    let [mut d_u, mut d_w, mut d_x] = [nan(case.u.len()), nan(w.len()), nan(x.len())];
    let [mut d_bias, mut d_h0] = [nan(problem.gate_width()), nan(problem.state())];
    let into = InputGrads {
        d_xg: &mut [],
        d_u: Some(&mut d_u),
        d_bias: None,
        d_h0: Some(&mut d_h0),
        d_c0: None,
    };
    let into_layer = LayerGrads {
        d_x: Some(&mut d_x),
        d_w: Some(&mut d_w),
        d_bias: Some(&mut d_bias),
    };
    let grads = case.grads();
    cpu::backward_layer(
        &problem, &layer, &inputs, &h, &saved, &grads, into, into_layer, routine,
    )
    .unwrap();
    let all = [h, h_last, d_u, d_w, d_x, d_bias, d_h0].concat();
    assert!(all.iter().all(|x| x.is_finite()), "{problem:?} {routine:?}");
    if problem.batch * problem.steps == 0 {
        let of_weights = problem.gate_width() * (problem.hidden + width + 1);
        let zeros = all.iter().filter(|&&x| x == 0.0).count();
        assert!(zeros >= of_weights, "{problem:?}");
    }
}

#[test]
fn empty_problems() {
    pool(|| {
        for cell in Cell::all() {
            for (batch, steps, width) in [(0, 3, 2), (3, 0, 2), (0, 0, 2), (2, 3, 0), (0, 0, 0)] {
                for routine in portable().into_iter().chain([Routine::default()]) {
                    let problem = Problem::new(cell, batch, steps, 5);
                    layer(problem, width, routine);
                    let case = Case::<f32>::random(problem, Options::ALL, 1);
                    for comparison in compare(&case, &case.run(routine)).unwrap() {
                        assert!(comparison.passes(), "{problem:?} {comparison:?}");
                    }
                }
            }
        }
    });
}

#[test]
fn small_problems_at_the_portable_level() {
    pool(|| {
        for cell in Cell::all() {
            for reverse in [false, true] {
                for routine in portable() {
                    let problem = Problem::new(cell, 2, 3, 9).reversed(reverse);
                    layer(problem, 3, routine);
                    let options = Options {
                        lengths: true,
                        ..Options::ALL
                    };
                    let case = Case::<f32>::random(problem, options, 6);
                    for comparison in compare(&case, &case.run(routine)).unwrap() {
                        assert!(comparison.passes(), "{routine:?} {comparison:?}");
                    }
                }
            }
        }
    });
}
