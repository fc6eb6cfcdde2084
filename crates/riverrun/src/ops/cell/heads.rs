//! A layer of several heads as layers of one head each, where they cannot run in one launch.

use burn::tensor::Tensor;

use super::{Cell, CellOutput, CellRun, CellWeights, try_cell_layer};
use crate::Error;

/// Runs the heads one after the other. What fits has been checked.
pub(super) fn one_by_one(
    x: Tensor<3>,
    weights: CellWeights,
    cell: Cell,
    run: CellRun,
    heads: usize,
) -> Result<CellOutput, Error> {
    let gates = cell.gates();
    let [_, own] = weights.weight_hh.dims();
    let mut outputs = Vec::with_capacity(heads);
    for head in 0..heads {
        // `[G·H, ..]` is `[G, N, H/N, ..]`.
        let rows = |weight: &Tensor<2>| {
            let [_, width] = weight.dims();
            let weight = weight.clone().reshape([gates, heads, own, width]);
            weight.narrow(1, head, 1).reshape([gates * own, width])
        };
        let bias = |bias: &Option<Tensor<1>>| {
            let bias = bias.clone()?.reshape([gates, heads, own]);
            Some(bias.narrow(1, head, 1).reshape([gates * own]))
        };
        let state = |state: &Option<Tensor<2>>| Some(state.clone()?.narrow(1, head * own, own));
        let of_head = CellWeights {
            weight_ih: rows(&weights.weight_ih),
            weight_hh: rows(&weights.weight_hh),
            bias_ih: bias(&weights.bias_ih),
            bias_hh: bias(&weights.bias_hh),
        };
        let run = CellRun {
            h0: state(&run.h0),
            c0: state(&run.c0),
            reset: run.reset.clone(),
            reverse: run.reverse,
        };
        outputs.push(try_cell_layer(x.clone(), of_head, cell, run)?);
    }
    let c_last: Vec<_> = outputs.iter().filter_map(|o| o.c_last.clone()).collect();
    Ok(CellOutput {
        h: Tensor::cat(outputs.iter().map(|o| o.h.clone()).collect(), 2),
        h_last: Tensor::cat(outputs.iter().map(|o| o.h_last.clone()).collect(), 1),
        c_last: (!c_last.is_empty()).then(|| Tensor::cat(c_last, 1)),
    })
}
