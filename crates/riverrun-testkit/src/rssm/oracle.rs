//! The reference, in `f64`.

use super::{Blocks, Draw};

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// `y` of every `x`, in blocks.
pub fn activate(blocks: Blocks, x: &[f64]) -> Vec<f64> {
    rows(blocks, |at, j| x[at + j] * sigmoid(x[at + j]))
}

/// `∂L/∂x` from `∂L/∂y`.
pub fn activate_backward(blocks: Blocks, x: &[f64], d_y: &[f64]) -> Vec<f64> {
    let mut d_x = vec![0.0; x.len()];
    for (k, d) in d_y.iter().enumerate() {
        let at = blocks.in_states(k / blocks.width) * blocks.width + k % blocks.width;
        let s = sigmoid(x[at]);
        d_x[at] = d * (s + x[at] * s * (1.0 - s));
    }
    d_x
}

/// An array in blocks from the index of a row's first number in `[B, D]` and the index in the row.
fn rows(blocks: Blocks, f: impl Fn(usize, usize) -> f64) -> Vec<f64> {
    let width = blocks.width;
    (0..blocks.numbers())
        .map(|k| f(blocks.in_states(k / width) * width, k % width))
        .collect()
}

/// The gates `[r, c, u]` of number `k` of the states, and their places.
fn gates(blocks: Blocks, a: &[f64], k: usize) -> ([f64; 3], [usize; 3]) {
    let width = blocks.width;
    let row = blocks.in_blocks(k / width) * 3 * width + k % width;
    let places = [row, row + width, row + 2 * width];
    (places.map(|at| a[at]), places)
}

/// The next states.
pub fn step(blocks: Blocks, a: &[f64], before: &[f64]) -> Vec<f64> {
    let next = |(k, d): (usize, &f64)| {
        let ([r, c, u], _) = gates(blocks, a, k);
        let u = sigmoid(u - 1.0);
        u * (sigmoid(r) * c).tanh() + (1.0 - u) * d
    };
    before.iter().enumerate().map(next).collect()
}

/// `∂L/∂a` and `∂L/∂d` from `∂L/∂d'`.
pub fn step_backward(
    blocks: Blocks,
    a: &[f64],
    before: &[f64],
    d_next: &[f64],
) -> (Vec<f64>, Vec<f64>) {
    let (mut d_a, mut d_before) = (vec![0.0; a.len()], vec![0.0; before.len()]);
    for (k, e) in d_next.iter().enumerate() {
        let ([r, c, u], places) = gates(blocks, a, k);
        let (s, u) = (sigmoid(r), sigmoid(u - 1.0));
        let t = (s * c).tanh();
        let inner = e * u * (1.0 - t * t);
        d_a[places[0]] = inner * c * s * (1.0 - s);
        d_a[places[1]] = inner * s;
        d_a[places[2]] = e * (t - before[k]) * u * (1.0 - u);
        d_before[k] = e * (1.0 - u);
    }
    (d_a, d_before)
}

/// `softmax` of a row.
fn softmax(row: &[f64]) -> Vec<f64> {
    let most = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let total: f64 = row.iter().map(|l| (l - most).exp()).sum();
    row.iter().map(|l| (l - most).exp() / total).collect()
}

/// `ln p + noise` of every class.
pub fn scores(draw: Draw, logits: &[f64], noise: &[f64]) -> Vec<f64> {
    let mix = f64::from(draw.unimix);
    let row = |(l, noise): (&[f64], &[f64])| -> Vec<f64> {
        let p = softmax(l);
        let uniform = mix / draw.classes as f64;
        let scores = p.iter().zip(noise);
        scores
            .map(|(p, noise)| ((1.0 - mix) * p + uniform).ln() + noise)
            .collect()
    };
    let rows = logits.chunks(draw.classes).zip(noise.chunks(draw.classes));
    rows.flat_map(row).collect()
}

/// `∂L/∂logits` from `∂L/∂sample`.
pub fn draw_backward(draw: Draw, logits: &[f64], d_sample: &[f64]) -> Vec<f64> {
    let keep = 1.0 - f64::from(draw.unimix);
    let row = |(l, g): (&[f64], &[f64])| -> Vec<f64> {
        let q = softmax(l);
        let mean: f64 = q.iter().zip(g).map(|(q, g)| q * g).sum();
        q.iter()
            .zip(g)
            .map(|(q, g)| keep * q * (g - mean))
            .collect()
    };
    let rows = logits
        .chunks(draw.classes)
        .zip(d_sample.chunks(draw.classes));
    rows.flat_map(row).collect()
}
