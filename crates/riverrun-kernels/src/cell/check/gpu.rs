//! Runs a case on a GPU, with every output filled with NaN first.

use cubecl::client::Client;
use cubecl::server::Handle;

use super::{Case, Results};
use crate::cell::gpu::{self, Backward, Forward, Tuning};
use crate::cell::{Cell, ResetGate};
use crate::gpu::Dtype;
use crate::{Element, Error};

impl<E: Element + bytemuck::Pod> Case<E> {
    /// Runs the persistent routine. The gradients of the weights are computed here, in `f64`, from the routine's outputs.
    ///
    /// # Errors
    /// The errors of the routine.
    pub fn gpu(
        &self,
        client: &Client,
        dtype: Dtype,
        tuning: Option<Tuning>,
    ) -> Result<Results<E>, Error> {
        let p = &self.problem;
        let (rows, hidden, width) = (p.batch * p.steps, p.hidden, p.gate_width());
        let depth = p.depth();
        let upload = |data: &[E]| client.create_from_slice(bytemuck::cast_slice(data));
        let some = |data: &Option<Vec<E>>| data.as_deref().map(upload);
        let poison = |len: usize| upload(&vec![E::from_f64(f64::NAN); len.max(8)]);
        let download = |handle: Handle, len: usize| -> Vec<E> {
            let bytes = client.read_one(handle).expect("reading a result back");
            bytemuck::pod_collect_to_vec(&bytes[..len * size_of::<E>()])
        };
        let number = |x: bool| E::from_f64(f64::from(u8::from(x)));
        let reset = self
            .reset
            .as_ref()
            .map(|reset| upload(&reset.iter().map(|&x| number(x)).collect::<Vec<_>>()));
        let lengths = self
            .lengths
            .as_ref()
            .map(|lengths| client.create_from_slice(bytemuck::cast_slice(lengths)));
        let lstm = p.cell == Cell::Lstm;
        let gru = |reset| p.cell == Cell::Gru { reset };
        let (after, two) = (gru(ResetGate::After), gru(ResetGate::Before));
        let forward = Forward {
            xg: upload(&self.xg),
            u: upload(&self.u),
            bias: some(&self.bias),
            h0: some(&self.h0),
            c0: some(&self.c0),
            reset: reset.clone(),
            lengths: lengths.clone(),
            h: poison(p.outputs()),
            h_last: poison(p.state()),
            c_last: lstm.then(|| poison(p.state())),
            saved: (p.saved_blocks() > 0).then(|| poison(p.saved())),
        };
        gpu::forward_with(client, p, dtype, &forward, tuning)?;
        // For each unit, its weights in every unit of its head, gate by gate.
        let mut transposed = Vec::with_capacity(self.u.len());
        for unit in 0..hidden {
            let rows = (0..width).filter(|row| row % hidden / depth == unit / depth);
            transposed.extend(rows.map(|row| self.u[row * depth + unit % depth]));
        }
        let zeros = vec![E::from_f64(0.0); p.outputs()];
        let backward = Backward {
            u_t: upload(&transposed),
            h0: forward.h0.clone(),
            c0: forward.c0.clone(),
            reset,
            lengths,
            h: forward.h.clone(),
            saved: forward.saved.clone(),
            d_h: upload(self.d_h.as_deref().unwrap_or(&zeros)),
            d_h_last: some(&self.d_h_last),
            d_c_last: some(&self.d_c_last),
            d_a: poison(rows * width),
            d_x: after.then(|| poison(rows * width)),
            before: poison(p.outputs()),
            gated: two.then(|| poison(p.outputs())),
            d_h0: poison(p.state()),
            d_c0: lstm.then(|| poison(p.state())),
        };
        gpu::backward_with(client, p, dtype, &backward, tuning)?;
        let d_a = download(backward.d_a.clone(), rows * width);
        let before = download(backward.before, p.outputs());
        let gated = backward.gated.map(|gated| download(gated, p.outputs()));
        let mut d_u = vec![0.0f64; width * depth];
        let mut d_bias = vec![0.0f64; width];
        for row in 0..rows {
            for gate in 0..width {
                let d = d_a[row * width + gate].to_f64();
                d_bias[gate] += d;
                let head = row * hidden + gate % hidden / depth * depth;
                let to = &mut d_u[gate * depth..][..depth];
                // The third gate has the gated state where there is one.
                let states = match &gated {
                    Some(gated) if gate >= 2 * hidden => gated,
                    _ => &before,
                };
                for (to, h) in to.iter_mut().zip(&states[head..]) {
                    *to += d * h.to_f64();
                }
            }
        }
        let rounded = |x: Vec<f64>| x.into_iter().map(E::from_f64).collect::<Vec<E>>();
        let state = |handle: Option<Handle>| {
            handle.map_or(Vec::new(), |handle| download(handle, p.state()))
        };
        Ok(Results {
            h: download(forward.h, p.outputs()),
            h_last: download(forward.h_last, p.state()),
            c_last: state(forward.c_last),
            d_xg: match backward.d_x {
                Some(d_x) => download(d_x, rows * width),
                None => d_a,
            },
            d_u: rounded(d_u),
            d_bias: rounded(d_bias),
            d_h0: download(backward.d_h0, p.state()),
            d_c0: state(backward.d_c0),
        })
    }
}
