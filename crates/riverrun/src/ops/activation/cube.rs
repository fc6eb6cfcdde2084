//! CUDA, ROCm, Vulkan, Metal and WebGPU, through CubeCL.

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use riverrun_kernels::activation::Nonlinearity;
use riverrun_kernels::activation::gpu::{Backward, Forward, backward, forward};

use super::ActivationOps;
use crate::ops::support::cube::{dtype, empty_like, into_contiguous};

fn run(nonlinearity: Nonlinearity, gate: CubeTensor, x: Option<CubeTensor>) -> CubeTensor {
    let (gate, x) = (into_contiguous(gate), x.map(into_contiguous));
    let y = empty_like(&gate, gate.shape());
    let args = Forward {
        count: gate.shape().num_elements(),
        gate: gate.handle.clone(),
        x: x.map(|x| x.handle),
        y: y.handle.clone(),
    };
    forward(&gate.client, nonlinearity, dtype(&gate), &args)
        .unwrap_or_else(|error| panic!("{error}"));
    y
}

/// The gradients of the gate, and of a factor.
fn run_backward(
    nonlinearity: Nonlinearity,
    gate: CubeTensor,
    x: Option<CubeTensor>,
    d_y: CubeTensor,
) -> (CubeTensor, Option<CubeTensor>) {
    let (gate, d_y) = (into_contiguous(gate), into_contiguous(d_y));
    let like = || empty_like(&gate, gate.shape());
    let d_gate = like();
    let x = x.map(|x| (into_contiguous(x), like()));
    let args = Backward {
        count: gate.shape().num_elements(),
        gate: gate.handle.clone(),
        x: x.as_ref()
            .map(|(x, d_x)| [&x.handle, &d_x.handle].map(Clone::clone)),
        d_y: d_y.handle,
        d_gate: d_gate.handle.clone(),
    };
    backward(&gate.client, nonlinearity, dtype(&gate), &args)
        .unwrap_or_else(|error| panic!("{error}"));
    (d_gate, x.map(|(_, d_x)| d_x))
}

impl ActivationOps for CubeBackend {
    fn activate(x: FloatTensor<Self>, nonlinearity: Nonlinearity) -> FloatTensor<Self> {
        run(nonlinearity, x, None)
    }

    fn activate_backward(
        x: FloatTensor<Self>,
        d_y: FloatTensor<Self>,
        nonlinearity: Nonlinearity,
    ) -> FloatTensor<Self> {
        run_backward(nonlinearity, x, None, d_y).0
    }

    fn gated(
        gate: FloatTensor<Self>,
        x: FloatTensor<Self>,
        nonlinearity: Nonlinearity,
    ) -> FloatTensor<Self> {
        run(nonlinearity, gate, Some(x))
    }

    fn gated_backward(
        gate: FloatTensor<Self>,
        x: FloatTensor<Self>,
        d_y: FloatTensor<Self>,
        nonlinearity: Nonlinearity,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let (d_gate, d_x) = run_backward(nonlinearity, gate, Some(x), d_y);
        (d_gate, d_x.expect("a factor has a gradient"))
    }
}
