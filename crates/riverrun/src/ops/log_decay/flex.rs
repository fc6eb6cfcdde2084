//! The CPU.

use burn::backend::{Flex, TensorMetadata};
use burn::tensor::Shape as Dims;
use burn_flex::FlexTensor;
use riverrun_kernels::log_decay::cpu::{Gradients, Inputs, backward, forward};

use super::{DecayGradients, DecayInputs, Decays, LogDecayOps, sizes, wide};
use crate::ops::support::Maybe;
use crate::ops::support::flex::{Storage, by_dtype, contiguous, dense, zeros};

fn slices<E: Storage>(inputs: &DecayInputs<Flex>) -> Inputs<'_, E>
where
    E::Acc: Storage,
{
    Inputs {
        a: contiguous(&inputs.a),
        a_log: contiguous(&inputs.a_log),
        dt_bias: contiguous(&inputs.dt_bias),
    }
}

fn run<E: Storage>(inputs: &DecayInputs<Flex>, step: Option<&mut FlexTensor>, g: &mut FlexTensor)
where
    E::Acc: Storage,
{
    let step = step.map(FlexTensor::storage_mut);
    forward(sizes(inputs), slices::<E>(inputs), step, g.storage_mut())
        .unwrap_or_else(|error| panic!("{error}"));
}

fn run_backward<E: Storage>(
    inputs: &DecayInputs<Flex>,
    d_step: Option<&FlexTensor>,
    d_g: Option<&FlexTensor>,
    d: &mut DecayGradients<Flex>,
) where
    E::Acc: Storage,
{
    let to = Gradients::<E> {
        a: d.a.storage_mut(),
        a_log: d.a_log.storage_mut(),
        dt_bias: d.dt_bias.storage_mut(),
    };
    let (d_step, d_g) = (d_step.map(contiguous), d_g.map(contiguous));
    backward(sizes(inputs), slices::<E>(inputs), d_step, d_g, to)
        .unwrap_or_else(|error| panic!("{error}"));
}

impl LogDecayOps for Flex {
    fn log_decay(inputs: DecayInputs<Self>, with_step: bool) -> Decays<Self> {
        let inputs = inputs.map::<Flex>(|x| x.to_contiguous());
        let (shape, dtype) = (inputs.a.shape(), inputs.a.dtype());
        let mut step = with_step.then(|| zeros(shape.clone(), wide(dtype)));
        let mut g = zeros(shape, dtype);
        by_dtype!(dtype, run(&inputs, step.as_mut(), &mut g));
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
        let inputs = inputs.map::<Flex>(|x| x.to_contiguous());
        let (sizes, dtype) = (sizes(&inputs), inputs.a.dtype());
        let mut d = DecayGradients::<Self> {
            a: zeros(inputs.a.shape(), dtype),
            a_log: zeros(Dims::new([sizes.heads, sizes.each]), wide(dtype)),
            dt_bias: zeros(inputs.dt_bias.shape(), wide(dtype)),
        };
        let (d_step, d_g) = (dense(d_step), dense(d_g));
        let from = [d_step.as_ref(), d_g.as_ref()];
        by_dtype!(dtype, run_backward(&inputs, from[0], from[1], &mut d));
        d
    }
}
