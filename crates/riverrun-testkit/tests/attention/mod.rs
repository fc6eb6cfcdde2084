//! Attention: oracle against finite differences, CPU and GPU kernels against the oracle. The GPU part runs on a software
//! Vulkan driver too.

use half::{bf16, f16};
use riverrun_kernels::Error;
use riverrun_testkit::attention::check::{Case, Options, Outcome};
use riverrun_testkit::attention::{Problem, Shape, cpu, oracle};

use crate::shared::assert_cpu_is_right;

/// `[B, T, S, H, Hk, D]`: none, one, few, more than a tile, grouped heads, a chunk after a cache, fewer keys than queries.
const SHAPES: [[usize; 6]; 11] = [
    [0, 5, 5, 2, 1, 4],
    [1, 0, 0, 1, 1, 4],
    [1, 0, 7, 1, 1, 4],
    [1, 1, 1, 1, 1, 1],
    [2, 7, 7, 2, 1, 5],
    [2, 3, 40, 4, 2, 8],
    [1, 130, 200, 3, 3, 20],
    [2, 97, 97, 2, 1, 64],
    [1, 70, 70, 1, 1, 256],
    [1, 5, 0, 1, 1, 3],
    [1, 67, 66, 2, 2, 33],
];

fn shape([batch, queries, keys, heads, key_heads, dim]: [usize; 6]) -> Shape {
    Shape {
        batch,
        queries,
        keys,
        heads,
        key_heads,
        dim,
    }
}

/// Every shape with some of the sixteen options that go with it.
fn cases(options: &[usize]) -> Vec<Case> {
    let mut cases = Vec::new();
    for (n, sizes) in SHAPES.into_iter().enumerate() {
        let shape = shape(sizes);
        for &m in options {
            // Positions need as many keys as queries.
            let m = if shape.keys < shape.queries { m & 8 } else { m };
            let options = Options::nth(m, shape.keys);
            cases.push(Case::random(shape, options, 7 + n as u64));
        }
    }
    cases
}

#[test]
fn cpu_is_right_with_every_option() {
    let all: Vec<usize> = (0..16).collect();
    for case in cases(&all) {
        assert_cpu_is_right::<f32>(&case);
    }
}

/// The gradients of queries and keys by the textbook's softmax in `f32`: `ds = p (dp - Σ p dp)` with the matrices in memory.
fn naive(case: &Case) -> [Vec<f64>; 2] {
    let shape = case.problem.shape;
    let (heads, dim) = (shape.heads, shape.dim);
    assert!(heads == shape.key_heads && shape.queries == shape.keys && case.reset.is_none());
    let scale = case.problem.scale as f32;
    let row = |x: &[f64], b: usize, i: usize, h: usize| -> Vec<f32> {
        let at = ((b * shape.queries + i) * heads + h) * dim;
        x[at..][..dim].iter().map(|&x| x as f32).collect()
    };
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).fold(0.0, |sum, (a, b)| sum + a * b);
    let mut found = [vec![0.0; case.q.len()], vec![0.0; case.k.len()]];
    for (b, h) in (0..shape.batch).flat_map(|b| (0..heads).map(move |h| (b, h))) {
        for i in 0..shape.queries {
            let window = case.problem.window.unwrap_or(usize::MAX);
            let end = if case.problem.causal {
                i + 1
            } else {
                shape.keys
            };
            let keys = (i + 1).saturating_sub(window)..end;
            let (q, d_o) = (row(&case.q, b, i, h), row(&case.d_o, b, i, h));
            let scores: Vec<f32> = keys
                .clone()
                .map(|j| dot(&q, &row(&case.k, b, j, h)) * scale)
                .collect();
            let top = scores.iter().copied().fold(f32::MIN, f32::max);
            let weights: Vec<f32> = scores.iter().map(|s| (s - top).exp()).collect();
            let total: f32 = weights.iter().sum();
            let p: Vec<f32> = weights.iter().map(|w| w / total).collect();
            let d_p: Vec<f32> = keys
                .clone()
                .map(|j| dot(&d_o, &row(&case.v, b, j, h)))
                .collect();
            let delta = dot(&p, &d_p);
            for (j, (p, d_p)) in keys.zip(p.iter().zip(d_p)) {
                let d_s = p * (d_p - delta) * scale;
                let k = row(&case.k, b, j, h);
                for d in 0..dim {
                    let at = |row: usize| ((b * shape.queries + row) * heads + h) * dim + d;
                    found[0][at(i)] += f64::from(d_s * k[d]);
                    found[1][at(j)] += f64::from(d_s * q[d]);
                }
            }
        }
    }
    found
}

fn largest(found: &[f64], expected: &[f64]) -> f64 {
    let differences = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
    differences.fold(0.0, f64::max)
}

#[test]
fn a_query_with_one_key_has_no_gradient() {
    for sizes in [
        [1, 4, 4, 2, 2, 64],
        [2, 70, 70, 3, 1, 20],
        [4, 1, 1, 2, 2, 64],
    ] {
        let options = Options {
            causal: true,
            window: Some(1),
            ..Options::default()
        };
        let mut case = Case::random(shape(sizes), options, 3);
        case.problem.scale = 1.0;
        let rounded = case.rounded::<f32>();
        for found in [rounded.cpu::<f32>(), case.cpu::<f64>()] {
            let found = found.expect("a problem it can run");
            assert!(found.get("d_q").iter().all(|&d| d == 0.0), "{sizes:?} d_q");
            assert!(found.get("d_k").iter().all(|&d| d == 0.0), "{sizes:?} d_k");
        }
        // Every step is a document.
        case.problem.window = None;
        case.reset = Some(vec![true; sizes[0] * sizes[2]]);
        let found = case.rounded::<f32>().cpu::<f32>();
        let found = found.expect("a problem it can run");
        for name in ["d_q", "d_k"] {
            assert!(found.get(name).iter().all(|&d| d == 0.0), "{name}");
        }
    }
}

#[test]
fn sharp_attention_is_as_precise_as_the_textbooks() {
    for (factor, seed) in [(1.0, 1), (3.0, 2), (10.0, 3), (40.0, 4)] {
        for causal in [false, true] {
            let options = Options {
                causal,
                ..Options::default()
            };
            let sizes = shape([2, 48, 48, 2, 2, 64]);
            let case = Case::sharp(sizes, options, factor, seed).rounded::<f32>();
            let truth = case.oracle();
            let found = case.cpu::<f32>().expect("a problem it can run");
            for (what, naive) in ["d_q", "d_k"].into_iter().zip(naive(&case)) {
                let (found, truth) = (found.get(what), truth.get(what));
                let (error, allowed) = (largest(found, truth), 2.0 * largest(&naive, truth));
                assert!(
                    error <= allowed,
                    "{what} of queries and keys times {factor}: {error:e}, allowed {allowed:e}"
                );
            }
        }
    }
}

/// Steps of a stream, whose keys and values are not packed.
#[test]
fn cpu_is_right_for_a_few_queries_of_many_keys() {
    for sizes in [
        [2, 1, 300, 4, 2, 64],
        [1, 3, 130, 2, 1, 20],
        [1, 4, 99, 2, 2, 7],
    ] {
        for m in 0..16 {
            let case = Case::random(shape(sizes), Options::nth(m, sizes[2]), 5);
            assert_cpu_is_right::<f32>(&case);
            if m % 7 == 1 {
                assert_cpu_is_right::<f64>(&case);
                assert_cpu_is_right::<f16>(&case);
                assert_cpu_is_right::<bf16>(&case);
            }
        }
    }
}

/// A head of the problem `[4, 8, 512, 64]`, with the scale `1 / √64`.
#[test]
fn cpu_is_right_for_many_blocks() {
    for m in [0, 1] {
        let case = Case::random(shape([1, 512, 512, 2, 2, 64]), Options::nth(m, 512), 9);
        assert_eq!(case.problem.scale, 0.125);
        assert_cpu_is_right::<f32>(&case);
    }
    let heads = shape([1, 20, 20, 129, 43, 8]);
    assert_cpu_is_right::<f32>(&Case::random(heads, Options::nth(1, 20), 9));
}

/// What the last steps see through a window does not depend on the steps before it.
#[test]
fn the_end_of_a_long_sequence_is_its_window_alone() {
    let (steps, window, tail) = (65_600, 50, 150);
    let long = shape([1, steps, steps, 2, 2, 4]);
    let mut problem = Problem::new(long);
    (problem.causal, problem.window) = (true, Some(window));
    let noise = |n: usize, seed: u32| -> Vec<f32> {
        let number = |i: usize| (i as u32 ^ seed).wrapping_mul(2_654_435_761) as f32 / 4.3e9;
        (0..n).map(number).collect()
    };
    let inputs = [1, 2, 3].map(|seed| noise(long.query_elements(), seed));
    let run = |problem: &Problem, [q, k, v]: [&[f32]; 3]| {
        let mut o = vec![f32::NAN; problem.shape.query_elements()];
        let mut lse = vec![f32::NAN; problem.shape.rows()];
        let args = cpu::Forward {
            q,
            k,
            v,
            reset: None,
            o: &mut o,
            lse: &mut lse,
        };
        cpu::forward(problem, args).expect("a problem it can run");
        o
    };
    let whole = run(&problem, [0, 1, 2].map(|n| &inputs[n][..]));
    let short = Problem {
        shape: shape([1, tail, tail, 2, 2, 4]),
        ..problem
    };
    let start = (steps - tail) * 8;
    let alone = run(&short, [0, 1, 2].map(|n| &inputs[n][start..]));
    let pairs = whole[start..].iter().zip(&alone).skip(window * 8);
    for (i, (whole, alone)) in pairs.enumerate() {
        // Weights that add up to 1, of numbers up to 1, in another order.
        assert!((whole - alone).abs() < 50.0 * f32::EPSILON, "{i}");
    }
}

#[test]
fn cpu_is_right_in_every_type() {
    for case in cases(&[1, 14]) {
        assert_cpu_is_right::<f64>(&case);
        assert_cpu_is_right::<f16>(&case);
        assert_cpu_is_right::<bf16>(&case);
    }
}

fn assert_untouched(
    case: &Case,
    at: usize,
    mut run: impl FnMut(&Case) -> Result<Outcome, Error>,
    what: &str,
) {
    let clean = run(case).expect("a problem it can run");
    let found = run(&case.poisoned(at)).expect("a problem it can run");
    let untouched = case.untouched(at, &clean, &found);
    assert!(matches!(untouched, Ok(1..)), "{what}: {untouched:?}");
}

fn isolation() -> Vec<Case> {
    let shape = shape([2, 150, 150, 2, 1, 16]);
    [0, 1, 3, 5, 6]
        .map(|m| Case::random(shape, Options::nth(m, 90), 5))
        .into()
}

#[test]
fn nan_stays_where_it_is_seen() {
    for case in isolation() {
        assert_untouched(&case, 101, |case| case.cpu::<f32>(), "cpu");
    }
    for m in [1, 3, 5] {
        let case = Case::random(shape([2, 4, 4, 2, 1, 16]), Options::nth(m, 3), 5);
        assert_untouched(&case, 1, |case| case.cpu::<f32>(), "cpu, a few queries");
    }
}

#[test]
fn threads_do_not_change_the_numbers() {
    let case = Case::random(shape([2, 200, 200, 2, 1, 24]), Options::nth(5, 200), 3);
    let pool = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
        pool.build().expect("a pool")
    };
    let one = pool(1).install(|| case.cpu::<f32>()).expect("runs");
    let three = pool(3).install(|| case.cpu::<f32>()).expect("runs");
    assert!(one.same_bits(&three));
}

#[test]
fn what_does_not_fit_is_refused() {
    let good = Problem::new(Shape::same(1, 2, 2, 4));
    let refused = |problem: Problem, reset: bool| match problem.check(reset) {
        Err(Error::Attention { reason }) => reason,
        other => panic!("{other:?}"),
    };
    let with = |change: &dyn Fn(&mut Problem)| {
        let mut problem = good;
        change(&mut problem);
        problem
    };
    assert_eq!(good.check(true), Ok(()));
    let none = with(&|problem| problem.shape.dim = 0);
    assert_eq!(none.check(false), Err(Error::NoChannels));
    assert!(refused(with(&|p| p.shape.key_heads = 0), false).contains("multiple"));
    assert!(refused(with(&|p| p.shape.key_heads = 3), false).contains("multiple"));
    assert!(refused(with(&|p| p.shape.dim = 257), false).contains("256"));
    assert!(refused(with(&|p| p.window = Some(0)), false).contains("window"));
    assert!(refused(with(&|p| p.softcap = Some(0.0)), false).contains("cap"));
    assert!(refused(with(&|p| p.softcap = Some(f64::NAN)), false).contains("cap"));
    assert!(refused(with(&|p| p.scale = f64::INFINITY), false).contains("scale"));
    let short = with(&|problem| problem.shape.keys = 1);
    assert_eq!(short.check(false), Ok(()));
    assert!(refused(short, true).contains("keys"));
    assert!(
        refused(
            Problem {
                causal: true,
                ..short
            },
            false
        )
        .contains("keys")
    );

    let (x, mut o, mut lse) = ([0.0_f32; 16], [0.0; 16], [0.0; 4]);
    let mut run = |q: &[f32], reset: Option<&[bool]>| {
        let args = cpu::Forward {
            q,
            k: &x,
            v: &x,
            reset,
            o: &mut o,
            lse: &mut lse,
        };
        cpu::forward(&good, args)
    };
    let length = |what, expected, found| {
        Err(Error::Length {
            what,
            expected,
            found,
        })
    };
    assert_eq!(run(&x[..15], None), length("q", 16, 15));
    assert_eq!(run(&x, Some(&[true])), length("reset", 2, 1));
}

#[test]
fn the_oracle_has_the_slopes_of_its_function() {
    let case = Case::random(shape([1, 5, 7, 2, 1, 3]), Options::nth(15, 7), 11);
    let inputs = [&case.q, &case.k, &case.v];
    let reset = case.reset.as_deref();
    let loss = |inputs: [&Vec<f64>; 3]| -> f64 {
        let [q, k, v] = inputs;
        let found = oracle::forward(&case.problem, q, k, v, reset);
        found.o.iter().zip(&case.d_o).map(|(o, d)| o * d).sum()
    };
    let d = case.oracle();
    let slopes = ["d_q", "d_k", "d_v"].map(|name| d.get(name));
    for (n, slopes) in slopes.into_iter().enumerate() {
        for i in 0..slopes.len() {
            let moved = |step: f64| {
                let mut x = inputs[n].clone();
                x[i] += step;
                let mut inputs = inputs;
                inputs[n] = &x;
                loss(inputs)
            };
            let slope = (moved(1e-5) - moved(-1e-5)) / 2e-5;
            let error = (slope - slopes[i]).abs();
            assert!(error < 1e-6 * (1.0 + slope.abs()), "{n} {i}: {slope}");
        }
    }
}

#[cfg(feature = "gpu")]
mod on_gpu {
    use cubecl::client::Client;
    use riverrun_kernels::gpu::Dtype;
    use riverrun_testkit::attention::gpu::Tuning;
    use riverrun_testkit::{CpuElement, judge};

    use super::*;
    use crate::device::{client, supports};

    fn check<E: CpuElement>(client: &Client, dtype: Dtype, case: &Case, tuning: Option<Tuning>) {
        if !supports(client, dtype) {
            return;
        }
        let case = case.rounded::<E>();
        let verdict = judge::<E, _>(&case, || case.gpu(client, dtype, tuning));
        let verdict = verdict.expect("a problem it can run");
        assert!(
            verdict.passes(),
            "{} {verdict:?}: {:?}",
            E::NAME,
            case.problem
        );
    }

    #[test]
    fn every_shape_is_right() {
        let Some(client) = client() else { return };
        // Every shape compiles its own kernels, so each has one set of options.
        for (n, case) in cases(&[0, 15]).into_iter().enumerate() {
            if n / 2 % 2 == n % 2 {
                check::<f32>(&client, Dtype::F32, &case, None);
            }
        }
    }

    #[test]
    fn every_option_is_right() {
        let Some(client) = client() else { return };
        for m in [1, 2, 6, 12] {
            let case = Case::random(shape([1, 40, 70, 2, 1, 20]), Options::nth(m, 70), 3);
            check::<f32>(&client, Dtype::F32, &case, None);
        }
    }

    #[test]
    fn half_precision_storage_is_right() {
        let Some(client) = client() else { return };
        let case = Case::random(shape([1, 40, 40, 2, 1, 24]), Options::nth(3, 40), 3);
        check::<f16>(&client, Dtype::F16, &case, None);
        check::<bf16>(&client, Dtype::Bf16, &case, None);
    }

    #[test]
    fn every_tuning_is_right() {
        let Some(client) = client() else { return };
        let case = Case::random(shape([1, 100, 100, 2, 1, 40]), Options::nth(3, 100), 3);
        for tuning in Tuning::ALL {
            if tuning.fits(&client, &case.problem) {
                check::<f32>(&client, Dtype::F32, &case, Some(tuning));
            } else {
                println!("skipped: no room for {tuning:?}");
            }
        }
    }

    #[test]
    fn nan_stays_where_it_is_seen() {
        let Some(client) = client() else { return };
        for case in isolation().drain(1..3) {
            let run = |case: &Case| case.gpu(&client, Dtype::F32, None);
            assert_untouched(&case, 101, run, "gpu");
        }
    }
}
