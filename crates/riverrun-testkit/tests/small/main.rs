//! Every CPU kernel against its oracle on problems small enough for Miri, which interprets this file's tests one instruction
//! at a time and reports undefined behaviour (see CONTRIBUTING). Two threads share each problem where the kernel divides it.

use half::{bf16, f16};
use riverrun_kernels::norm::Kind;
use riverrun_kernels::{CpuElement, cell, embedding, rotary};
use riverrun_testkit::Case as _;
use riverrun_testkit::activation::{Gated, Nonlinearity};
use riverrun_testkit::block_diagonal::Blocks;
use riverrun_testkit::check::Comparison;
use riverrun_testkit::embedding::{Embedding, Tokens};
use riverrun_testkit::flat::Flat;
use riverrun_testkit::loss::Loss;
use riverrun_testkit::matrix_state::{Erase, Form, States};
use riverrun_testkit::norm::{self, Norm};
use riverrun_testkit::optimizer::Steps;
use riverrun_testkit::recurrence::{Candidate, Gate};
use riverrun_testkit::rg_lru::Gates;
use riverrun_testkit::short_convolution::Convolution;
use riverrun_testkit::{attention, gemm, matrix_state, recurrence, rollout};

/// Runs `test` in a pool of two threads.
fn on_two_threads(test: impl FnOnce() + Send) {
    rayon::ThreadPoolBuilder::new()
        .num_threads(2)
        .build()
        .expect("threads")
        .install(test);
}

fn assert_passes(what: &str, verdicts: impl IntoIterator<Item = Comparison>) {
    for verdict in verdicts {
        assert!(verdict.passes(), "{what}: {verdict:?}");
    }
}

fn scan<E: CpuElement>(gate: Gate, options: usize) {
    use recurrence::check::{Case, Options, compare, naive};
    use recurrence::{Problem, Shape};
    let problem = Problem::new(Shape::new(2, 3, 19), gate);
    let case = Case::random(problem, Options::nth(options), 1).rounded::<E>();
    let naive = naive::run::<E>(&case);
    let verdicts = compare::<E>(3, &case.cpu::<E>(), &naive, &case.oracle());
    for verdict in verdicts {
        assert!(verdict.passes(), "{} {}: {verdict:?}", gate.name(), E::NAME);
    }
}

#[test]
fn recurrences() {
    on_two_threads(|| {
        for (n, gate) in Gate::all().into_iter().enumerate() {
            scan::<f32>(gate, n);
        }
        let gate = Gate::MinGru {
            candidate: Candidate::Tanh,
        };
        scan::<f64>(gate, 15);
        scan::<f16>(gate, 15);
        scan::<bf16>(gate, 15);
    });
}

#[test]
fn cells() {
    use cell::check::{Case, Options, compare, routines};
    for cell in cell::Cell::all() {
        let problem = cell::Problem::new(cell, 3, 2, 5);
        let case = Case::<f32>::random(problem, Options::ALL, 2);
        for routine in routines() {
            for verdict in compare(&case, &case.run(routine)).expect("a problem it can run") {
                assert!(verdict.passes(), "{cell:?} {routine:?}: {verdict:?}");
            }
        }
    }
}

#[test]
fn norms() {
    on_two_threads(|| {
        for (kind, options) in [(Kind::Rms, 7), (Kind::Layer, 5)] {
            let case = Norm::random(kind, [5, 19], norm::Options::nth(options), 3).rounded::<f32>();
            let found = case.cpu::<f32>().expect("a problem it can run");
            assert_passes("norm", case.compared::<f32>(&found));
        }
    });
}

#[test]
fn losses() {
    on_two_threads(|| {
        let case = Loss::random([3, 19], 4).rounded::<bf16>();
        let found = case.cpu::<bf16>().expect("a problem it can run");
        assert_passes("cross-entropy", case.compared::<bf16>(&found));
    });
}

#[test]
fn optimizer_steps() {
    on_two_threads(|| {
        let case = Steps::random(&[0, 1, 37], 5).rounded::<f32>();
        let found = case.cpu::<f32>().expect("a problem it can run");
        assert_passes("AdamW", case.compared::<f32>(&found));
        let case = Flat::random(&[3, 0, 1, 37], 3, 5);
        let found = case.cpu::<f32>().expect("a problem it can run");
        assert_passes("vectors", case.compared::<f32>(&found));
    });
}

#[test]
fn embeddings() {
    on_two_threads(|| {
        let shape = embedding::Shape::new(33, 7, 5);
        let case = Embedding::random(shape, Tokens::ALL[0], 6).rounded::<f32>();
        let found = case.cpu::<f32>().expect("a problem it can run");
        assert_passes("embedding", case.compared::<f32>(&found));
    });
}

#[test]
fn attention_both_ways() {
    use attention::check::{Case, Options};
    on_two_threads(|| {
        let shape = attention::Shape {
            batch: 1,
            queries: 3,
            keys: 5,
            heads: 2,
            key_heads: 1,
            dim: 3,
        };
        let case = Case::random(shape, Options::nth(15, shape.keys), 7).rounded::<f32>();
        let found = case.cpu::<f32>().expect("a problem it can run");
        assert_passes("attention", case.compare::<f32>(&found, &case.oracle()));
    });
}

#[test]
fn block_diagonal_recurrences() {
    on_two_threads(|| {
        let options = recurrence::check::Options::nth(15);
        let case = Blocks::random([2, 3, 2, 3], options, 8).rounded::<f32>();
        let found = case.cpu::<f32>().expect("a problem it can run");
        assert_passes("block-diagonal", case.compared::<f32>(&found));
    });
}

#[test]
fn matrix_states() {
    on_two_threads(|| {
        let options = matrix_state::Options::nth(2);
        // Every erase with one gate, and the bonus: interpreting all pairs takes a quarter of an hour.
        let forms = Erase::ALL.into_iter().zip([4, 2, 0, 1]);
        let forms = forms.filter_map(|(erase, gate)| Form::of(erase).nth(gate));
        for (n, form) in forms.enumerate() {
            let case = States::random([1, 18, 1, 1 + n % 2, 3, 5], form, options, 8);
            let case = case.rounded::<f32>();
            let found = case.cpu::<f32>().expect("a problem it can run");
            assert_passes("matrix state", case.compared::<f32>(&found));
        }
    });
}

#[test]
fn rollouts() {
    on_two_threads(|| {
        // The second is long and wide enough for weights that are copied to whole cache lines.
        for (units, steps) in [(5, 2), (16, 8)] {
            let problem = rollout::Problem::new(2, units, steps).with_features(3);
            let case = rollout::check::Case::random(problem, 9);
            let found = case.cpu().expect("a problem it can run");
            assert_passes("rollout", case.compare(&found).expect("a problem"));
        }
    });
}

#[test]
fn products() {
    use gemm::Epilogue;
    use gemm::check::Case;
    on_two_threads(|| {
        let case = Case::random([5, 3, 17], Epilogue::Plain, 10).rounded::<f32>();
        let found = case.cpu::<f32>().expect("a problem it can run");
        assert_passes("product", case.compared::<f32>(&found));
    });
}

#[test]
fn activations() {
    for f in [Nonlinearity::Gelu, Nonlinearity::Silu] {
        let case = Gated::random(f, true, 80, 1).rounded::<f16>();
        let found = case.cpu::<f16>().expect("equal lengths");
        assert_passes("an activation", case.compared::<f16>(&found));
    }
}

#[test]
fn the_parts_of_griffin() {
    on_two_threads(|| {
        let case = Convolution::random([2, 3, 5, 3], 1).rounded::<f32>();
        let found = case.cpu::<f32>().expect("a problem it can run");
        assert_passes("convolution", case.compared::<f32>(&found));
        let case = Gates::random([2, 3, 5], 1).rounded::<f32>();
        let found = case.cpu::<f32>().expect("a problem it can run");
        assert_passes("gates", case.compared::<f32>(&found));
        let wave = |n: usize, by: f32| (0..n).map(|i| (by * i as f32).sin()).collect::<Vec<f32>>();
        let x = wave(30, 0.7);
        // Turned and turned back.
        let problem = rotary::Problem {
            rows: 3,
            heads: 2,
            dim: 5,
            steps: 3,
            pairs: 2,
            turned: 1,
            back: false,
        };
        let angle = wave(6, 0.3);
        let [cos, sin] =
            [f32::cos, f32::sin].map(|f| angle.iter().map(|x| f(*x)).collect::<Vec<_>>());
        let [mut y, mut again] = [vec![f32::NAN; 30], vec![f32::NAN; 30]];
        rotary::cpu::turn(&problem, &x, [&cos, &sin], &mut y).expect("lengths that fit");
        let back = rotary::Problem {
            back: true,
            ..problem
        };
        rotary::cpu::turn(&back, &y, [&cos, &sin], &mut again).expect("lengths that fit");
        let near = |(x, y): (&f32, &f32)| (x - y).abs() < 1e-6;
        assert!(x.iter().zip(&again).all(near) && x[5..10] == y[5..10] && x[10] != y[10]);
    });
}
