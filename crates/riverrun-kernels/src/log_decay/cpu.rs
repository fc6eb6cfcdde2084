//! On the CPU: a task for a run of rows.

use super::Shape;
use crate::element::compiled_here;
use crate::error::expect_length;
use crate::simd::real::Real;
use crate::threads::pieces::{InPieces, Pieces};
use crate::{Element, Error};

/// Rows of a task.
const RUN: usize = 64;

/// What both passes read.
#[derive(Debug, Clone, Copy)]
pub struct Inputs<'a, E: Element> {
    /// `[R, H E]`.
    pub a: &'a [E],
    /// `[H]`.
    pub a_log: &'a [E::Acc],
    /// `[H E]`.
    pub dt_bias: &'a [E::Acc],
}

/// The gradients of the inputs, written.
#[derive(Debug)]
pub struct Gradients<'a, E: Element> {
    /// `[R, H E]`.
    pub a: &'a mut [E],
    /// `[H E]`: that of a head's `A_log` is the sum over its channels.
    pub a_log: &'a mut [E::Acc],
    /// `[H E]`.
    pub dt_bias: &'a mut [E::Acc],
}

impl<E: Element> Inputs<'_, E> {
    fn check(&self, shape: Shape) -> Result<(), Error> {
        if shape.dim() == 0 {
            return Err(Error::NoChannels);
        }
        expect_length("a", shape.elements(), self.a.len())?;
        expect_length("A_log", shape.heads, self.a_log.len())?;
        expect_length("dt_bias", shape.dim(), self.dt_bias.len())
    }

    /// `-e^(A_log)` of each channel.
    fn rates(&self, shape: Shape) -> Vec<f64> {
        let rate = |channel: usize| -self.a_log[channel / shape.each].to_f64().exp();
        (0..shape.dim()).map(rate).collect()
    }
}

/// `softplus(x)` and `σ(x)`.
fn softplus(x: f64) -> [f64; 2] {
    let e = (-x.abs()).exp();
    let far = if x < 0.0 { e } else { 1.0 };
    [x.max(0.0) + e.ln_1p(), far / (1.0 + e)]
}

/// Computes `g`, and `Δ` if wanted.
///
/// # Errors
/// [`Error::NoChannels`], [`Error::Length`].
pub fn forward<E: Kernels<E>>(
    shape: Shape,
    inputs: Inputs<'_, E>,
    step: Option<&mut [E::Acc]>,
    g: &mut [E],
) -> Result<(), Error> {
    E::log_decay(shape, inputs, step, g)
}

/// Computes the gradients from those of `Δ` and `g`.
///
/// # Errors
/// As [`forward`].
pub fn backward<E: Kernels<E>>(
    shape: Shape,
    inputs: Inputs<'_, E>,
    d_step: Option<&[E::Acc]>,
    d_g: Option<&[E]>,
    d: Gradients<'_, E>,
) -> Result<(), Error> {
    E::log_decay_back(shape, inputs, d_step, d_g, d)
}

compiled_here! {
    Kernels<E> {
        fn log_decay(
            shape: Shape,
            inputs: Inputs<'_, E>,
            step: Option<&mut [<E as Element>::Acc]>,
            g: &mut [E],
        ) -> Result<(), Error> = log_decay;
        fn log_decay_back(
            shape: Shape,
            inputs: Inputs<'_, E>,
            d_step: Option<&[<E as Element>::Acc]>,
            d_g: Option<&[E]>,
            d: Gradients<'_, E>,
        ) -> Result<(), Error> = log_decay_back;
    }
}

fn log_decay<E: Element>(
    shape: Shape,
    inputs: Inputs<'_, E>,
    step: Option<&mut [E::Acc]>,
    g: &mut [E],
) -> Result<(), Error> {
    inputs.check(shape)?;
    let (all, dim) = (shape.elements(), shape.dim());
    expect_length("g", all, g.len())?;
    expect_length(
        "the steps",
        all,
        step.as_ref().map_or(all, |step| step.len()),
    )?;
    let rates = inputs.rates(shape);
    let steps = step.map(|step| step.par_chunks_mut(RUN * dim));
    let pieces = inputs.a.par_chunks(RUN * dim).zip(steps);
    let tasks = g.par_chunks_mut(RUN * dim).zip(pieces);
    tasks.for_each(|(g, (a, mut step))| {
        for (i, (g, a)) in g.iter_mut().zip(a).enumerate() {
            let channel = i % dim;
            let [size, _] = softplus(a.to_f64() + inputs.dt_bias[channel].to_f64());
            if let Some(step) = &mut step {
                step[i] = E::Acc::from_f64(size);
            }
            *g = E::narrow(E::Acc::from_f64(rates[channel] * size));
        }
    });
    Ok(())
}

fn log_decay_back<E: Element>(
    shape: Shape,
    inputs: Inputs<'_, E>,
    d_step: Option<&[E::Acc]>,
    d_g: Option<&[E]>,
    d: Gradients<'_, E>,
) -> Result<(), Error> {
    inputs.check(shape)?;
    let (all, dim) = (shape.elements(), shape.dim());
    expect_length("d_step", all, d_step.map_or(all, <[E::Acc]>::len))?;
    expect_length("d_g", all, d_g.map_or(all, <[E]>::len))?;
    expect_length("d_a", all, d.a.len())?;
    expect_length("d_A_log", dim, d.a_log.len())?;
    expect_length("d_dt_bias", dim, d.dt_bias.len())?;
    let rates = inputs.rates(shape);
    // The gradients of a number, and what A_log gets from it.
    let at = |i: usize| {
        let channel = i % dim;
        let z = inputs.a[i].to_f64() + inputs.dt_bias[channel].to_f64();
        let [size, slope] = softplus(z);
        let d_g = d_g.map_or(0.0, |d| d[i].to_f64());
        let d_size = d_step.map_or(0.0, |d| d[i].to_f64()) + d_g * rates[channel];
        [d_size * slope, d_g * rates[channel] * size]
    };
    // A task for a run of rows, whose sums are added in order.
    let tasks = d.a.par_chunks_mut(RUN * dim).enumerate();
    let parts = tasks.map(|(task, d)| {
        let mut sums = vec![[0.0; 2]; dim];
        for (k, d) in d.iter_mut().enumerate() {
            let [d_z, d_rate] = at(task * RUN * dim + k);
            *d = E::narrow(E::Acc::from_f64(d_z));
            let sum = &mut sums[k % dim];
            *sum = [sum[0] + d_z, sum[1] + d_rate];
        }
        sums
    });
    let total = |channel: usize, k: usize| parts.iter().map(|part| part[channel][k]).sum::<f64>();
    for channel in 0..dim {
        d.dt_bias[channel] = E::Acc::from_f64(total(channel, 0));
        d.a_log[channel] = E::Acc::from_f64(total(channel, 1));
    }
    Ok(())
}
