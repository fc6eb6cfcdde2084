//! CPU kernels against the oracle: every gate and storage type, over sizes and options.

use half::{bf16, f16};
use riverrun_kernels::Element;
use riverrun_kernels::recurrence::{Candidate, Gate, Problem, Shape};

use crate::case::{Case, Options};
use crate::naive;
use crate::tolerance::assert_right;

fn check<E: Element>(shape: Shape, gate: Gate, options: Options) {
    let seed = (shape.elements() + shape.steps) as u64;
    let case = Case::random(Problem::new(shape, gate), options, seed).rounded::<E>();
    let what = format!("{} {shape:?} {options:?}", gate.name());
    let naive = naive::run::<E>(&case);
    assert_right::<E>(&what, shape.steps, &case.cpu::<E>(), &naive, &case.oracle());
}

/// Lengths around the powers of two, and widths around the lanes of the kernels.
fn sizes() -> Vec<Shape> {
    let lengths = [0, 1, 2, 31, 32, 33, 63, 64, 65, 127, 1000];
    let lengths = lengths
        .into_iter()
        .flat_map(|t| [1, 3, 64].map(|d| Shape::new(2, t, d)));
    let widths = [1, 3, 64, 100, 255, 256];
    let widths = widths
        .into_iter()
        .flat_map(|d| [1, 2, 33].map(|t| Shape::new(3, t, d)));
    let others = [Shape::new(1, 4096, 3), Shape::new(0, 5, 4)];
    lengths.chain(widths).chain(others).collect()
}

fn check_all<E: Element>() {
    for (g, gate) in Gate::all().into_iter().enumerate() {
        for (n, shape) in sizes().into_iter().enumerate() {
            check::<E>(shape, gate, Options::nth(5 * g + 7 * n));
        }
        for options in Options::all() {
            check::<E>(Shape::new(2, 12, 19), gate, options);
        }
    }
}

#[test]
fn f32_is_right() {
    check_all::<f32>();
}

#[test]
fn f64_is_right() {
    check_all::<f64>();
}

#[test]
fn f16_is_right() {
    check_all::<f16>();
}

#[test]
fn bf16_is_right() {
    check_all::<bf16>();
}

/// Enough work that it is spread over threads, and more channels than a block holds.
#[test]
fn large_problems_are_right() {
    let min_gru = Gate::MinGru {
        candidate: Candidate::Tanh,
    };
    check::<f32>(Shape::new(3, 65, 1300), Gate::Raw, Options::nth(15));
    check::<f32>(Shape::new(1, 300, 256), min_gru, Options::nth(9));
    check::<bf16>(Shape::new(1, 40, 2100), min_gru, Options::nth(6));
}
