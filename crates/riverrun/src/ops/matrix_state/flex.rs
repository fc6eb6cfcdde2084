//! The CPU.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Flex, TensorMetadata};
use burn_flex::FlexTensor;
use riverrun_kernels::matrix_state::cpu::{backward, forward};
use riverrun_kernels::matrix_state::{Gradients, Inputs, Problem};

use super::backend::{MatrixGradients, MatrixInputs, MatrixStateOps, state_dims};
use super::state_dtype;
use crate::ops::support::Maybe;
use crate::ops::support::flex::{Storage, by_dtype, contiguous, dense, mask, zeros};

/// The inputs, contiguous.
type Dense = Inputs<FlexTensor, FlexTensor, FlexTensor>;

fn dense_inputs(inputs: MatrixInputs<Flex>) -> Dense {
    Inputs {
        q: inputs.q.to_contiguous(),
        k: inputs.k.to_contiguous(),
        v: inputs.v.to_contiguous(),
        g: dense(inputs.g),
        beta: dense(inputs.beta),
        erase: dense(inputs.erase),
        write: dense(inputs.write),
        bonus: dense(inputs.bonus),
        initial: dense(inputs.initial),
        reset: dense(inputs.reset),
    }
}

fn slices<'a, E: Storage>(
    inputs: &'a Dense,
    reset: Option<&'a [bool]>,
) -> Inputs<&'a [E], &'a [E::Acc], &'a [bool]>
where
    E::Acc: Storage,
{
    Inputs {
        q: contiguous(&inputs.q),
        k: contiguous(&inputs.k),
        v: contiguous(&inputs.v),
        g: inputs.g.as_ref().map(contiguous),
        beta: inputs.beta.as_ref().map(contiguous),
        erase: inputs.erase.as_ref().map(contiguous),
        write: inputs.write.as_ref().map(contiguous),
        bonus: inputs.bonus.as_ref().map(contiguous),
        initial: inputs.initial.as_ref().map(contiguous),
        reset,
    }
}

fn run<E: Storage>(problem: &Problem, inputs: &Dense, o: &mut FlexTensor, last: &mut FlexTensor)
where
    E::Acc: Storage,
{
    let reset = mask::<E>(&inputs.reset);
    let inputs = slices::<E>(inputs, reset.as_deref());
    forward(problem, &inputs, o.storage_mut(), last.storage_mut())
        .unwrap_or_else(|error| panic!("{error}"));
}

fn run_backward<E: Storage>(
    problem: &Problem,
    inputs: &Dense,
    d_o: &FlexTensor,
    d_last: Option<&FlexTensor>,
    d: &mut MatrixGradients<Flex>,
) where
    E::Acc: Storage,
{
    fn present<E: Storage>(tensor: &mut Maybe<Flex>) -> Option<&mut [E]> {
        match tensor {
            Maybe::Some(tensor) => Some(tensor.storage_mut()),
            Maybe::None => None,
        }
    }
    let reset = mask::<E>(&inputs.reset);
    let inputs = slices::<E>(inputs, reset.as_deref());
    let gradients = Gradients {
        q: d.q.storage_mut(),
        k: d.k.storage_mut(),
        v: d.v.storage_mut(),
        g: present(&mut d.g),
        beta: present(&mut d.beta),
        erase: present(&mut d.erase),
        write: present(&mut d.write),
        bonus: present(&mut d.bonus),
        initial: d.initial.storage_mut(),
    };
    backward(
        problem,
        &inputs,
        contiguous(d_o),
        d_last.map(contiguous),
        gradients,
    )
    .unwrap_or_else(|error| panic!("{error}"));
}

impl MatrixStateOps for Flex {
    fn matrix_state(
        inputs: MatrixInputs<Self>,
        problem: Problem,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let dtype = inputs.v.dtype();
        let mut o = zeros(inputs.v.shape(), dtype);
        let mut last = zeros(state_dims(&problem), state_dtype(dtype));
        let inputs = dense_inputs(inputs);
        by_dtype!(dtype, run(&problem, &inputs, &mut o, &mut last));
        (o, last)
    }

    fn matrix_state_backward(
        inputs: MatrixInputs<Self>,
        d_o: FloatTensor<Self>,
        d_last: Maybe<Self>,
        problem: Problem,
    ) -> MatrixGradients<Self> {
        let dtype = inputs.v.dtype();
        let mut d = inputs.gradients(
            &problem,
            |dims| zeros(dims, dtype),
            |dims| zeros(dims, state_dtype(dtype)),
        );
        let (d_o, d_last) = (d_o.to_contiguous(), dense(d_last));
        let inputs = dense_inputs(inputs);
        by_dtype!(
            dtype,
            run_backward(&problem, &inputs, &d_o, d_last.as_ref(), &mut d)
        );
        d
    }
}
