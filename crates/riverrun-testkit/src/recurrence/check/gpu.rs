//! Runs a case on a GPU, with every output filled with NaN first.

use cubecl::client::Client;
use cubecl::server::Handle;

use super::wide::Mover;
use super::{Case, Outcome};
use crate::Error;
use crate::gpu::Dtype;
use crate::recurrence::gpu::{self, Backward, Forward, Inputs, Strided, Tuning};
use crate::recurrence::{Problem, Routine};
use crate::transfer;

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
    /// Runs the GPU kernels. Gates other than raw run from packed inputs, as layers have them.
    ///
    /// # Errors
    /// The errors of the kernels.
    pub fn gpu(
        &self,
        client: &Client,
        dtype: Dtype,
        routine: Option<Routine>,
        tuning: Option<Tuning>,
    ) -> Result<Outcome, Error> {
        self.gpu_passes(client, dtype, routine, [tuning; 2])
    }

    /// The same with a tuning of its own for each pass.
    ///
    /// # Errors
    /// The errors of the kernels.
    pub fn gpu_passes(
        &self,
        client: &Client,
        dtype: Dtype,
        routine: Option<Routine>,
        tunings: [Option<Tuning>; 2],
    ) -> Result<Outcome, Error> {
        let mut outcomes = self.gpu_widened(client, dtype, routine, tunings, 1, &[0])?;
        Ok(outcomes.pop().expect("one sample"))
    }

    /// Runs the GPU kernels for the case with every channel repeated `times` times, side by side: returns the outcome at each
    /// of the repetitions `samples`. The device repeats and selects, so the host only holds the narrow case.
    ///
    /// # Errors
    /// The errors of the kernels.
    pub fn gpu_widened(
        &self,
        client: &Client,
        dtype: Dtype,
        routine: Option<Routine>,
        tunings: [Option<Tuning>; 2],
        times: usize,
        samples: &[usize],
    ) -> Result<Vec<Outcome>, Error> {
        let narrow = self.problem.shape;
        let mut problem = self.problem;
        problem.shape.dim *= times;
        let Problem { shape, gate, .. } = problem;
        let mover = Mover {
            client,
            dtype,
            dim: narrow.dim,
            times,
        };
        let raw = self.inputs.len() == 2 && gate == crate::recurrence::Gate::Raw;
        let groups = gate.inputs();
        let view = |data: &[f64], width: usize| Strided {
            handle: mover.upload(data),
            len: data.len() * times,
            offset: 0,
            batch_stride: shape.steps * width,
            step_stride: width,
        };
        let inputs = if raw {
            Inputs::Separate(self.inputs.iter().map(|x| view(x, shape.dim)).collect())
        } else {
            Inputs::Packed(view(&pack(&self.inputs, narrow.dim), groups * shape.dim))
        };
        let h0 = self.h0.as_deref().map(|h0| mover.upload(h0));
        let mask = |reset: &Vec<bool>| {
            let mask: Vec<f64> = reset.iter().map(|&r| f64::from(u8::from(r))).collect();
            client.create_from_slice(&transfer::bytes(dtype, &mask))
        };
        let reset = self.reset.as_ref().map(mask);
        let h = mover.poison(shape.elements());
        let forward = Forward {
            inputs: inputs.clone(),
            h0: h0.clone(),
            reset: reset.clone(),
            h: h.clone(),
        };
        gpu::forward(client, &problem, dtype, &forward, routine, tunings[0])?;

        let outputs = if raw { 2 } else { 1 };
        let d_inputs: Vec<Handle> = (0..outputs)
            .map(|_| mover.poison(shape.elements() * groups / outputs))
            .collect();
        let d_h0 = mover.poison(shape.state());
        let backward = Backward {
            inputs,
            h0,
            reset,
            h: h.clone(),
            d_h: mover.upload(&self.d_h),
            d_h_last: self.d_h_last.as_deref().map(|d| mover.upload(d)),
            d_inputs: d_inputs.clone(),
            d_h0: d_h0.clone(),
        };
        gpu::backward(client, &problem, dtype, &backward, routine, tunings[1])?;

        let outcome = |&which: &usize| {
            let h = mover.download(&h, narrow.elements(), which);
            let h_last = crate::recurrence::oracle::last(&self.problem, &h, self.h0.as_deref());
            let d_inputs = if raw {
                let download = |d| mover.download(d, narrow.elements(), which);
                d_inputs.iter().map(download).collect()
            } else {
                let packed = mover.download(&d_inputs[0], narrow.elements() * groups, which);
                unpack(&packed, groups, narrow.dim)
            };
            Outcome {
                h,
                h_last,
                d_inputs,
                d_h0: mover.download(&d_h0, narrow.state(), which),
            }
        };
        Ok(samples.iter().map(outcome).collect())
    }
}
