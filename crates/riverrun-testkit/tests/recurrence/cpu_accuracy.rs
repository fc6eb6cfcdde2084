//! CPU kernels against the oracle: every gate and storage type, over sizes and options.

use half::{bf16, f16};
use riverrun_kernels::CpuElement;
use riverrun_testkit::recurrence::check::{Case, Options};
use riverrun_testkit::recurrence::{Candidate, Gate, Problem, Shape};

use crate::recurrence::assertions::{assert_cpu_is_right, assert_same};

fn check<E: CpuElement>(shape: Shape, gate: Gate, options: Options) {
    let seed = (shape.elements() + shape.steps) as u64;
    let case = Case::random(Problem::new(shape, gate), options, seed).rounded::<E>();
    assert_cpu_is_right::<E>(&case, &format!("{} {shape:?} {options:?}", gate.name()));
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

fn check_all<E: CpuElement>() {
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

/// Small problems with their channels repeated until results go past the caches, blocks split the channels and threads
/// share the blocks: the same bits must come out.
fn check_widened<E: CpuElement>(times: usize) {
    let min_gru = Gate::MinGru {
        candidate: Candidate::Tanh,
    };
    for (gate, options) in [(Gate::Raw, 15), (min_gru, 9), (Gate::Sigmoid, 6)] {
        let shape = Shape::new(2, 150, 48);
        let case = Case::random(Problem::new(shape, gate), Options::nth(options), 8).rounded::<E>();
        let wide = case.widened(times).cpu::<E>();
        let narrow = case.cpu::<E>();
        for which in 0..times {
            assert_same(&wide.narrowed(shape.dim, times, which), &narrow);
        }
    }
}

#[test]
fn large_problems_are_small_ones_many_times() {
    check_widened::<f32>(130);
    check_widened::<f64>(65);
    check_widened::<f16>(260);
    check_widened::<bf16>(260);
}
