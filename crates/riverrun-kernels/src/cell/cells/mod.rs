//! The cells, one file each: formula, CPU stages. [`Cell`] lists them; the functions here lead from its values to the files.

pub(super) mod elman;
pub(super) mod gru;
pub(super) mod lstm;

use super::cpu::stage::{BackwardStage, ForwardStage};
use super::{Activation, Cell, ResetGate};

/// Work that is compiled once for each forward stage.
pub(super) trait ForwardVisitor {
    fn visit<C: ForwardStage<G, N>, const G: usize, const N: usize>(self);
}

/// Work that is compiled once for each backward stage.
pub(super) trait BackwardVisitor {
    fn visit<C: BackwardStage<G, N>, const G: usize, const N: usize>(self);
}

/// Visits the stage after the last product of a step, or after the first of two.
#[inline(always)]
pub(super) fn visit_forward(cell: Cell, last: bool, visitor: impl ForwardVisitor) {
    match (cell, last) {
        (Cell::Gru { reset }, last) => match (reset, last) {
            (ResetGate::After, _) => visitor.visit::<gru::ResetAfter, 3, 4>(),
            (ResetGate::Before, false) => visitor.visit::<gru::Gates, 2, 3>(),
            (ResetGate::Before, true) => visitor.visit::<gru::Candidate, 1, 1>(),
        },
        (Cell::Lstm, _) => visitor.visit::<lstm::Lstm, 4, 5>(),
        (Cell::Elman { activation }, _) => match activation {
            Activation::Tanh => visitor.visit::<elman::Tanh, 1, 0>(),
            Activation::Relu => visitor.visit::<elman::Relu, 1, 0>(),
        },
    }
}

/// Visits the backward stage before the last product of a step, or before the first of two.
#[inline(always)]
pub(super) fn visit_backward(cell: Cell, last: bool, visitor: impl BackwardVisitor) {
    match (cell, last) {
        (Cell::Gru { reset }, last) => match (reset, last) {
            (ResetGate::After, _) => visitor.visit::<gru::ResetAfter, 3, 4>(),
            (ResetGate::Before, false) => visitor.visit::<gru::Candidate, 2, 2>(),
            (ResetGate::Before, true) => visitor.visit::<gru::Gates, 1, 1>(),
        },
        (Cell::Lstm, _) => visitor.visit::<lstm::Lstm, 4, 5>(),
        (Cell::Elman { activation }, _) => match activation {
            Activation::Tanh => visitor.visit::<elman::Tanh, 1, 0>(),
            Activation::Relu => visitor.visit::<elman::Relu, 1, 0>(),
        },
    }
}
