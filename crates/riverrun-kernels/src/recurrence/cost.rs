//! The bytes and operations that a recurrence needs on any machine: the lower bound that kernels are measured against.

use super::Problem;

/// One of the two passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pass {
    /// Forward: from the inputs to `h`.
    Forward,
    /// Backward: from the gradient of `h` to those of the inputs.
    Backward,
}

/// Operations counted for one exponential or hyperbolic tangent: about those of its polynomial.
pub const ELEMENTARY: usize = 16;

/// Both `σ(k)` and `σ(-k)`: an exponential, `1 + e`, a division, `e` times it, two choices.
pub(super) const SIGMOIDS: usize = ELEMENTARY + 5;

/// Bytes that must move for tensors and states of `element_size` bytes an element: each input read once, each output
/// written once.
///
/// | pass | read | written |
/// | --- | --- | --- |
/// | forward | the gate's inputs, `h_0` | `h`, `h_last` |
/// | backward | the inputs (raw and sigmoid: only the first), `h`, `∂L/∂h`, `h_0`, `∂L/∂h_last` | `∂L/∂input` of every input, `∂L/∂h_0` |
///
/// In `[B, T, D]` tensors: raw and sigmoid 3 and 5, minGRU and RG-LRU 3 and 6, minLSTM 4 and 8; and 2 and 3 states `[B, D]`. A reset mask is
/// not counted: it has one byte where the tensors have `D` elements.
pub fn bytes(problem: &Problem, pass: Pass, element_size: usize) -> usize {
    let inputs = problem.gate.inputs();
    let (tensors, states) = match pass {
        Pass::Forward => (inputs + 1, 2),
        Pass::Backward => (problem.gate.backward_reads() + 2 + inputs, 3),
    };
    (tensors * problem.shape.elements() + states * problem.shape.state()) * element_size
}

/// Arithmetic operations of a pass: 1 for an addition, subtraction, multiplication, division or choice,
/// [`ELEMENTARY`] for an exponential or hyperbolic tangent, negations free.
pub fn flops(problem: &Problem, pass: Pass) -> usize {
    // Forward: a h + b. Backward: D = g + carry, carry = a D.
    (problem.gate.flops(pass) + 2) * problem.shape.elements()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recurrence::{Candidate, Gate, Shape};

    #[test]
    fn raw_moves_three_and_five_tensors() {
        let problem = Problem::new(Shape::new(2, 100, 8), Gate::Raw);
        assert_eq!(bytes(&problem, Pass::Forward, 4), (3 * 1600 + 2 * 16) * 4);
        assert_eq!(bytes(&problem, Pass::Backward, 4), (5 * 1600 + 3 * 16) * 4);
        assert_eq!(flops(&problem, Pass::Forward), 2 * 1600);
    }

    #[test]
    fn min_gru_moves_three_and_six_tensors() {
        let gate = Gate::MinGru {
            candidate: Candidate::Identity,
        };
        let problem = Problem::new(Shape::new(1, 10, 4), gate);
        assert_eq!(bytes(&problem, Pass::Forward, 2), (3 * 40 + 2 * 4) * 2);
        assert_eq!(bytes(&problem, Pass::Backward, 2), (6 * 40 + 3 * 4) * 2);
    }

    #[test]
    fn no_steps_cost_only_the_states() {
        let problem = Problem::new(Shape::new(3, 0, 4), Gate::Raw);
        assert_eq!(bytes(&problem, Pass::Forward, 4), 2 * 12 * 4);
        assert_eq!(flops(&problem, Pass::Backward), 0);
    }
}
