//! GPUs: one launch for the whole sequence, or for a single step, where [`super::route`] says that the device and the problem
//! allow it.

use std::ops::Range;

use burn::backend::TensorMetadata;
use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, Shape};
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use cubecl::server::Handle;
use riverrun_kernels::cell::gpu::{self, Backward, Forward, Step};
use riverrun_kernels::cell::{Cell, Problem, ResetGate};

use super::composed::rows;
use super::{
    CellInputs, CellOps, CellOutputGrads, CellSpec, CellStates, StepGradients, StepInputs,
};
use crate::ops::linear::{self, LinearOps, batched};
use crate::ops::support::cube::{dtype, empty_like, handle, into_contiguous};
use crate::ops::support::{Maybe, MaybeInt};

fn contiguous(tensor: FloatTensor<CubeBackend>) -> Handle {
    into_contiguous(tensor).handle
}

/// Lengths as the kernels read them: not negative, so the bits of `i32` are those of `u32`.
fn lengths(lengths: MaybeInt<CubeBackend>) -> Option<Handle> {
    let lengths = lengths.into_option()?;
    debug_assert_eq!(lengths.dtype, DType::I32);
    Some(into_contiguous(lengths).handle)
}

/// The recurrent weights, `[G·H, H/N]`, by the unit that is multiplied with them: `[H, G·H/N]`.
fn transposed(u: CubeTensor, problem: &Problem) -> CubeTensor {
    let (gates, heads, own) = (problem.cell.gates(), problem.heads, problem.depth());
    let u = CubeBackend::float_reshape(u, Shape::new([gates, heads, own, own]));
    let u = CubeBackend::float_permute(u, &[1, 3, 0, 2]);
    CubeBackend::float_reshape(u, Shape::new([problem.hidden, gates * own]))
}

/// The rows of `∂L/∂U` for the gates of `d_a`, `[B·T, G·H]`: of each head, its gates' gradients times its states; and the sums
/// of the columns of `d_a`.
fn weight_gradient(
    d_a: CubeTensor,
    states: CubeTensor,
    problem: &Problem,
) -> (CubeTensor, CubeTensor) {
    let states = rows::<CubeBackend>(states);
    if problem.heads == 1 {
        let (d_u, sums) = linear::weight_gradient::<CubeBackend>(d_a, states, true);
        return (d_u, sums.expect("the sums were asked for"));
    }
    let sums = CubeBackend::column_sums(d_a.clone());
    let (heads, own) = (problem.heads, problem.depth());
    let (rows, gates) = (d_a.shape()[0], d_a.shape()[1] / problem.hidden);
    let d_a = CubeBackend::float_reshape(d_a, Shape::new([rows, gates, heads, own]));
    let d_a = CubeBackend::float_permute(d_a, &[2, 1, 3, 0]);
    let d_a = CubeBackend::float_reshape(d_a, Shape::new([heads, gates * own, rows]));
    let states = CubeBackend::float_reshape(states, Shape::new([rows, heads, own]));
    let states = CubeBackend::float_permute(states, &[1, 0, 2]);
    let d_u = batched::<CubeBackend>(d_a, states);
    let d_u = CubeBackend::float_reshape(d_u, Shape::new([heads, gates, own, own]));
    let d_u = CubeBackend::float_permute(d_u, &[1, 0, 2, 3]);
    let d_u = CubeBackend::float_reshape(d_u, Shape::new([gates * problem.hidden, own]));
    (d_u, sums)
}

/// Columns of a matrix, as a matrix of their own.
fn columns(x: &CubeTensor, range: Range<usize>) -> CubeTensor {
    let all = 0..x.shape()[0];
    into_contiguous(CubeBackend::float_slice(
        x.clone(),
        &[all.into(), range.into()],
    ))
}

impl CellOps for CubeBackend {
    fn cell_step(inputs: CellInputs<Self>, spec: CellSpec) -> CellStates<Self> {
        let problem = spec.problem::<Self>(&inputs.x, &inputs.u);
        let (x, width) = (inputs.x, inputs.w.shape()[1]);
        let shape = || Shape::new([problem.batch, problem.hidden]);
        let state = || empty_like(&x, shape());
        let start = |state: Maybe<Self>| {
            let zeros = || Self::float_zeros(shape(), &x.device, x.dtype.into());
            contiguous(state.into_option().unwrap_or_else(zeros))
        };
        let lstm = problem.cell == Cell::Lstm;
        let (h_next, c_next) = (state(), lstm.then(state));
        let args = Step {
            x: contiguous(x.clone()),
            w: contiguous(inputs.w),
            bias_ih: handle(inputs.bias_ih),
            u: contiguous(inputs.u),
            bias_hh: handle(inputs.bias_hh),
            h: start(inputs.h0),
            c: lstm.then(|| start(inputs.c0)),
            h_next: h_next.handle.clone(),
            c_next: c_next.as_ref().map(|c| c.handle.clone()),
        };
        gpu::step(&x.client, &problem, width, dtype(&x), &args)
            .unwrap_or_else(|error| panic!("{error}"));
        let steps = Shape::new([problem.batch, 1, problem.hidden]);
        CellStates {
            h: Self::float_reshape(h_next.clone(), steps),
            h_last: h_next,
            c_last: Maybe::from_option(c_next),
            saved: Maybe::None,
        }
    }

    fn persistent_forward(
        inputs: StepInputs<Self>,
        spec: CellSpec,
        save: bool,
    ) -> CellStates<Self> {
        let problem = spec.problem::<Self>(&inputs.xg, &inputs.u);
        let dtype = dtype(&inputs.xg);
        let Problem {
            batch,
            steps,
            hidden,
            ..
        } = problem;
        let xg = inputs.xg;
        let empty = |shape: Shape| empty_like(&xg, shape);
        let state = || empty(Shape::new([batch, hidden]));
        let blocks = problem.saved_blocks();
        let h = empty(Shape::new([batch, steps, hidden]));
        let h_last = state();
        let c_last = (problem.cell == Cell::Lstm).then(state);
        let saved =
            (save && blocks > 0).then(|| empty(Shape::new([batch, steps, blocks * hidden])));
        let args = Forward {
            xg: contiguous(xg.clone()),
            u: contiguous(inputs.u),
            bias: handle(inputs.bias),
            h0: handle(inputs.h0),
            c0: handle(inputs.c0),
            reset: handle(inputs.reset),
            lengths: lengths(inputs.lengths),
            h: h.handle.clone(),
            h_last: h_last.handle.clone(),
            c_last: c_last.as_ref().map(|c| c.handle.clone()),
            saved: saved.as_ref().map(|saved| saved.handle.clone()),
        };
        gpu::forward(&xg.client, &problem, dtype, &args).unwrap_or_else(|error| panic!("{error}"));
        CellStates {
            h,
            h_last,
            c_last: Maybe::from_option(c_last),
            saved: Maybe::from_option(saved),
        }
    }

    fn persistent_backward(
        inputs: StepInputs<Self>,
        grads: CellOutputGrads<Self>,
        spec: CellSpec,
    ) -> StepGradients<Self> {
        let problem = spec.problem::<Self>(&inputs.xg, &inputs.u);
        let dtype = dtype(&inputs.u);
        let Problem {
            batch,
            steps,
            hidden,
            ..
        } = problem;
        let u = inputs.u;
        let empty = |shape: Shape| empty_like(&u, shape);
        let state = || empty(Shape::new([batch, hidden]));
        let gates = || empty(Shape::new([batch, steps, problem.gate_width()]));
        let gru = |reset| problem.cell == Cell::Gru { reset };
        let (after, two) = (gru(ResetGate::After), gru(ResetGate::Before));
        let d_a = gates();
        let d_x = after.then(gates);
        let states = || empty(Shape::new([batch, steps, hidden]));
        let before = states();
        let gated = two.then(states);
        let d_h0 = state();
        let d_c0 = (problem.cell == Cell::Lstm).then(state);
        let args = Backward {
            u_t: contiguous(transposed(u.clone(), &problem)),
            h0: handle(inputs.h0),
            c0: handle(inputs.c0),
            reset: handle(inputs.reset),
            lengths: lengths(inputs.lengths),
            h: contiguous(grads.h),
            saved: handle(grads.saved),
            d_h: contiguous(grads.d_h),
            d_h_last: handle(grads.d_h_last),
            d_c_last: handle(grads.d_c_last),
            d_a: d_a.handle.clone(),
            d_x: d_x.as_ref().map(|d_x| d_x.handle.clone()),
            before: before.handle.clone(),
            gated: gated.as_ref().map(|gated| gated.handle.clone()),
            d_h0: d_h0.handle.clone(),
            d_c0: d_c0.as_ref().map(|d_c0| d_c0.handle.clone()),
        };
        gpu::backward(&u.client, &problem, dtype, &args).unwrap_or_else(|error| panic!("{error}"));
        let d_rows = rows::<Self>(d_a.clone());
        let (d_u, bias) = match gated {
            // The candidate's gate multiplied the gated state.
            Some(gated) => {
                let (gates, candidate) = (0..2 * hidden, 2 * hidden..3 * hidden);
                let gates = weight_gradient(columns(&d_rows, gates), before, &problem);
                let candidate = weight_gradient(columns(&d_rows, candidate), gated, &problem);
                (
                    CubeBackend::float_cat(vec![gates.0, candidate.0], 0),
                    CubeBackend::float_cat(vec![gates.1, candidate.1], 0),
                )
            }
            None => weight_gradient(d_rows, before, &problem),
        };
        StepGradients {
            xg: d_x.unwrap_or(d_a),
            u: d_u,
            bias,
            h0: d_h0,
            c0: Maybe::from_option(d_c0),
        }
    }
}
