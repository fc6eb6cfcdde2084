//! A layer of several heads as layers of one head each, where they cannot run in one launch.

use burn::tensor::Tensor;

use super::{Cell, CellOptions, CellState, CellWeights, cell_layer};
use crate::{Error, Sequence};

/// Runs the heads one after the other. The arguments have been checked.
pub(super) fn one_by_one(
    x: Tensor<3>,
    weights: CellWeights,
    cell: Cell,
    sequence: Sequence<CellState>,
    options: CellOptions,
) -> Result<(Tensor<3>, CellState), Error> {
    let (gates, heads) = (cell.gates(), weights.heads);
    let [_, own] = weights.weight_hh.dims();
    let (mut states, mut last) = (Vec::with_capacity(heads), Vec::with_capacity(heads));
    for head in 0..heads {
        // `[G·H, ..]` is `[G, N, H/N, ..]`.
        let rows = |weight: &Tensor<2>| {
            let [_, width] = weight.dims();
            let parts = (0..gates).map(|gate| {
                let start = (gate * heads + head) * own;
                weight.clone().narrow(0, start, own)
            });
            match width {
                0 => weight.clone().narrow(0, 0, gates * own),
                _ => Tensor::cat(parts.collect(), 0),
            }
        };
        let bias = |bias: &Option<Tensor<1>>| {
            let bias = bias.clone()?.reshape([gates, heads, own]);
            Some(bias.narrow(1, head, 1).reshape([gates * own]))
        };
        let own_state = |state: &Tensor<2>| state.clone().narrow(1, head * own, own);
        let of_head = CellWeights::new(rows(&weights.weight_ih), rows(&weights.weight_hh))
            .with_biases(bias(&weights.bias_ih), bias(&weights.bias_hh));
        let part = sequence.clone().map_state(|state| CellState {
            h: own_state(&state.h),
            c: state.c.as_ref().map(own_state),
        });
        let (h, state) = cell_layer(x.clone(), of_head, cell, part, options)?;
        states.push(h);
        last.push(state);
    }
    let c: Vec<_> = last.iter().filter_map(|state| state.c.clone()).collect();
    let state = CellState {
        h: Tensor::cat(last.into_iter().map(|state| state.h).collect(), 1),
        c: (!c.is_empty()).then(|| Tensor::cat(c, 1)),
    };
    Ok((Tensor::cat(states, 2), state))
}
