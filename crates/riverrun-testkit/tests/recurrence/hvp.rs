//! Second derivatives of the scan: the oracle against central differences of its own gradients, the composition of CPU
//! scans against the oracle, and the symmetry that every Hessian has.

use riverrun_kernels::{CpuElement, Error};
use riverrun_testkit::check::{stored, wide};
use riverrun_testkit::recurrence::check::{Case, Options};
use riverrun_testkit::recurrence::hvp::{self, Gradients, Point};
use riverrun_testkit::recurrence::{Gate, Problem, Shape, oracle};

use crate::recurrence::assertions::assert_same_bits;

/// The arguments of the backward pass of a case, in the type `E`.
struct Numbers<E> {
    a: Vec<E>,
    b: Vec<E>,
    h0: Option<Vec<E>>,
    d_h: Vec<E>,
    d_h_last: Option<Vec<E>>,
}

impl<E: CpuElement> Numbers<E> {
    fn of(case: &Case) -> Self {
        Self {
            a: stored::<E>(&case.inputs[0]),
            b: stored::<E>(&case.inputs[1]),
            h0: case.h0.as_deref().map(stored::<E>),
            d_h: stored::<E>(&case.d_h),
            d_h_last: case.d_h_last.as_deref().map(stored::<E>),
        }
    }

    fn point(&self) -> Point<'_, E> {
        Point {
            a: &self.a,
            b: &self.b,
            h0: self.h0.as_deref(),
            d_h: &self.d_h,
            d_h_last: self.d_h_last.as_deref(),
        }
    }
}

fn random(shape: Shape, options: Options, seed: u64) -> Case {
    Case::random(Problem::new(shape, Gate::Raw), options, seed)
}

/// A place and a direction. The direction has states only where the place has them.
fn pair(shape: Shape, options: Options, seed: u64) -> (Case, Case) {
    let at = random(shape, options, seed);
    (at, random(shape, options, seed + 1000))
}

fn truth(at: &Case, along: &Case) -> Gradients<f64> {
    let (from, to) = (Numbers::of(at), Numbers::of(along));
    hvp::oracle(&at.problem, at.reset.as_deref(), &from.point(), &to.point()).unwrap()
}

/// The gradients at `at + by · along`.
fn gradients(at: &Case, along: &Case, by: f64) -> Gradients<f64> {
    let add =
        |x: &[f64], y: &[f64]| -> Vec<f64> { x.iter().zip(y).map(|(x, y)| x + by * y).collect() };
    let state = |x: &Option<Vec<f64>>, y: &Option<Vec<f64>>| {
        x.as_ref().zip(y.as_ref()).map(|(x, y)| add(x, y))
    };
    let (a, b) = (
        add(&at.inputs[0], &along.inputs[0]),
        add(&at.inputs[1], &along.inputs[1]),
    );
    let d = oracle::backward(
        &at.problem,
        &[&a, &b],
        state(&at.h0, &along.h0).as_deref(),
        at.reset.as_deref(),
        &add(&at.d_h, &along.d_h),
        state(&at.d_h_last, &along.d_h_last).as_deref(),
    )
    .unwrap();
    let [a, b] = d.inputs.try_into().unwrap();
    Gradients { a, b, h0: d.h0 }
}

#[test]
fn the_oracle_is_the_slope_of_the_gradients() {
    // The error is STEP² from the curve and eps / STEP from rounding: 1e-10 in all.
    const STEP: f64 = 1e-5;
    for options in Options::all() {
        for steps in [1, 2, 9] {
            let (at, along) = pair(Shape::new(2, steps, 3), options, 7);
            let (up, down) = (gradients(&at, &along, STEP), gradients(&at, &along, -STEP));
            let found = truth(&at, &along);
            let check = |name: &str, found: &[f64], up: &[f64], down: &[f64]| {
                for (found, (up, down)) in found.iter().zip(up.iter().zip(down)) {
                    let slope = (up - down) / (2.0 * STEP);
                    assert!(
                        (found - slope).abs() <= 1e-8 * (1.0 + slope.abs()),
                        "{name}, {options:?}: {found}, the slope is {slope}"
                    );
                }
            };
            check("a", &found.a, &up.a, &down.a);
            check("b", &found.b, &up.b, &down.b);
            check("h0", &found.h0, &up.h0, &down.h0);
        }
    }
}

fn check_cpu<E: CpuElement>(shape: Shape, options: Options) {
    let (at, along) = pair(shape, options, 21);
    let (at, along) = (at.rounded::<E>(), along.rounded::<E>());
    let truth = truth(&at, &along);
    let (from, to) = (Numbers::<E>::of(&at), Numbers::<E>::of(&along));
    let run = || {
        let reset = at.reset.as_deref();
        hvp::on_cpu(&at.problem, reset, &from.point(), &to.point()).unwrap()
    };
    let (found, again) = (run(), run());
    // Twice the floor of the rule for one scan: a scan of what a scan gave.
    let floor = E::EPSILON * (16.0 * shape.steps.max(1) as f64).sqrt();
    let check = |name: &str, found: &[E], again: &[E], truth: &[f64]| {
        let found = wide(found);
        assert_same_bits(name, &found, &wide(again));
        let scale = truth.iter().fold(1.0, |scale: f64, x| scale.max(x.abs()));
        for (i, (found, truth)) in found.iter().zip(truth).enumerate() {
            assert!(
                (found - truth).abs() <= floor * scale,
                "{name}[{i}] in {}, {shape:?} {options:?}: {found}, not {truth}",
                E::NAME
            );
        }
    };
    check("a", &found.a, &again.a, &truth.a);
    check("b", &found.b, &again.b, &truth.b);
    check("h0", &found.h0, &again.h0, &truth.h0);
}

#[test]
fn scans_of_the_cpu_compose_to_the_oracle() {
    for options in Options::all() {
        for (batch, steps, dim) in [
            (2, 0, 3),
            (0, 4, 3),
            (1, 1, 1),
            (2, 2, 5),
            (3, 33, 19),
            (1, 300, 4),
        ] {
            let shape = Shape::new(batch, steps, dim);
            check_cpu::<f32>(shape, options);
            check_cpu::<f64>(shape, options);
        }
        check_cpu::<half::bf16>(Shape::new(2, 33, 19), options);
        check_cpu::<half::f16>(Shape::new(2, 33, 19), options);
    }
}

#[test]
fn the_hessian_of_a_linear_loss_is_symmetric() {
    for options in Options::all() {
        let shape = Shape::new(2, 11, 4);
        let at = random(shape, options, 1);
        let direction = |seed| {
            let mut along = random(shape, options, seed);
            along.d_h.fill(0.0);
            along.d_h_last.iter_mut().for_each(|d| d.fill(0.0));
            along
        };
        let (v, w) = (direction(2), direction(3));
        let dot = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f64>();
        let form = |v: &Case, w: &Case| {
            let moved = truth(&at, w);
            dot(&v.inputs[0], &moved.a)
                + dot(&v.inputs[1], &moved.b)
                + v.h0.as_ref().map_or(0.0, |h0| dot(h0, &moved.h0))
        };
        let (one, other) = (form(&v, &w), form(&w, &v));
        assert!(
            (one - other).abs() <= 1e-12 * (1.0 + one.abs()),
            "{options:?}: {one}, {other}"
        );
    }
}

#[test]
fn wrong_arguments_are_refused() {
    let shape = Shape::new(1, 3, 2);
    let (at, along) = pair(shape, Options::default(), 4);
    let (from, to) = (Numbers::<f64>::of(&at), Numbers::<f64>::of(&along));
    let gated = Problem::new(shape, Gate::Sigmoid);
    let expected = Error::Gate {
        what: "the second derivative of a scan",
        expected: "raw",
        found: "sigmoid",
    };
    let found = hvp::on_cpu(&gated, None, &from.point(), &to.point());
    assert_eq!(found, Err(expected));
    let short = Point {
        d_h: &to.d_h[1..],
        ..to.point()
    };
    let expected = Error::Length {
        what: "d_h",
        expected: 6,
        found: 5,
    };
    assert_eq!(
        hvp::oracle(&at.problem, None, &from.point(), &short),
        Err(expected)
    );
}
