//! GPUs: one launch for the whole sequence, where [`super::route`] says that the device and the problem allow it.

use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::FloatTensor;
use burn::tensor::Shape;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::server::Handle;
use riverrun_kernels::cell::gpu::{self, Backward, Forward};
use riverrun_kernels::cell::{Cell, Problem, ResetGate};

use super::composed::{column_sums, rows};
use super::{CellOps, CellOutputGrads, CellSpec, CellStates, StepGradients, StepInputs};
use crate::ops::linear::{Factor, matmul, product};
use crate::ops::support::Maybe;
use crate::ops::support::cube::{dtype, empty_like, handle};

fn contiguous(tensor: FloatTensor<CubeBackend>) -> Handle {
    into_contiguous(tensor).handle
}

/// The recurrent weights, `[G·H, H/N]`, by the unit that is multiplied with them: `[H, G·H/N]`.
fn transposed(u: CubeTensor, problem: &Problem) -> CubeTensor {
    let (gates, heads, own) = (problem.cell.gates(), problem.heads, problem.depth());
    let u = CubeBackend::float_reshape(u, Shape::new([gates, heads, own, own]));
    let u = CubeBackend::float_permute(u, &[1, 3, 0, 2]);
    CubeBackend::float_reshape(u, Shape::new([problem.hidden, gates * own]))
}

/// `∂L/∂U`, `[G·H, H/N]`: of each head, its gates' gradients times its states.
fn head_products(d_a: CubeTensor, before: CubeTensor, problem: &Problem) -> CubeTensor {
    let (gates, heads, own) = (problem.cell.gates(), problem.heads, problem.depth());
    let rows = problem.batch * problem.steps;
    let d_a = CubeBackend::float_reshape(d_a, Shape::new([rows, gates, heads, own]));
    let d_a = CubeBackend::float_permute(d_a, &[2, 1, 3, 0]);
    let d_a = CubeBackend::float_reshape(d_a, Shape::new([heads, gates * own, rows]));
    let before = CubeBackend::float_reshape(before, Shape::new([rows, heads, own]));
    let before = CubeBackend::float_permute(before, &[1, 0, 2]);
    let d_u = matmul::<CubeBackend>(d_a, before);
    let d_u = CubeBackend::float_reshape(d_u, Shape::new([heads, gates, own, own]));
    let d_u = CubeBackend::float_permute(d_u, &[1, 0, 2, 3]);
    CubeBackend::float_reshape(d_u, Shape::new([problem.gate_width(), own]))
}

impl CellOps for CubeBackend {
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
            h: h.handle.clone(),
            h_last: h_last.handle.clone(),
            c_last: c_last.as_ref().map(|c| c.handle.clone()),
            saved: saved.as_ref().map(|saved| saved.handle.clone()),
        };
        gpu::forward(&xg.client, &problem, dtype, &args, None)
            .unwrap_or_else(|error| panic!("{error}"));
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
        let after = problem.cell
            == Cell::Gru {
                reset: ResetGate::After,
            };
        let d_a = gates();
        let d_x = after.then(gates);
        let before = empty(Shape::new([batch, steps, hidden]));
        let d_h0 = state();
        let d_c0 = (problem.cell == Cell::Lstm).then(state);
        let args = Backward {
            u_t: contiguous(transposed(u.clone(), &problem)),
            h0: handle(inputs.h0),
            c0: handle(inputs.c0),
            reset: handle(inputs.reset),
            h: contiguous(grads.h),
            saved: handle(grads.saved),
            d_h: contiguous(grads.d_h),
            d_h_last: handle(grads.d_h_last),
            d_c_last: handle(grads.d_c_last),
            d_a: d_a.handle.clone(),
            d_x: d_x.as_ref().map(|d_x| d_x.handle.clone()),
            before: before.handle.clone(),
            d_h0: d_h0.handle.clone(),
            d_c0: d_c0.as_ref().map(|d_c0| d_c0.handle.clone()),
        };
        gpu::backward(&u.client, &problem, dtype, &args, None)
            .unwrap_or_else(|error| panic!("{error}"));
        let d_rows = rows::<Self>(d_a.clone());
        let d_u = match problem.heads {
            1 => product(
                Factor::transposed(d_rows.clone()),
                Factor::<Self>::new(rows::<Self>(before)),
                None,
            ),
            _ => head_products(d_a.clone(), before, &problem),
        };
        StepGradients {
            xg: d_x.unwrap_or(d_a),
            u: d_u,
            bias: column_sums::<Self>(d_rows),
            h0: d_h0,
            c0: Maybe::from_option(d_c0),
        }
    }
}
