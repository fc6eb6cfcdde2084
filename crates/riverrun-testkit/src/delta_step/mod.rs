//! A step of a Gated DeltaNet between its products, on GPUs.
//!
//! The tolerance follows the errors of the operands through every formula, to first order and with all of them at their worst; an
//! elementary function rounds eight times.

mod near;

use riverrun_kernels::delta_step::{Problem, Shape};

use crate::{
    Case, CpuElement, Element, Error, Failure, Operation, Part, Random, Report, Storage, Tensors,
    by_storage, roundings,
};
use near::{Near, exact, sum};

/// The entry in the table.
pub const OPERATION: Operation = Operation {
    name: "delta-step",
    about: "a step of a Gated DeltaNet between its products",
    storages: &[Storage::F32, Storage::F16, Storage::Bf16],
    forms: |target| match target.is_cpu() {
        true => vec![],
        false => vec!["delta-step"],
    },
    check: |part, report| by_storage!(part.storage, check(part, report)),
    weight: 1,
    shared: None,
    long: None,
};

fn check<E: CpuElement>(part: &Part<'_>, report: &mut dyn Report) -> Result<(), Failure> {
    // B, J, H, K, V, taps.
    let sizes = [
        [2, 2, 4, 128, 128, 4],
        [1, 3, 3, 24, 20, 2],
        [2, 1, 2, 64, 64, 4],
    ];
    let sizes = sizes.into_iter().enumerate();
    let cases = sizes.map(|(n, [batch, key_heads, heads, key, value, taps])| {
        let shape = Shape {
            batch,
            key_heads,
            heads,
            key,
            value,
            taps,
        };
        DeltaStep::random(
            Problem {
                shape,
                epsilon: 1e-6,
                twice: n == 1,
            },
            n as u64,
        )
    });
    part.run_all::<E, _>("delta-step", cases, report)
}

/// A problem and its data, in `f64`, in the shapes of the kernel's buffers.
#[derive(Debug, Clone)]
pub struct DeltaStep {
    problem: Problem,
    mixed: Vec<f64>,
    rates: Vec<f64>,
    gate: Vec<f64>,
    weight: Vec<f64>,
    /// In `f32`, as the biases and the states.
    a_log: Vec<f64>,
    dt_bias: Vec<f64>,
    gamma: Vec<f64>,
    inputs: Vec<f64>,
    states: Vec<f64>,
}

fn silu(x: Near, u: f64) -> Near {
    // The slope of SiLU is at most 1.1.
    let y = x.map(|x| x / (1.0 + (-x).exp()), 1.1);
    y.rounded(u, 8.0, y.x.abs())
}

impl DeltaStep {
    /// Random numbers; some heads forget at once, some hardly.
    pub fn random(problem: Problem, seed: u64) -> Self {
        let Shape {
            batch,
            heads,
            value,
            taps,
            ..
        } = problem.shape;
        let (channels, width) = (problem.shape.channels(), problem.shape.width());
        let mut random = Random::new(seed);
        let mut some = |n: usize, bound: f64| random.vec(n, bound);
        let single = |x: Vec<f64>| -> Vec<f64> { x.iter().map(|&x| f64::from(x as f32)).collect() };
        Self {
            mixed: some(batch * channels, 2.0),
            rates: some(batch * 2 * heads, 4.0),
            gate: some(batch * width, 2.0),
            weight: some(taps * channels, 0.7),
            a_log: single(some(heads, 2.0)),
            dt_bias: single(some(heads, 6.0)),
            gamma: some(value, 1.5),
            inputs: some(batch * (taps - 1) * channels, 2.0),
            states: single(some(problem.shape.states(), 1.0)),
            problem,
        }
    }

    /// The channels of a sequence after convolution and SiLU.
    fn convolved(&self, u: f64, sequence: usize) -> Vec<Near> {
        let (channels, taps) = (self.problem.shape.channels(), self.problem.shape.taps);
        let inputs = &self.inputs[sequence * (taps - 1) * channels..];
        let channel = |n: usize| {
            let term = |j: usize| {
                let x = match j + 1 == taps {
                    true => self.mixed[sequence * channels + n],
                    false => inputs[j * channels + n],
                };
                exact(x * self.weight[j * channels + n])
            };
            silu(sum(u, (0..taps).map(term)), u)
        };
        (0..channels).map(channel).collect()
    }

    /// `y` and the states after the step.
    fn step(&self, u: f64) -> [Vec<Near>; 2] {
        let Shape {
            batch,
            key_heads,
            heads,
            key,
            value,
            ..
        } = self.problem.shape;
        let (mut all, mut states) = (Vec::new(), Vec::new());
        for sequence in 0..batch {
            let convolved = self.convolved(u, sequence);
            for head in 0..heads {
                let key_head = head / (heads / key_heads);
                let unit = |first: usize, scale: f64| -> Vec<Near> {
                    let x = &convolved[first + key_head * key..][..key];
                    let square = sum(u, x.iter().map(|x| *x * *x)) + exact(1e-6);
                    let root = square.inverse_root();
                    let scale = root.rounded(u, 8.0, root.x) * exact(scale);
                    x.iter()
                        .map(|x| (*x * scale).rounded(u, 2.0, (x.x * scale.x).abs()))
                        .collect()
                };
                let q = unit(0, (key as f64).powf(-0.5));
                let k = unit(key_heads * key, 1.0);
                let v = &convolved[2 * key_heads * key + head * value..][..value];
                let rates = &self.rates[sequence * 2 * heads..];
                let most = if self.problem.twice { 2.0 } else { 1.0 };
                let beta = most / (1.0 + (-rates[head]).exp());
                let beta = exact(beta).rounded(u, 8.0, beta);
                let a = rates[heads + head] + self.dt_bias[head];
                let near = exact(a).rounded(u, 1.0, a.abs());
                let step = near.map(|a| a.max(0.0) + (-a.abs()).exp().ln_1p(), 1.0);
                // On GPUs the logarithm of 1 + e is as accurate as 1 + e.
                let step = step
                    .rounded(u, 16.0, step.x)
                    .rounded(u, 1.0, (a > -2.5) as u8 as f64);
                let rate = self.a_log[head].exp();
                let exponent = step * exact(rate).rounded(u, 8.0, rate);
                let decay = exponent.map(|x| (-x).exp(), 1.0);
                let decay = decay.rounded(u, 8.0 + 2.0 * exponent.x, decay.x);
                let decay = Near {
                    off: decay.off.min(1.0) * if decay.x < 1e-30 { 1e-30 } else { 1.0 },
                    ..decay
                };

                let first = (sequence * heads + head) * key * value;
                let before = &self.states[first..][..key * value];
                let mut state: Vec<Near> = before
                    .iter()
                    .map(|s| (exact(*s) * decay).rounded(u, 1.0, (s * decay.x).abs()))
                    .collect();
                let mut o = Vec::with_capacity(value);
                for (j, v) in v.iter().enumerate() {
                    let read = sum(u, (0..key).map(|i| state[i * value + j] * k[i]));
                    let update = (*v - read) * beta;
                    let update = update.rounded(u, 3.0, beta.x * (v.x.abs() + read.x.abs()));
                    for i in 0..key {
                        let term = k[i] * update;
                        let at = &mut state[i * value + j];
                        *at = (*at + term).rounded(u, 2.0, at.x.abs() + term.x.abs());
                    }
                    o.push(sum(u, (0..key).map(|i| state[i * value + j] * q[i])));
                }
                let square = sum(u, o.iter().map(|o| *o * *o)) * exact(1.0 / value as f64);
                let scale = (square + exact(self.problem.epsilon)).inverse_root();
                let scale = scale.rounded(u, 8.0, scale.x);
                for (j, o) in o.iter().enumerate() {
                    let z = self.gate[(sequence * heads + head) * value + j];
                    let y = *o * scale * exact(self.gamma[j]) * silu(exact(z), u);
                    all.push(y.rounded(u, 4.0, y.x.abs()));
                }
                states.extend(state);
            }
        }
        [all, states]
    }

    /// The convolution's inputs after the step.
    fn next(&self) -> Vec<f64> {
        let (channels, taps) = (self.problem.shape.channels(), self.problem.shape.taps);
        let before = self.inputs.chunks_exact((taps - 1) * channels);
        let newest = self.mixed.chunks_exact(channels);
        let rows = before.zip(newest);
        rows.flat_map(|(before, newest)| [&before[channels..], newest].concat())
            .collect()
    }
}

impl Case for DeltaStep {
    fn numbers(&mut self) -> Vec<&mut Vec<f64>> {
        vec![
            &mut self.mixed,
            &mut self.rates,
            &mut self.gate,
            &mut self.weight,
            &mut self.gamma,
            &mut self.inputs,
        ]
    }

    fn oracle<E: Element>(&self) -> Tensors {
        let [y, states] = self.step(0.0);
        let numbers = |near: Vec<Near>| near.into_iter().map(|near| near.x).collect();
        Tensors::new([
            ("y", numbers(y)),
            ("states", numbers(states)),
            ("inputs", self.next()),
        ])
    }

    fn allowed<E: Element>(&self, truth: &Tensors) -> Tensors {
        let (storage, arithmetic) = roundings::<E>();
        let [y, states] = self.step(arithmetic);
        truth.map(|name, i, truth| match name {
            "y" => storage(truth) + y[i].off,
            "states" => states[i].off,
            _ => 0.0,
        })
    }

    fn cpu<E: CpuElement>(&self) -> Result<Tensors, Error> {
        Err(Error::Routine {
            routine: "cpu",
            reason: "the kernel of a Gated DeltaNet's step is for GPUs".into(),
        })
    }

    #[cfg(feature = "gpu")]
    fn gpu(
        &self,
        client: &cubecl::client::Client,
        dtype: riverrun_kernels::gpu::Dtype,
    ) -> Result<Tensors, Error> {
        use riverrun_kernels::delta_step::gpu::{Buffers, run};
        use riverrun_kernels::gpu::Dtype;

        use crate::transfer::{download, poison, upload};
        let stored = |data: &[f64]| upload(client, dtype, data);
        let single = |data: &[f64]| upload(client, Dtype::F32, data);
        let buffers = Buffers {
            mixed: stored(&self.mixed),
            rates: stored(&self.rates),
            gate: stored(&self.gate),
            weight: stored(&self.weight),
            a_log: single(&self.a_log),
            dt_bias: single(&self.dt_bias),
            gamma: stored(&self.gamma),
            inputs: stored(&self.inputs),
            states: single(&self.states),
            y: poison(client, dtype, self.gate.len()),
        };
        run(client, &self.problem, dtype, &buffers)?;
        Ok(Tensors::new([
            ("y", download(client, dtype, buffers.y, self.gate.len())),
            (
                "states",
                download(client, Dtype::F32, buffers.states, self.states.len()),
            ),
            (
                "inputs",
                download(client, dtype, buffers.inputs, self.inputs.len()),
            ),
        ]))
    }
}
