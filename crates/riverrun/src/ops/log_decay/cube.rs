//! CUDA, ROCm, Vulkan, Metal and WebGPU, through CubeCL.

use burn::backend::TensorMetadata;
use burn::tensor::Shape as Dims;
use burn_cubecl::CubeBackend;
use riverrun_kernels::log_decay::gpu::{Gradients, Inputs, backward, forward};

use super::{DecayGradients, DecayInputs, Decays, LogDecayOps, sizes};
use crate::ops::support::Maybe;
use crate::ops::support::cube::{dtype, empty_like, handle, into_contiguous};

/// The inputs, contiguous, and their buffers.
fn dense(inputs: DecayInputs<CubeBackend>) -> (DecayInputs<CubeBackend>, Inputs) {
    let inputs = inputs.map::<CubeBackend>(into_contiguous);
    let buffers = Inputs {
        a: inputs.a.handle.clone(),
        a_log: inputs.a_log.handle.clone(),
        dt_bias: inputs.dt_bias.handle.clone(),
    };
    (inputs, buffers)
}

impl LogDecayOps for CubeBackend {
    fn log_decay(inputs: DecayInputs<Self>, with_step: bool) -> Decays<Self> {
        let (inputs, buffers) = dense(inputs);
        let (a, shape) = (&inputs.a, sizes(&inputs));
        let step = with_step.then(|| empty_like(&inputs.dt_bias, a.shape()));
        let g = empty_like(a, a.shape());
        let to = step.as_ref().map(|step| &step.handle);
        forward(&a.client, shape, dtype(a), &buffers, to, &g.handle)
            .unwrap_or_else(|error| panic!("{error}"));
        Decays {
            step: Maybe::from_option(step),
            g,
        }
    }

    fn log_decay_backward(
        inputs: DecayInputs<Self>,
        d_step: Maybe<Self>,
        d_g: Maybe<Self>,
    ) -> DecayGradients<Self> {
        let (inputs, buffers) = dense(inputs);
        let (a, shape) = (&inputs.a, sizes(&inputs));
        let d = DecayGradients::<Self> {
            a: empty_like(a, a.shape()),
            a_log: empty_like(&inputs.a_log, Dims::new([shape.heads, shape.each])),
            dt_bias: empty_like(&inputs.dt_bias, inputs.dt_bias.shape()),
        };
        let to = Gradients {
            a: d.a.handle.clone(),
            a_log: d.a_log.handle.clone(),
            dt_bias: d.dt_bias.handle.clone(),
        };
        let (d_step, d_g) = (handle(d_step), handle(d_g));
        let from = [d_step.as_ref(), d_g.as_ref()];
        backward(&a.client, shape, dtype(a), &buffers, from[0], from[1], &to)
            .unwrap_or_else(|error| panic!("{error}"));
        d
    }
}
