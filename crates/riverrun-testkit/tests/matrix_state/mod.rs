//! Matrix states: the oracle against finite differences, and laws of the kernels that hold for all data.

use riverrun_kernels::Error;
use riverrun_testkit::matrix_state::{Erase, Form, Gate, Inputs, Options, Problem, States, cpu};
use riverrun_testkit::{Case, Tensors};

fn dot(x: &[f64], y: &[f64]) -> f64 {
    x.iter().zip(y).map(|(x, y)| x * y).sum()
}

/// The numbers of a case by the name of their gradient.
type Field = (&'static str, fn(&mut States) -> Option<&mut Vec<f64>>);

const FIELDS: [Field; 9] = [
    ("d_q", |case| Some(&mut case.inputs.q)),
    ("d_k", |case| Some(&mut case.inputs.k)),
    ("d_v", |case| Some(&mut case.inputs.v)),
    ("d_g", |case| case.inputs.g.as_mut()),
    ("d_beta", |case| case.inputs.beta.as_mut()),
    ("d_erase", |case| case.inputs.erase.as_mut()),
    ("d_write", |case| case.inputs.write.as_mut()),
    ("d_bonus", |case| case.inputs.bonus.as_mut()),
    ("d_initial", |case| case.inputs.initial.as_mut()),
];

#[test]
fn the_oracles_gradients_are_the_slopes_of_the_loss() {
    // The error is STEP² from the curve and eps / STEP from rounding: 1e-10 in all.
    const STEP: f64 = 1e-5;
    let loss = |case: &States| {
        let found = case.oracle::<f64>();
        let d_last = case.d_last.as_ref();
        let last = d_last.map_or(0.0, |d| dot(d, found.get("last")));
        dot(&case.d_o, found.get("o")) + last
    };
    for (n, form) in Form::all().enumerate() {
        for shape in [[1, 5, 1, 2, 3, 2], [2, 4, 2, 2, 2, 3]] {
            let mut case = States::random(shape, form, Options::nth(2 + 8 * (n % 2)), n as u64);
            let truth = case.oracle::<f64>();
            for (name, field) in FIELDS {
                let count = field(&mut case).map_or(0, |x| x.len());
                for i in 0..count {
                    let moved = |by: f64| {
                        let mut case = case.clone();
                        field(&mut case).expect("numbers")[i] += by;
                        loss(&case)
                    };
                    let slope = (moved(STEP) - moved(-STEP)) / (2.0 * STEP);
                    let found = truth.get(name)[i];
                    assert!(
                        (found - slope).abs() <= 1e-8 * (1.0 + slope.abs()),
                        "{form:?} {name} {i}: {found}, the slope is {slope}"
                    );
                }
            }
        }
    }
}

#[test]
fn threads_change_nothing() {
    for form in Form::all() {
        let case = States::random([2, 20, 1, 3, 6, 70], form, Options::nth(2), 4).rounded::<f32>();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build();
        let one = pool.unwrap().install(|| case.cpu::<f32>().unwrap());
        assert!(one.same_bits(&case.cpu::<f32>().unwrap()), "{form:?}");
    }
}

/// Steps `first..end` of a case of one sequence.
fn piece(case: &States, first: usize, end: usize) -> States {
    let steps = case.problem.shape.steps;
    let cut = |x: &Vec<f64>| {
        let row = x.len() / steps;
        x[first * row..end * row].to_vec()
    };
    let some = |x: &Option<Vec<f64>>| x.as_ref().map(cut);
    let given = &case.inputs;
    let mut piece = case.clone();
    piece.problem.shape.steps = end - first;
    piece.inputs = Inputs {
        q: cut(&given.q),
        k: cut(&given.k),
        v: cut(&given.v),
        g: some(&given.g),
        beta: some(&given.beta),
        erase: some(&given.erase),
        write: some(&given.write),
        bonus: given.bonus.clone(),
        initial: given.initial.clone(),
        reset: given.reset.as_ref().map(|x| x[first..end].to_vec()),
    };
    piece.d_o = cut(&case.d_o);
    piece
}

#[test]
fn pieces_have_the_bits_of_the_whole() {
    const STEPS: usize = 37;
    let single: Vec<usize> = (0..=STEPS).collect();
    for form in Form::all() {
        let shape = [1, STEPS, 1, 2, 9, 21];
        let whole = States::random(shape, form, Options::nth(2), 5).rounded::<f32>();
        let expected = whole.cpu::<f32>().unwrap();
        for cuts in [&[0, 5, 16, 17, 35, STEPS][..], &single] {
            let mut pieces: Vec<States> = cuts
                .windows(2)
                .map(|cut| piece(&whole, cut[0], cut[1]))
                .collect();
            let mut state = whole.inputs.initial.clone();
            for piece in &mut pieces {
                piece.inputs.initial = state;
                state = Some(piece.cpu::<f32>().unwrap().get("last").to_vec());
            }
            assert_eq!(state.as_deref(), Some(expected.get("last")), "{form:?}");
            let mut d = whole.d_last.clone();
            let mut found = Vec::new();
            for piece in pieces.iter_mut().rev() {
                piece.d_last = d;
                let part = piece.cpu::<f32>().unwrap();
                d = Some(part.get("d_initial").to_vec());
                found.insert(0, part);
            }
            assert_eq!(d.as_deref(), Some(expected.get("d_initial")), "{form:?}");
            for name in expected.names() {
                if matches!(name, "last" | "d_initial" | "d_bonus") {
                    continue;
                }
                let parts: Vec<f64> = found.iter().flat_map(|x| x.get(name)).copied().collect();
                assert_eq!(parts, expected.get(name), "{form:?} {name}");
            }
        }
    }
}

#[test]
fn nothing_passes_a_reset() {
    for form in Form::all() {
        let options = Options::nth(0);
        let mut clean = States::random([1, 6, 1, 2, 3, 4], form, options, 5);
        clean.inputs.reset = Some(vec![false, false, false, true, false, false]);
        let spoilt = |range: fn(usize) -> std::ops::Range<usize>, case: &States| {
            let mut case = case.clone();
            for (name, field) in FIELDS {
                let Some(x) = field(&mut case) else { continue };
                match name {
                    "d_bonus" => {}
                    "d_initial" => x.fill(f64::NAN),
                    _ => {
                        let range = range(x.len() / 6);
                        x[range].fill(f64::NAN);
                    }
                }
            }
            case.cpu::<f32>().unwrap()
        };
        let expected = clean.cpu::<f32>().unwrap();
        let before = spoilt(|row| 0..3 * row, &clean);
        let mut later = clean.clone();
        later.d_last = Some(vec![f64::INFINITY; clean.problem.shape.state()]);
        let middle = later.d_o.len() / 2;
        later.d_o[middle..].fill(f64::NAN);
        let after = later.cpu::<f32>().unwrap();
        assert_eq!(before.get("last"), expected.get("last"), "{form:?}");
        assert_eq!(
            after.get("d_initial"),
            expected.get("d_initial"),
            "{form:?}"
        );
        for name in expected.names() {
            let (x, half) = (expected.get(name), expected.get(name).len() / 2);
            if matches!(name, "last" | "d_initial" | "d_bonus") {
                continue;
            }
            assert_eq!(before.get(name)[half..], x[half..], "{form:?} {name}");
            assert_eq!(after.get(name)[..half], x[..half], "{form:?} {name}");
        }
    }
}

#[test]
fn a_sequence_that_is_not_finite_harms_no_other() {
    for form in Form::all() {
        let clean = States::random([3, 18, 1, 2, 5, 6], form, Options::nth(2), 6);
        let mut spoilt = clean.clone();
        let third = spoilt.inputs.v.len() / 3;
        spoilt.inputs.v[third..2 * third].fill(f64::NAN);
        spoilt.d_o[third..2 * third].fill(f64::INFINITY);
        let (clean, spoilt) = (clean.cpu::<f32>().unwrap(), spoilt.cpu::<f32>().unwrap());
        for name in clean.names() {
            let (x, y) = (clean.get(name), spoilt.get(name));
            let third = x.len() / 3;
            if name == "d_bonus" {
                continue;
            }
            assert_eq!(x[..third], y[..third], "{form:?} {name}");
            assert_eq!(x[2 * third..], y[2 * third..], "{form:?} {name}");
        }
    }
}

#[test]
fn a_growing_state_is_not_a_number() {
    for gate in [Gate::Head, Gate::Row] {
        let form = Form {
            gate,
            erase: Erase::Key,
            bonus: false,
        };
        let mut case = States::random([1, 6, 1, 1, 3, 5], form, Options::nth(0), 7);
        let g = case.inputs.g.as_mut().unwrap();
        let third = g.len() / 6 * 3;
        g[third] = 1e-3;
        let found = case.cpu::<f32>().unwrap();
        let (before, after) = found.get("o").split_at(15);
        assert!(before.iter().all(|x| x.is_finite()) && after.iter().all(|x| x.is_nan()));
        assert!(found.get("last").iter().any(|x| x.is_nan()));
    }
}

#[test]
fn a_key_with_beta_one_recalls_its_value() {
    let form = Form {
        gate: Gate::Head,
        erase: Erase::Key,
        bonus: false,
    };
    let mut case = States::random([1, 40, 1, 1, 12, 7], form, Options::nth(0), 8);
    // Every step has the same key, which is asked for at once.
    let key = case.inputs.k[..12].to_vec();
    case.inputs.k = key.repeat(40);
    case.inputs.q = case.inputs.k.clone();
    case.inputs.beta = Some(vec![1.0; 40]);
    let case = case.rounded::<f32>();
    let found = case.cpu::<f32>().unwrap();
    for (o, v) in found.get("o").iter().zip(&case.inputs.v) {
        // Some 12 products of numbers that are at most 2, and the length of the key.
        assert!(
            (o - v).abs() <= 24.0 * 2.0 * f64::from(f32::EPSILON),
            "{o} {v}"
        );
    }
}

#[test]
fn wrong_arguments_are_refused() {
    let form = Form {
        gate: Gate::Row,
        erase: Erase::Key,
        bonus: false,
    };
    let case = States::random([1, 3, 1, 2, 4, 5], form, Options::nth(0), 9);
    let refused = |change: fn(&mut States)| {
        let mut case = case.clone();
        change(&mut case);
        case.cpu::<f64>().expect_err("a problem that does not fit")
    };
    let length = |what, expected, found| Error::Length {
        what,
        expected,
        found,
    };
    let expected = length("g", 24, 6);
    assert_eq!(refused(|case| case.inputs.g = Some(vec![0.0; 6])), expected);
    assert_eq!(refused(|case| case.inputs.g = None), length("g", 24, 0));
    let expected = length("erase", 0, 24);
    let found = refused(|case| case.inputs.erase = Some(vec![0.0; 24]));
    assert_eq!(found, expected);
    let expected = length("the initial state", 40, 1);
    let found = refused(|case| case.inputs.initial = Some(vec![0.0]));
    assert_eq!(found, expected);
    let found = refused(|case| case.inputs.reset = Some(vec![true]));
    assert_eq!(found, length("reset", 3, 1));
    let found = refused(|case| case.d_o.truncate(29));
    assert_eq!(found, length("d_o", 30, 29));

    let impossible = |change: fn(&mut Problem)| {
        let mut problem = case.problem;
        change(&mut problem);
        let inputs = Inputs::<&[f64], &[f64], &[bool]>::default();
        let found = cpu::forward(&problem, &inputs, &mut [], &mut []);
        assert!(matches!(found, Err(Error::MatrixState { .. })), "{found:?}");
    };
    impossible(|problem| problem.shape.key_heads = 0);
    impossible(|problem| problem.shape.key_heads = 3);
    impossible(|problem| problem.shape.heads = 0);
    impossible(|problem| problem.shape.key = 0);
    impossible(|problem| problem.shape.value = 257);
    impossible(|problem| problem.bonus = true);
}

#[test]
fn no_steps_keep_the_state() {
    for form in Form::all() {
        let case = States::random([2, 0, 1, 2, 3, 4], form, Options::nth(0), 10).rounded::<f32>();
        let found: Tensors = case.cpu::<f32>().unwrap();
        assert_eq!(Some(found.get("last")), case.inputs.initial.as_deref());
        assert_eq!(Some(found.get("d_initial")), case.d_last.as_deref());
        assert!(found.get("o").is_empty());
    }
}

#[cfg(feature = "gpu")]
mod gpu {
    use riverrun_kernels::gpu::Dtype;
    use riverrun_testkit::matrix_state::gpu::CHUNK;

    use super::*;
    use crate::device;

    /// Every form with a decay, once: the whole table takes minutes where the CPU imitates a GPU.
    #[test]
    fn forms_are_right() {
        let Some(client) = device::client() else {
            return;
        };
        let forms = Form::all().filter(|form| form.gate != Gate::None);
        for (n, form) in forms.enumerate() {
            let shape = [1, CHUNK + 3, 1, 2, 6 + n % 3, 5];
            let case = States::random(shape, form, Options::nth(n), 3);
            let case = case.in_chunks(true).rounded::<f32>();
            let found = case.gpu(&client, Dtype::F32).unwrap();
            for comparison in case.compared::<f32>(&found) {
                assert!(comparison.passes(), "{form:?}: {comparison:?}");
            }
        }
    }

    #[test]
    fn pieces_have_the_bits_of_the_whole() {
        let Some(client) = device::client() else {
            return;
        };
        let form = Form {
            gate: Gate::Head,
            erase: Erase::Key,
            bonus: false,
        };
        let (steps, cut) = (3 * CHUNK - 5, 2 * CHUNK);
        let case = States::random([1, steps, 1, 2, 8, 5], form, Options::nth(0), 4);
        let case = case.rounded::<f32>();
        let whole = case.gpu(&client, Dtype::F32).unwrap();
        let first = piece(&case, 0, cut).gpu(&client, Dtype::F32).unwrap();
        let mut last = piece(&case, cut, steps);
        last.inputs.initial = Some(first.get("last").to_vec());
        let last = last.gpu(&client, Dtype::F32).unwrap();
        let mut first = piece(&case, 0, cut);
        first.d_last = Some(last.get("d_initial").to_vec());
        let first = first.gpu(&client, Dtype::F32).unwrap();
        assert_eq!(whole.get("last"), last.get("last"));
        assert_eq!(whole.get("d_initial"), first.get("d_initial"));
        for name in ["o", "d_q", "d_k", "d_v", "d_g", "d_beta"] {
            let joined = [first.get(name), last.get(name)].concat();
            assert_eq!(whole.get(name), joined, "{name}");
        }
    }
}
