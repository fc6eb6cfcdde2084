//! In `f64`, pair by pair.

use super::Problem;

/// The results of [`forward`].
#[derive(Debug, Clone, PartialEq)]
pub struct Output {
    /// `[B, T, H, D]`.
    pub o: Vec<f64>,
    /// `[B, H, T]`.
    pub lse: Vec<f64>,
}

/// The results of [`backward`].
#[derive(Debug, Clone, PartialEq)]
pub struct Gradients {
    /// `[B, T, H, D]`.
    pub q: Vec<f64>,
    /// `[B, S, Hk, D]`.
    pub k: Vec<f64>,
    /// `[B, S, Hk, D]`.
    pub v: Vec<f64>,
}

/// Whether query `i` sees key `j`, from the definition.
pub fn sees(problem: &Problem, reset: Option<&[bool]>, i: usize, j: usize) -> bool {
    let at = problem.shape.keys as i64 - problem.shape.queries as i64 + i as i64;
    let j = j as i64;
    let hidden = problem.causal && j > at
        || problem
            .window
            .is_some_and(|window| (at - j).unsigned_abs() >= window as u64);
    let parted = reset.is_some_and(|reset| {
        let (early, late) = (at.min(j), at.max(j));
        (early + 1..=late).any(|position| reset[position as usize])
    });
    !hidden && !parted
}

/// A query of a head, with the keys that it sees.
pub(super) struct Row {
    /// Number of the query's row among `[B, T, H]`.
    pub query: usize,
    /// Number of its `lse` among `[B, H, T]`.
    pub place: usize,
    /// Numbers of the key rows among `[B, S, Hk]` that it sees.
    pub keys: Vec<usize>,
}

/// Every query of every head.
pub(super) fn rows(problem: &Problem, reset: Option<&[bool]>) -> Vec<Row> {
    let shape = problem.shape;
    let mut rows = Vec::new();
    for b in 0..shape.batch {
        let marks = reset.map(|reset| &reset[b * shape.keys..][..shape.keys]);
        for i in 0..shape.queries {
            let seen: Vec<usize> = (0..shape.keys)
                .filter(|&j| sees(problem, marks, i, j))
                .collect();
            for h in 0..shape.heads {
                let key = |&j: &usize| (b * shape.keys + j) * shape.key_heads + h / shape.group();
                rows.push(Row {
                    query: (b * shape.queries + i) * shape.heads + h,
                    place: (b * shape.heads + h) * shape.queries + i,
                    keys: seen.iter().map(key).collect(),
                });
            }
        }
    }
    rows
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The score of a product, and its slope.
pub(super) fn score(problem: &Problem, product: f64) -> (f64, f64) {
    let s = problem.scale * product;
    match problem.softcap {
        Some(cap) => {
            let t = (s / cap).tanh();
            (cap * t, 1.0 - t * t)
        }
        None => (s, 1.0),
    }
}

/// `o` and `lse`.
pub fn forward(
    problem: &Problem,
    q: &[f64],
    k: &[f64],
    v: &[f64],
    reset: Option<&[bool]>,
) -> Output {
    let dim = problem.shape.dim;
    let mut o = vec![0.0; q.len()];
    let mut lse = vec![f64::NEG_INFINITY; q.len() / dim];
    for row in rows(problem, reset) {
        let query = &q[row.query * dim..][..dim];
        let scores: Vec<f64> = row
            .keys
            .iter()
            .map(|key| score(problem, dot(query, &k[key * dim..][..dim])).0)
            .collect();
        if scores.is_empty() {
            continue;
        }
        let top = scores.iter().fold(f64::NEG_INFINITY, |top, &s| top.max(s));
        let sum: f64 = scores.iter().map(|s| (s - top).exp()).sum();
        lse[row.place] = top + sum.ln();
        for (key, s) in row.keys.iter().zip(&scores) {
            let p = (s - lse[row.place]).exp();
            for d in 0..dim {
                o[row.query * dim + d] += p * v[key * dim + d];
            }
        }
    }
    Output { o, lse }
}

/// The gradients from `∂L/∂o`.
pub fn backward(
    problem: &Problem,
    [q, k, v]: [&[f64]; 3],
    reset: Option<&[bool]>,
    output: &Output,
    d_o: &[f64],
) -> Gradients {
    let dim = problem.shape.dim;
    let mut d = Gradients {
        q: vec![0.0; q.len()],
        k: vec![0.0; k.len()],
        v: vec![0.0; v.len()],
    };
    for row in rows(problem, reset) {
        let at = row.query * dim;
        let (query, above) = (&q[at..][..dim], &d_o[at..][..dim]);
        let delta = dot(above, &output.o[at..][..dim]);
        for key in row.keys {
            let from = key * dim;
            let (s, slope) = score(problem, dot(query, &k[from..][..dim]));
            let p = (s - output.lse[row.place]).exp();
            let ds = p * (dot(above, &v[from..][..dim]) - delta) * slope * problem.scale;
            for c in 0..dim {
                d.v[from + c] += p * above[c];
                d.q[at + c] += ds * k[from + c];
                d.k[from + c] += ds * query[c];
            }
        }
    }
    d
}
