//! On the CPU: vector instructions along the rows of a block, threads over rows.

use pulp::{Arch, Simd, WithSimd};

use super::{Blocks, Draw};
use crate::element::compiled_here;
use crate::error::expect_length;
use crate::simd::pair::{Pair, load_padded, pair_len, store_padded};
use crate::simd::real::Real;
use crate::simd::vector::Vector;
use crate::threads::pieces::{InPieces, Pieces};
use crate::{Element, Error};

/// Numbers of a task: enough to pay for handing it to a thread.
const TASK: usize = 1 << 12;

compiled_here!(Kernels<E> {
    fn rssm_activate(blocks: Blocks, x: &[E], y: &mut [E]) -> Result<(), Error> = activate_rows;
    fn rssm_activate_backward(blocks: Blocks, x: &[E], d_y: &[E], d_x: &mut [E]) -> Result<(), Error> = activate_backward_rows;
    fn rssm_step(blocks: Blocks, a: &[E], before: &[E], next: &mut [E]) -> Result<(), Error> = step_rows;
    fn rssm_step_backward(blocks: Blocks, a: &[E], before: &[E], d_next: &[E], d_a: &mut [E], d_before: &mut [E]) -> Result<(), Error> = step_backward_rows;
    fn rssm_draw(draw: Draw, logits: &[E], noise: &[f32], sample: &mut [E]) -> Result<(), Error> = draw_rows;
    fn rssm_draw_backward(draw: Draw, logits: &[E], d_sample: &[E], d_logits: &mut [E]) -> Result<(), Error> = draw_backward_rows;
});

/// `y: [G, B, W]` from `x: [B, D]`.
///
/// # Errors
/// [`Error::Length`].
pub fn activate<E: Kernels<E>>(blocks: Blocks, x: &[E], y: &mut [E]) -> Result<(), Error> {
    E::rssm_activate(blocks, x, y)
}

/// `∂L/∂x: [B, D]` from `∂L/∂y: [G, B, W]`.
///
/// # Errors
/// [`Error::Length`].
pub fn activate_backward<E: Kernels<E>>(
    blocks: Blocks,
    x: &[E],
    d_y: &[E],
    d_x: &mut [E],
) -> Result<(), Error> {
    E::rssm_activate_backward(blocks, x, d_y, d_x)
}

/// The next states `[B, D]` from the gates `[G, B, 3W]` and the states.
///
/// # Errors
/// [`Error::Length`].
pub fn step<E: Kernels<E>>(
    blocks: Blocks,
    a: &[E],
    before: &[E],
    next: &mut [E],
) -> Result<(), Error> {
    E::rssm_step(blocks, a, before, next)
}

/// `∂L/∂a: [G, B, 3W]` and `∂L/∂d: [B, D]` from `∂L/∂d': [B, D]`.
///
/// # Errors
/// [`Error::Length`].
pub fn step_backward<E: Kernels<E>>(
    blocks: Blocks,
    a: &[E],
    before: &[E],
    d_next: &[E],
    d_a: &mut [E],
    d_before: &mut [E],
) -> Result<(), Error> {
    E::rssm_step_backward(blocks, a, before, d_next, d_a, d_before)
}

/// One-hot samples `[N, C]` from logits and noise `[N, C]`.
///
/// # Errors
/// [`Error::Length`].
pub fn draw<E: Kernels<E>>(
    draw: Draw,
    logits: &[E],
    noise: &[f32],
    sample: &mut [E],
) -> Result<(), Error> {
    E::rssm_draw(draw, logits, noise, sample)
}

/// `∂L/∂logits` from `∂L/∂sample`, both `[N, C]`.
///
/// # Errors
/// [`Error::Length`].
pub fn draw_backward<E: Kernels<E>>(
    draw: Draw,
    logits: &[E],
    d_sample: &[E],
    d_logits: &mut [E],
) -> Result<(), Error> {
    E::rssm_draw_backward(draw, logits, d_sample, d_logits)
}

fn check(blocks: Blocks, arrays: &[(&'static str, usize, usize)]) -> Result<(), Error> {
    let numbers = blocks.numbers();
    arrays
        .iter()
        .try_for_each(|(what, times, found)| expect_length(what, times * numbers, *found))
}

/// Calls `f` for every row of `width` numbers of `out`, with its index.
fn each_row<E: Element>(out: &mut [E], width: usize, f: impl Fn(usize, &mut [E]) + Sync) {
    each_row_with(out, width, || (), |(), k, row| f(k, row));
}

/// [`each_row`] with working memory, which `memory` makes for every task.
fn each_row_with<E: Element, M>(
    out: &mut [E],
    width: usize,
    memory: impl Fn() -> M + Sync,
    f: impl Fn(&mut M, usize, &mut [E]) + Sync,
) {
    // Nothing to do where a row has no numbers.
    let width = width.max(1);
    let rows = TASK.div_ceil(width);
    let tasks = out.par_chunks_mut(rows * width).enumerate();
    tasks.for_each(|(task, out)| {
        let mut memory = memory();
        for (k, row) in out.chunks_mut(width).enumerate() {
            f(&mut memory, task * rows + k, row);
        }
    });
}

/// The `k`-th row of `width` numbers.
fn row<E>(x: &[E], k: usize, width: usize) -> &[E] {
    &x[k * width..(k + 1) * width]
}

fn activate_rows<E: Element>(blocks: Blocks, x: &[E], y: &mut [E]) -> Result<(), Error> {
    check(blocks, &[("x", 1, x.len()), ("y", 1, y.len())])?;
    let (arch, width) = (Arch::new(), blocks.width);
    each_row(y, width, |k, y| {
        let x = row(x, blocks.in_states(k), width);
        arch.dispatch(Activate { x, y });
    });
    Ok(())
}

struct Activate<'a, E> {
    x: &'a [E],
    y: &'a mut [E],
}

impl<E: Element> WithSimd for Activate<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let n = pair_len::<S, E::Acc>();
        for (y, x) in self.y.chunks_mut(n).zip(self.x.chunks(n)) {
            let x: Pair<S, E::Acc> = load_padded(simd, x);
            store_padded(y, x.map(|x| x * x.sigmoid()));
        }
    }
}

fn activate_backward_rows<E: Element>(
    blocks: Blocks,
    x: &[E],
    d_y: &[E],
    d_x: &mut [E],
) -> Result<(), Error> {
    let lengths = [("x", 1, x.len()), ("d_y", 1, d_y.len())];
    check(blocks, &lengths)?;
    check(blocks, &[("d_x", 1, d_x.len())])?;
    let (arch, width) = (Arch::new(), blocks.width);
    each_row(d_x, width, |k, d_x| {
        let d_y = row(d_y, blocks.in_blocks(k), width);
        let x = row(x, k, width);
        arch.dispatch(ActivateBackward { x, d_y, d_x });
    });
    Ok(())
}

struct ActivateBackward<'a, E> {
    x: &'a [E],
    d_y: &'a [E],
    d_x: &'a mut [E],
}

impl<E: Element> WithSimd for ActivateBackward<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let n = pair_len::<S, E::Acc>();
        let given = self.x.chunks(n).zip(self.d_y.chunks(n));
        for (d_x, (x, d_y)) in self.d_x.chunks_mut(n).zip(given) {
            let x: Pair<S, E::Acc> = load_padded(simd, x);
            let d_y: Pair<S, E::Acc> = load_padded(simd, d_y);
            let slope = |x: Vector<S, E::Acc>| {
                let (s, rest) = x.sigmoids();
                s.mul_add(x * rest, s)
            };
            store_padded(d_x, [d_y[0] * slope(x[0]), d_y[1] * slope(x[1])]);
        }
    }
}

fn step_rows<E: Element>(
    blocks: Blocks,
    a: &[E],
    before: &[E],
    next: &mut [E],
) -> Result<(), Error> {
    let lengths = [("a", 3, a.len()), ("before", 1, before.len())];
    check(blocks, &lengths)?;
    check(blocks, &[("next", 1, next.len())])?;
    let (arch, width) = (Arch::new(), blocks.width);
    each_row(next, width, |k, next| {
        let gates = row(a, blocks.in_blocks(k), 3 * width);
        let before = row(before, k, width);
        arch.dispatch(Step {
            gates,
            before,
            next,
        });
    });
    Ok(())
}

struct Step<'a, E> {
    gates: &'a [E],
    before: &'a [E],
    next: &'a mut [E],
}

impl<E: Element> WithSimd for Step<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let n = pair_len::<S, E::Acc>();
        let width = self.next.len();
        let mut at = 0;
        for (next, before) in self.next.chunks_mut(n).zip(self.before.chunks(n)) {
            let many = next.len();
            let part = |gate: usize| -> Pair<S, E::Acc> {
                let from = gate * width + at;
                load_padded(simd, &self.gates[from..from + many])
            };
            let (r, c, u) = (part(0), part(1), part(2));
            let d: Pair<S, E::Acc> = load_padded(simd, before);
            let one = |i: usize| {
                let (u, keep) = (u[i] - u[i].constant(E::Acc::from_f64(1.0))).sigmoids();
                u.mul_add((r[i].sigmoid() * c[i]).tanh(), keep * d[i])
            };
            store_padded(next, [one(0), one(1)]);
            at += many;
        }
    }
}

fn step_backward_rows<E: Element>(
    blocks: Blocks,
    a: &[E],
    before: &[E],
    d_next: &[E],
    d_a: &mut [E],
    d_before: &mut [E],
) -> Result<(), Error> {
    let lengths = [
        ("a", 3, a.len()),
        ("before", 1, before.len()),
        ("d_next", 1, d_next.len()),
        ("d_a", 3, d_a.len()),
        ("d_before", 1, d_before.len()),
    ];
    check(blocks, &lengths)?;
    let (arch, width) = (Arch::new(), blocks.width);
    each_row(d_a, 3 * width, |k, d_gates| {
        let states = blocks.in_states(k);
        arch.dispatch(GateGradients {
            gates: row(a, k, 3 * width),
            before: row(before, states, width),
            d_next: row(d_next, states, width),
            d_gates,
        });
    });
    each_row(d_before, width, |k, d_before| {
        let gates = row(a, blocks.in_blocks(k), 3 * width);
        arch.dispatch(StateGradients {
            update: &gates[2 * width..],
            d_next: row(d_next, k, width),
            d_before,
        });
    });
    Ok(())
}

struct GateGradients<'a, E> {
    gates: &'a [E],
    before: &'a [E],
    d_next: &'a [E],
    d_gates: &'a mut [E],
}

impl<E: Element> WithSimd for GateGradients<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let n = pair_len::<S, E::Acc>();
        let width = self.before.len();
        let (d_r, rest) = self.d_gates.split_at_mut(width);
        let (d_c, d_u) = rest.split_at_mut(width);
        let mut at = 0;
        for (before, d_next) in self.before.chunks(n).zip(self.d_next.chunks(n)) {
            let many = before.len();
            let part = |gate: usize| -> Pair<S, E::Acc> {
                let from = gate * width + at;
                load_padded(simd, &self.gates[from..from + many])
            };
            let (r, c, u) = (part(0), part(1), part(2));
            let d: Pair<S, E::Acc> = load_padded(simd, before);
            let e: Pair<S, E::Acc> = load_padded(simd, d_next);
            let one = |i: usize| {
                let (u, keep) = (u[i] - u[i].constant(E::Acc::from_f64(1.0))).sigmoids();
                let (s, open) = r[i].sigmoids();
                let t = (s * c[i]).tanh();
                let inner = e[i] * u * t.one_minus_square();
                let update = e[i] * (t - d[i]) * u * keep;
                (inner * c[i] * s * open, inner * s, update)
            };
            let (first, second) = (one(0), one(1));
            store_padded(&mut d_r[at..at + many], [first.0, second.0]);
            store_padded(&mut d_c[at..at + many], [first.1, second.1]);
            store_padded(&mut d_u[at..at + many], [first.2, second.2]);
            at += many;
        }
    }
}

struct StateGradients<'a, E> {
    update: &'a [E],
    d_next: &'a [E],
    d_before: &'a mut [E],
}

impl<E: Element> WithSimd for StateGradients<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let n = pair_len::<S, E::Acc>();
        let given = self.update.chunks(n).zip(self.d_next.chunks(n));
        for (d_before, (u, e)) in self.d_before.chunks_mut(n).zip(given) {
            let u: Pair<S, E::Acc> = load_padded(simd, u);
            let e: Pair<S, E::Acc> = load_padded(simd, e);
            let keep = |u: Vector<S, E::Acc>| (u - u.constant(E::Acc::from_f64(1.0))).sigmoids().1;
            store_padded(d_before, [e[0] * keep(u[0]), e[1] * keep(u[1])]);
        }
    }
}

/// `exp(l - largest)` of a row into `weights`, and their sum.
fn weigh<E: Element>(logits: &[E], weights: &mut [f64]) -> f64 {
    let most = logits
        .iter()
        .map(|l| l.to_f64())
        .fold(f64::NEG_INFINITY, f64::max);
    let mut total = 0.0;
    for (weight, l) in weights.iter_mut().zip(logits) {
        *weight = (l.to_f64() - most).exp();
        total += *weight;
    }
    total
}

fn draw_rows<E: Element>(
    draw: Draw,
    logits: &[E],
    noise: &[f32],
    sample: &mut [E],
) -> Result<(), Error> {
    expect_length("logits", draw.numbers(), logits.len())?;
    expect_length("noise", draw.numbers(), noise.len())?;
    expect_length("sample", draw.numbers(), sample.len())?;
    let (classes, mix) = (draw.classes, f64::from(draw.unimix));
    let memory = || vec![0.0; classes];
    each_row_with(sample, classes, memory, |weights, n, sample| {
        let total = weigh(row(logits, n, classes), weights);
        let mut best = (0, f64::NEG_INFINITY);
        for (class, (weight, noise)) in weights.iter().zip(row(noise, n, classes)).enumerate() {
            let p = (1.0 - mix) * weight / total + mix / classes as f64;
            let score = p.ln() + f64::from(*noise);
            if score > best.1 {
                best = (class, score);
            }
        }
        for (class, (x, weight)) in sample.iter_mut().zip(&*weights).enumerate() {
            let hot = if class == best.0 { 1.0 } else { 0.0 };
            // Where a logit is NaN, so is the row.
            *x = E::from_f64(if (weight / total).is_nan() {
                f64::NAN
            } else {
                hot
            });
        }
    });
    Ok(())
}

fn draw_backward_rows<E: Element>(
    draw: Draw,
    logits: &[E],
    d_sample: &[E],
    d_logits: &mut [E],
) -> Result<(), Error> {
    expect_length("logits", draw.numbers(), logits.len())?;
    expect_length("d_sample", draw.numbers(), d_sample.len())?;
    expect_length("d_logits", draw.numbers(), d_logits.len())?;
    let (classes, keep) = (draw.classes, 1.0 - f64::from(draw.unimix));
    let memory = || vec![0.0; classes];
    each_row_with(d_logits, classes, memory, |weights, n, d_logits| {
        let total = weigh(row(logits, n, classes), weights);
        let d = row(d_sample, n, classes);
        let mean = weights
            .iter()
            .zip(d)
            .map(|(weight, d)| weight / total * d.to_f64())
            .sum::<f64>();
        for (to, (weight, d)) in d_logits.iter_mut().zip(weights.iter().zip(d)) {
            *to = E::from_f64(keep * weight / total * (d.to_f64() - mean));
        }
    });
    Ok(())
}
