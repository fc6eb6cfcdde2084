//! A cell whose sequences are divided among ranks along time: both parts of an LSTM's state travel as one.

use burn::tensor::Tensor;

use super::{Cell, CellOptions, CellState, CellWeights, run as run_piece};
use crate::ops::hand_over::{State, StateKind, handed_over};
use crate::{Error, Sequence};

/// Runs on a piece of the steps. The arguments have been checked.
pub(super) fn run(
    x: Tensor<3>,
    weights: CellWeights,
    cell: Cell,
    hidden: usize,
    sequence: Sequence<CellState>,
    options: CellOptions,
) -> Result<(Tensor<3>, CellState), Error> {
    let [batch, steps, _] = x.dims();
    let parts = if cell == Cell::Lstm { 2 } else { 1 };
    let state = State {
        kind: StateKind::Cell,
        shape: [batch, parts * hidden],
        dtype: x.dtype(),
        reverse: options.reverse,
    };
    let unpacked = |state: Tensor<2>| match parts {
        1 => CellState::new(state),
        _ => {
            let part = |index: usize| state.clone().narrow(1, index * hidden, hidden);
            CellState::new(part(0)).with_c(part(1))
        }
    };
    let sequence = sequence.map_state(|state| packed(state, parts));
    let (h, last) = handed_over(state, steps, x.clone(), sequence, |sequence| {
        let sequence = sequence.map_state(unpacked);
        let (h, last) = run_piece(x, weights, cell, hidden, sequence, options)?;
        Ok((h, packed(last, parts)))
    })?;
    Ok((h, unpacked(last)))
}

/// `h`, beside `c` where the cell has one.
fn packed(CellState { h, c }: CellState, parts: usize) -> Tensor<2> {
    match parts {
        1 => h,
        _ => {
            let c = c.unwrap_or_else(|| h.zeros_like());
            Tensor::cat(vec![h, c], 1)
        }
    }
}
