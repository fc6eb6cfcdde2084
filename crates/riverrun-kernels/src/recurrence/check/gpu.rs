//! Running a case on a GPU, with every output filled with NaN beforehand.

use cubecl::client::Client;
use cubecl::server::Handle;

use super::{Case, Outcome};
use crate::Error;
use crate::check::{bytes, numbers};
use crate::recurrence::gpu::{self, Backward, Dtype, Forward, Inputs, Strided, Tuning};
use crate::recurrence::{Problem, Routine};

/// `[B, T, D]` tensors side by side as one `[B, T, G·D]`.
fn pack(parts: &[Vec<f64>], dim: usize) -> Vec<f64> {
    let rows = parts[0].len() / dim;
    (0..rows)
        .flat_map(|row| {
            parts
                .iter()
                .flat_map(move |part| part[row * dim..(row + 1) * dim].iter().copied())
        })
        .collect()
}

fn unpack(packed: &[f64], groups: usize, dim: usize) -> Vec<Vec<f64>> {
    (0..groups)
        .map(|g| {
            packed
                .chunks(groups * dim)
                .flat_map(|row| row[g * dim..(g + 1) * dim].iter().copied())
                .collect()
        })
        .collect()
}

impl Case {
    /// Of the GPU kernels. Gates other than raw run from packed inputs, as layers give them.
    ///
    /// # Errors
    /// What the kernels refuse.
    pub fn gpu(
        &self,
        client: &Client,
        dtype: Dtype,
        routine: Option<Routine>,
        tuning: Option<Tuning>,
    ) -> Result<Outcome, Error> {
        let Problem { shape, gate, .. } = self.problem;
        let upload = |data: &[f64]| client.create_from_slice(&bytes(dtype, data));
        let poison = |elements: usize| upload(&vec![f64::NAN; elements.max(1)]);
        let download = |handle: Handle, elements: usize| {
            let bytes = client.read_one(handle).expect("reading a result back");
            numbers(dtype, &bytes[..elements * dtype.size()])
        };
        let raw = self.inputs.len() == 2 && gate == crate::recurrence::Gate::Raw;
        let groups = gate.inputs();
        let view = |data: &[f64], width: usize| Strided {
            handle: upload(data),
            len: data.len(),
            offset: 0,
            batch_stride: shape.steps * width,
            step_stride: width,
        };
        let inputs = if raw {
            Inputs::Separate(self.inputs.iter().map(|x| view(x, shape.dim)).collect())
        } else {
            Inputs::Packed(view(&pack(&self.inputs, shape.dim), groups * shape.dim))
        };
        let h0 = self.h0.as_deref().map(upload);
        let mask = |reset: &Vec<bool>| {
            reset
                .iter()
                .map(|&r| f64::from(u8::from(r)))
                .collect::<Vec<_>>()
        };
        let reset = self.reset.as_ref().map(|reset| upload(&mask(reset)));
        let h = poison(shape.elements());
        let forward = Forward {
            inputs: inputs.clone(),
            h0: h0.clone(),
            reset: reset.clone(),
            h: h.clone(),
        };
        gpu::forward(client, &self.problem, dtype, &forward, routine, tuning)?;

        let outputs = if raw { 2 } else { 1 };
        let d_inputs: Vec<Handle> = (0..outputs)
            .map(|_| poison(shape.elements() * groups / outputs))
            .collect();
        let d_h0 = poison(shape.state());
        let backward = Backward {
            inputs,
            h0,
            reset,
            h: h.clone(),
            d_h: upload(&self.d_h),
            d_h_last: self.d_h_last.as_deref().map(upload),
            d_inputs: d_inputs.clone(),
            d_h0: d_h0.clone(),
        };
        gpu::backward(client, &self.problem, dtype, &backward, routine, tuning)?;

        let h = download(h, shape.elements());
        let h_last = crate::recurrence::oracle::last(&self.problem, &h, self.h0.as_deref());
        let d_inputs = if raw {
            d_inputs
                .into_iter()
                .map(|d| download(d, shape.elements()))
                .collect()
        } else {
            let packed = download(d_inputs[0].clone(), shape.elements() * groups);
            unpack(&packed, groups, shape.dim)
        };
        Ok(Outcome {
            h,
            h_last,
            d_inputs,
            d_h0: download(d_h0, shape.state()),
        })
    }
}
