//! The kernels of GPUs.

use cubecl::client::Client;
use riverrun_kernels::gpu::Dtype;
use riverrun_kernels::matrix_state::gpu::{Buffers, backward, forward, tensor_cores};

use super::{Gradients, States};
use crate::transfer::{download, poison, upload};
use crate::{Error, Tensors};

impl States {
    /// Whether tensor cores compute this problem.
    pub fn on_tensor_cores(&self, client: &Client, dtype: Dtype) -> bool {
        tensor_cores(client, &self.problem, dtype)
    }

    /// The result of the kernels.
    pub(super) fn on_gpu(&self, client: &Client, dtype: Dtype) -> Result<Tensors, Error> {
        let (lengths, given) = (self.problem.lengths(), &self.inputs);
        let up = |x: &Vec<f64>| upload(client, dtype, x);
        let state = |x: &Vec<f64>| upload(client, Dtype::F32, x);
        let inputs = Buffers {
            q: up(&given.q),
            k: up(&given.k),
            v: up(&given.v),
            g: given.g.as_ref().map(up),
            beta: given.beta.as_ref().map(up),
            erase: given.erase.as_ref().map(up),
            write: given.write.as_ref().map(up),
            bonus: given.bonus.as_ref().map(up),
            initial: given.initial.as_ref().map(state),
            reset: given.reset.as_ref().map(|x| up(&crate::marks(x))),
        };
        let states = self.problem.shape.state();
        let new = |n: usize| poison(client, dtype, n);
        let (o, last) = (new(lengths.v), poison(client, Dtype::F32, states));
        forward(client, &self.problem, dtype, &inputs, &o, &last)?;
        let d = Gradients {
            q: new(lengths.q),
            k: new(lengths.k),
            v: new(lengths.v),
            g: lengths.g.map(new),
            beta: lengths.beta.map(new),
            erase: lengths.erase.map(new),
            write: lengths.write.map(new),
            bonus: lengths.bonus.map(new),
            initial: poison(client, Dtype::F32, states),
        };
        let d_last = self.d_last.as_ref().map(state);
        let d_o = up(&self.d_o);
        backward(
            client,
            &self.problem,
            dtype,
            &inputs,
            &d_o,
            d_last.as_ref(),
            &d,
        )?;
        let down = |handle, n| download(client, dtype, handle, n);
        let some = |handle: Option<_>, n: Option<usize>| Some(down(handle?, n?));
        let back = |handle| download(client, Dtype::F32, handle, states);
        let d = Gradients {
            q: down(d.q, lengths.q),
            k: down(d.k, lengths.k),
            v: down(d.v, lengths.v),
            g: some(d.g, lengths.g),
            beta: some(d.beta, lengths.beta),
            erase: some(d.erase, lengths.erase),
            write: some(d.write, lengths.write),
            bonus: some(d.bonus, lengths.bonus),
            initial: back(d.initial),
        };
        Ok(Self::tensors(down(o, lengths.v), back(last), d, |x| x))
    }
}
