//! The reference, in `f64`.

use super::{Problem, Weights};
use crate::rssm::{Draw, oracle};

/// The inputs of a sequence; see the [contract](super).
#[derive(Debug, Clone)]
pub struct Inputs {
    /// `[B, D]`.
    pub d0: Vec<f64>,
    /// `[B, L]`.
    pub s0: Vec<f64>,
    /// `[B, T, D]`.
    pub actions: Vec<f64>,
    /// `[B, T, H]`.
    pub tokens: Vec<f64>,
    /// `[T, B, S, C]`.
    pub noise: Vec<f64>,
    /// `[B, T]`.
    pub reset: Option<Vec<bool>>,
    /// The weights.
    pub weights: Weights<Vec<f64>>,
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// `y += x m` of a matrix `[x, y]`.
fn add_product(y: &mut [f64], x: &[f64], m: &[f64]) {
    for (x, row) in x.iter().zip(m.chunks(y.len())) {
        for (y, m) in y.iter_mut().zip(row) {
            *y += x * m;
        }
    }
}

/// `n(x, γ)`.
fn activate(x: &[f64], gamma: &[f64], epsilon: f64) -> Vec<f64> {
    let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
    let scale = 1.0 / (mean + epsilon).sqrt();
    let each = x.iter().zip(gamma).map(|(x, gamma)| x * scale * gamma);
    each.map(|y| y * sigmoid(y)).collect()
}

/// The states, `[B, T, D + 2L]`, and of each draw the scores, `[B, T, L]`: a draw takes the first of the largest.
///
/// `round` is applied to all that is stored. With `samples`, the states of another run, the sequence goes on from the `s'` of
/// that run, so that one draw at a tie does not change all that follows.
pub fn forward(
    problem: &Problem,
    inputs: &Inputs,
    round: impl Fn(f64) -> f64,
    samples: Option<&[f64]>,
) -> (Vec<f64>, Vec<f64>) {
    let Problem {
        batch,
        steps,
        deter,
        hidden,
        ..
    } = *problem;
    let (logits, width, row) = (problem.logits(), problem.width(), problem.row());
    let w = &inputs.weights;
    let stored = |x: Vec<f64>| -> Vec<f64> { x.into_iter().map(&round).collect() };
    let normal =
        |x: &[f64], gamma: &[f64], n: usize| stored(activate(x, gamma, problem.epsilons[n]));
    let mut states = vec![0.0; problem.rows() * row];
    let mut scores = vec![0.0; problem.rows() * logits];
    for b in 0..batch {
        let mut d = inputs.d0[b * deter..][..deter].to_vec();
        let mut s = inputs.s0[b * logits..][..logits].to_vec();
        for t in 0..steps {
            let at = b * steps + t;
            if inputs.reset.as_ref().is_some_and(|reset| reset[at]) {
                d.fill(0.0);
                s.fill(0.0);
            }
            let mut e = [w.deter_bias.clone(), w.stoch_bias.clone()];
            add_product(&mut e[0], &d, &w.deter);
            add_product(&mut e[1], &s, &w.stoch);
            let e = e.map(stored);
            let mut x = inputs.actions[at * deter..][..deter].to_vec();
            add_product(&mut x, &normal(&e[0], &w.deter_norm, 0), &w.inputs);
            let below = &w.inputs[hidden * deter..];
            add_product(&mut x, &normal(&e[1], &w.stoch_norm, 1), below);
            for (g, x) in x.chunks_mut(width).enumerate() {
                let block = &w.blocks[g * width * width..][..width * width];
                add_product(x, &d[g * width..][..width], block);
            }
            let x = stored(x);
            let q = normal(&x, &w.hidden_norm, 2);
            for g in 0..problem.blocks {
                let mut gates = w.gates_bias[g * 3 * width..][..3 * width].to_vec();
                let block = &w.gates[g * 3 * width * width..][..3 * width * width];
                add_product(&mut gates, &q[g * width..][..width], block);
                for (i, d) in d[g * width..][..width].iter_mut().enumerate() {
                    let [r, c, u] = [0, 1, 2].map(|gate| gates[gate * width + i]);
                    let u = sigmoid(u - 1.0);
                    *d = round(u * (sigmoid(r) * c).tanh() + (1.0 - u) * *d);
                }
            }
            let mut p = inputs.tokens[at * hidden..][..hidden].to_vec();
            add_product(&mut p, &d, &w.posterior);
            let p = stored(p);
            let mut l = w.logits_bias.clone();
            add_product(&mut l, &normal(&p, &w.posterior_norm, 3), &w.logits);
            let l = stored(l);
            let draw = Draw {
                rows: problem.stoch,
                classes: problem.classes,
                unimix: problem.unimix,
            };
            let noise = &inputs.noise[(t * batch + b) * logits..][..logits];
            let found = oracle::scores(draw, &l, noise);
            match samples {
                Some(samples) => s.copy_from_slice(&samples[at * row + deter..][..logits]),
                None => {
                    for (s, scores) in s
                        .chunks_mut(problem.classes)
                        .zip(found.chunks(problem.classes))
                    {
                        let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                        s.fill(0.0);
                        if let Some(first) = scores.iter().position(|x| *x == most) {
                            s[first] = 1.0;
                        }
                    }
                }
            }
            scores[at * logits..][..logits].copy_from_slice(&found);
            let to = &mut states[at * row..][..row];
            to[..deter].copy_from_slice(&d);
            to[deter..][..logits].copy_from_slice(&s);
            to[deter + logits..].copy_from_slice(&l);
        }
    }
    (states, scores)
}

/// What the layers made of the states of all steps.
#[derive(Debug, Clone)]
pub struct Saved {
    /// `d` before every step, 0 where it starts again, `[B, T, D]`.
    pub before: Vec<f64>,
    /// `e₁` and `e₂`, `[B, T, H]`.
    pub e: [Vec<f64>; 2],
    /// `[B, T, D]`.
    pub x: Vec<f64>,
    /// `[G, B·T, 3W]`.
    pub gates: Vec<f64>,
    /// `[B, T, H]`.
    pub p: Vec<f64>,
}

/// The layers' values, of the states that a forward pass has written.
pub fn saved(
    problem: &Problem,
    inputs: &Inputs,
    states: &[f64],
    round: impl Fn(f64) -> f64,
) -> Saved {
    let Problem {
        steps,
        deter,
        hidden,
        ..
    } = *problem;
    let (logits, width, row) = (problem.logits(), problem.width(), problem.row());
    let w = &inputs.weights;
    let stored = |x: Vec<f64>| -> Vec<f64> { x.into_iter().map(&round).collect() };
    let mut all = Saved {
        before: Vec::new(),
        e: [Vec::new(), Vec::new()],
        x: Vec::new(),
        gates: vec![0.0; problem.rows() * 3 * deter],
        p: Vec::new(),
    };
    for at in 0..problem.rows() {
        let (b, t) = (at / steps, at % steps);
        let restarts = inputs.reset.as_ref().is_some_and(|reset| reset[at]);
        let (d, s) = match (restarts, t) {
            (true, _) => (vec![0.0; deter], vec![0.0; logits]),
            (false, 0) => (
                inputs.d0[b * deter..][..deter].to_vec(),
                inputs.s0[b * logits..][..logits].to_vec(),
            ),
            _ => {
                let last = &states[(at - 1) * row..][..row];
                (last[..deter].to_vec(), last[deter..][..logits].to_vec())
            }
        };
        let mut e = [w.deter_bias.clone(), w.stoch_bias.clone()];
        add_product(&mut e[0], &d, &w.deter);
        add_product(&mut e[1], &s, &w.stoch);
        let e = e.map(stored);
        let mut x = inputs.actions[at * deter..][..deter].to_vec();
        for (n, gamma) in [&w.deter_norm, &w.stoch_norm].into_iter().enumerate() {
            let y = stored(activate(&e[n], gamma, problem.epsilons[n]));
            add_product(&mut x, &y, &w.inputs[n * hidden * deter..]);
            all.e[n].extend(&e[n]);
        }
        for (g, x) in x.chunks_mut(width).enumerate() {
            let block = &w.blocks[g * width * width..][..width * width];
            add_product(x, &d[g * width..][..width], block);
        }
        let x = stored(x);
        let q = stored(activate(&x, &w.hidden_norm, problem.epsilons[2]));
        for g in 0..problem.blocks {
            let mut gates = w.gates_bias[g * 3 * width..][..3 * width].to_vec();
            let block = &w.gates[g * 3 * width * width..][..3 * width * width];
            add_product(&mut gates, &q[g * width..][..width], block);
            let to = &mut all.gates[(g * problem.rows() + at) * 3 * width..][..3 * width];
            to.copy_from_slice(&stored(gates));
        }
        let mut p = inputs.tokens[at * hidden..][..hidden].to_vec();
        add_product(&mut p, &states[at * row..][..deter], &w.posterior);
        all.p.extend(stored(p));
        all.before.extend(d);
        all.x.extend(x);
    }
    all
}

/// The gradients of the layers' values.
#[derive(Debug, Clone, PartialEq)]
pub struct Gradients {
    /// Gradients of `n(e₁)` and `n(e₂)`, `[B, T, H]`.
    pub e: [Vec<f64>; 2],
    /// Gradient of `n(x)`, `[G, B·T, W]`.
    pub hidden: Vec<f64>,
    /// Gradient of the gates, `[G, B·T, 3W]`.
    pub gates: Vec<f64>,
    /// Gradient of `n(p)`, `[B, T, H]`.
    pub posterior: Vec<f64>,
    /// Gradient of the logits, `[B, T, L]`.
    pub logits: Vec<f64>,
    /// Gradient of `d` before the first step, `[B, D]`.
    pub d0: Vec<f64>,
    /// Gradient of `s` before the first step, `[B, L]`.
    pub s0: Vec<f64>,
}

impl Gradients {
    /// Each by its name.
    pub fn named(&self) -> [(&'static str, &[f64]); 8] {
        [
            ("deter", &self.e[0]),
            ("stoch", &self.e[1]),
            ("hidden", &self.hidden),
            ("gates", &self.gates),
            ("posterior", &self.posterior),
            ("logits", &self.logits),
            ("d0", &self.d0),
            ("s0", &self.s0),
        ]
    }
}

/// `m d` of a matrix `[x, y]` and the gradient of `y`.
fn back(m: &[f64], d: &[f64]) -> Vec<f64> {
    let row = |row: &[f64]| row.iter().zip(d).map(|(m, d)| m * d).sum();
    m.chunks(d.len()).map(row).collect()
}

/// The gradient of `x` from that of `n(x, γ)`.
fn activate_back(x: &[f64], gamma: &[f64], epsilon: f64, d: &[f64]) -> Vec<f64> {
    let n = x.len() as f64;
    let scale = 1.0 / (x.iter().map(|x| x * x).sum::<f64>() / n + epsilon).sqrt();
    let inner = x.iter().zip(gamma).zip(d).map(|((x, gamma), d)| {
        let y = x * scale * gamma;
        let s = sigmoid(y);
        d * (s + y * s * (1.0 - s)) * gamma
    });
    let inner: Vec<f64> = inner.collect();
    let dot: f64 = x.iter().zip(&inner).map(|(x, inner)| x * inner).sum();
    let each = x.iter().zip(&inner);
    each.map(|(x, inner)| scale * inner - x * scale.powi(3) * dot / n)
        .collect()
}

/// The gradients of the layers' values from those of the states, `[B, T, D + 2L]`. `round` is applied to all that is stored.
pub fn backward(
    problem: &Problem,
    inputs: &Inputs,
    saved: &Saved,
    states: &[f64],
    d_states: &[f64],
    round: impl Fn(f64) -> f64,
) -> Gradients {
    let Problem {
        batch,
        steps,
        deter,
        hidden,
        blocks,
        ..
    } = *problem;
    let (logits, width, row) = (problem.logits(), problem.width(), problem.row());
    let rows = problem.rows();
    let w = &inputs.weights;
    let stored = |x: Vec<f64>| -> Vec<f64> { x.into_iter().map(&round).collect() };
    let zeros = |n: usize| vec![0.0; n];
    let mut all = Gradients {
        e: [zeros(rows * hidden), zeros(rows * hidden)],
        hidden: zeros(rows * deter),
        gates: zeros(rows * 3 * deter),
        posterior: zeros(rows * hidden),
        logits: zeros(rows * logits),
        d0: zeros(batch * deter),
        s0: zeros(batch * logits),
    };
    for b in 0..batch {
        let (mut d_d, mut d_s) = (zeros(deter), zeros(logits));
        for t in (0..steps).rev() {
            let at = b * steps + t;
            let given = &d_states[at * row..][..row];
            let add = |to: &mut Vec<f64>, from: &[f64]| {
                to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
            };
            add(&mut d_s, &given[deter..][..logits]);
            let draw = Draw {
                rows: problem.stoch,
                classes: problem.classes,
                unimix: problem.unimix,
            };
            let l = &states[at * row + deter + logits..][..logits];
            let mut d_l = oracle::draw_backward(draw, l, &d_s);
            add(&mut d_l, &given[deter + logits..]);
            let d_l = stored(d_l);
            let d_y = stored(back(&w.logits, &d_l));
            let p = &saved.p[at * hidden..][..hidden];
            let d_p = stored(activate_back(
                p,
                &w.posterior_norm,
                problem.epsilons[3],
                &d_y,
            ));
            all.logits[at * logits..][..logits].copy_from_slice(&d_l);
            all.posterior[at * hidden..][..hidden].copy_from_slice(&d_y);
            add(&mut d_d, &given[..deter]);
            add(&mut d_d, &back(&w.posterior, &d_p));
            let (mut d_q, mut kept) = (zeros(deter), zeros(deter));
            for g in 0..blocks {
                let place = (g * rows + at) * 3 * width;
                let gates = &saved.gates[place..][..3 * width];
                let mut d_gates = zeros(3 * width);
                for i in 0..width {
                    let unit = g * width + i;
                    let [r, c, u] = [0, 1, 2].map(|gate| gates[gate * width + i]);
                    let (r, u) = (sigmoid(r), sigmoid(u - 1.0));
                    let y = (r * c).tanh();
                    let d = d_d[unit];
                    let inner = d * u * (1.0 - y * y);
                    d_gates[i] = inner * c * r * (1.0 - r);
                    d_gates[width + i] = inner * r;
                    let before = saved.before[at * deter + unit];
                    d_gates[2 * width + i] = d * (y - before) * u * (1.0 - u);
                    kept[unit] = d * (1.0 - u);
                }
                let d_gates = stored(d_gates);
                all.gates[place..][..3 * width].copy_from_slice(&d_gates);
                let block = &w.gates[g * 3 * width * width..][..3 * width * width];
                let of_block = stored(back(block, &d_gates));
                d_q[g * width..][..width].copy_from_slice(&of_block);
                all.hidden[(g * rows + at) * width..][..width].copy_from_slice(&of_block);
            }
            let x = &saved.x[at * deter..][..deter];
            let d_x = stored(activate_back(x, &w.hidden_norm, problem.epsilons[2], &d_q));
            d_d = kept;
            for g in 0..blocks {
                let block = &w.blocks[g * width * width..][..width * width];
                let of_block = back(block, &d_x[g * width..][..width]);
                let to = d_d[g * width..][..width].iter_mut();
                to.zip(of_block).for_each(|(to, from)| *to += from);
            }
            for (n, gamma) in [&w.deter_norm, &w.stoch_norm].into_iter().enumerate() {
                let inputs = &w.inputs[n * hidden * deter..][..hidden * deter];
                let d_y = stored(back(inputs, &d_x));
                let e = &saved.e[n][at * hidden..][..hidden];
                let d_e = stored(activate_back(e, gamma, problem.epsilons[n], &d_y));
                all.e[n][at * hidden..][..hidden].copy_from_slice(&d_y);
                match n {
                    0 => add(&mut d_d, &back(&w.deter, &d_e)),
                    _ => d_s = back(&w.stoch, &d_e),
                }
            }
            if inputs.reset.as_ref().is_some_and(|reset| reset[at]) {
                d_d.fill(0.0);
                d_s.fill(0.0);
            }
        }
        all.d0[b * deter..][..deter].copy_from_slice(&stored(d_d));
        all.s0[b * logits..][..logits].copy_from_slice(&stored(d_s));
    }
    all
}
