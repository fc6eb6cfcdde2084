//! The operation on tensors, as its users call it.

use burn::tensor::Tensor;
use riverrun::Sequence;
use riverrun::ops::{Decay, Erase as Given, MatrixState, matrix_state};

use super::{Gate, Gradients, Shape, States};
use crate::op::{Place, download, gradient};
use crate::{Element, Failure, Storage, Tensors};

impl States {
    /// The result of the operation.
    pub(super) fn on_tensors<E: Element>(&self, on: &Place) -> Result<Tensors, Failure> {
        let Shape {
            batch,
            steps,
            key_heads,
            heads,
            key,
            value,
        } = self.problem.shape;
        let given = &self.inputs;
        let rows = [batch, steps, heads, key];
        let single = [batch, steps, heads];
        let keys = [batch, steps, key_heads, key];
        let (q, k) = (on.leaf(&given.q, keys), on.leaf(&given.k, keys));
        let v = on.leaf(&given.v, [batch, steps, heads, value]);
        let of_head = |x: &Option<Vec<f64>>| x.as_ref().map(|x| on.leaf(x, single));
        let of_rows = |x: &Option<Vec<f64>>| x.as_ref().map(|x| on.leaf(x, rows));
        let (g, g_rows) = match self.problem.gate {
            Gate::Row => (None, of_rows(&given.g)),
            _ => (of_head(&given.g), None),
        };
        let (beta, erase, write) = (
            of_head(&given.beta),
            of_rows(&given.erase),
            of_rows(&given.write),
        );
        let bonus = given.bonus.as_ref().map(|x| on.leaf(x, [heads, key]));
        let dims = [batch, heads, key, value];
        // An absent state has no gradient to compare: zeros in its place.
        let zeros = || vec![0.0; self.problem.shape.state()];
        let state = Place::new(
            &on.plain(),
            match E::NAME {
                "f64" => Storage::F64,
                _ => Storage::F32,
            },
        );
        let initial = state.leaf(&given.initial.clone().unwrap_or_else(zeros), dims);
        let mut inputs = MatrixState::new(q.clone(), k.clone(), v.clone());
        inputs.decay = match (&g, &g_rows) {
            (Some(g), _) => Decay::Head(g.clone()),
            (_, Some(g)) => Decay::Row(g.clone()),
            _ => Decay::None,
        };
        inputs.erase = match (&beta, &erase, &write) {
            (Some(beta), ..) => Given::Key(beta.clone()),
            (_, Some(a), Some(b)) => Given::Separate([a.clone(), b.clone()]),
            (_, Some(e), None) => Given::Free(e.clone()),
            _ => Given::None,
        };
        inputs.bonus = bonus.clone();
        let mut sequence = Sequence::new().with_state(initial.clone());
        if let Some(reset) = &given.reset {
            sequence = sequence.with_reset(on.mask(reset, [batch, steps]));
        }
        let (o, last) = matrix_state(inputs, sequence)?;
        let mut loss = (o.clone() * on.tensor(&self.d_o, [batch, steps, heads, value])).sum();
        if let Some(d_last) = &self.d_last {
            let of_state = (last.clone() * state.tensor(d_last, dims)).sum();
            loss = loss + of_state.cast(o.dtype());
        }
        let all = loss.backward();
        let some3 = |x: &Option<Tensor<3>>| x.as_ref().map(|x| gradient(x, &all));
        let some4 = |x: &Option<Tensor<4>>| x.as_ref().map(|x| gradient(x, &all));
        let d = Gradients {
            q: gradient(&q, &all),
            k: gradient(&k, &all),
            v: gradient(&v, &all),
            g: some3(&g).or(some4(&g_rows)),
            beta: some3(&beta),
            erase: some4(&erase),
            write: some4(&write),
            bonus: bonus.as_ref().map(|x| gradient(x, &all)),
            initial: gradient(&initial, &all),
        };
        Ok(Self::tensors(download(o), download(last), d, |x| x))
    }
}
