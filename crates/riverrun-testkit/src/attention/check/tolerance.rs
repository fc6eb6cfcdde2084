//! The rule of acceptance, element by element.
//!
//! With `u` a rounding of the arithmetic, `ε` one of storage and `L_i` the largest `scale · Σ_d |q_id k_jd|` of a query: a score is
//! a sum of `D` terms in some order, so it is off by at most `u (D + 16) L_i`, the exponential and the cap included, and `p` by
//! that part of itself, twice over since `lse` has the same error. `16-bit` types may round `p` and `ds` to storage before the
//! second product, as the naive computation in the storage type does. A sum over `n` terms adds `u n` of the sum of their
//! sizes. What a result is made of is summed up here in sizes: `Σ p |v|` for `o`, and so on along the formulas.

use crate::Element;
use crate::attention::check::{Case, Outcome};
use crate::attention::oracle::{rows, score};
use crate::check::{Comparison, roundings, worst};

/// The largest error that is accepted for each number.
struct Allowed {
    o: Vec<f64>,
    lse: Vec<f64>,
    d_q: Vec<f64>,
    d_k: Vec<f64>,
    d_v: Vec<f64>,
}

impl Case {
    fn allowed<E: Element>(&self, reference: &Outcome) -> Allowed {
        let (_, u) = roundings::<E>();
        let half = if size_of::<E>() == 2 { E::EPSILON } else { 0.0 };
        let (problem, dim) = (&self.problem, self.problem.shape.dim);
        let mut allowed = Allowed {
            o: vec![0.0; reference.o.len()],
            lse: vec![0.0; reference.lse.len()],
            d_q: vec![0.0; reference.d_q.len()],
            d_k: vec![0.0; reference.d_k.len()],
            d_v: vec![0.0; reference.d_v.len()],
        };
        let sizes =
            |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| (a * b).abs()).sum() };
        let product = |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
        for row in rows(problem, self.reset.as_deref()) {
            let at = row.query * dim;
            let (q, d_o, o) = (
                &self.q[at..][..dim],
                &self.d_o[at..][..dim],
                &reference.o[at..][..dim],
            );
            let key = |j: usize| (&self.k[j * dim..][..dim], &self.v[j * dim..][..dim]);
            let largest = row
                .keys
                .iter()
                .map(|&j| problem.scale.abs() * sizes(q, key(j).0))
                .fold(0.0, f64::max);
            let terms = row.keys.len() as f64;
            let off = u * ((dim as f64 + 16.0) * largest + 16.0);
            let part = 2.0 * off + u * (terms + 32.0);
            allowed.lse[row.place] = off + u * (terms + 32.0 + reference.lse[row.place].abs());
            // The rounding of `o` to storage, which `δ` inherits.
            let delta = sizes(d_o, o) * (E::EPSILON + u * dim as f64);
            for &j in &row.keys {
                let (k, v) = key(j);
                let (s, _) = score(problem, product(q, k));
                let p = (s - reference.lse[row.place]).exp();
                let above = sizes(d_o, v) + sizes(d_o, o);
                let capped = problem
                    .softcap
                    .map_or(0.0, |cap| 2.0 * off / cap + 16.0 * u);
                let ds = problem.scale.abs()
                    * p
                    * (above * (part + capped + u * (dim as f64 + 8.0) + half) + delta);
                let size = problem.scale.abs() * p * above;
                for d in 0..dim {
                    allowed.o[at + d] += p * v[d].abs() * (part + half);
                    allowed.d_q[at + d] += (ds + size * u * terms) * k[d].abs();
                    let from = j * dim + d;
                    let group = (problem.shape.group() * problem.shape.queries) as f64;
                    allowed.d_k[from] += (ds + size * u * group) * q[d].abs();
                    allowed.d_v[from] += p * d_o[d].abs() * (part + half + u * group);
                }
            }
        }
        allowed
    }

    /// Compares every tensor of `found`, for a case rounded to `E`.
    pub fn compare<E: Element>(&self, found: &Outcome, reference: &Outcome) -> Vec<Comparison> {
        let (storage, _) = roundings::<E>();
        let allowed = self.allowed::<E>(reference);
        let rule = |name: &str, found: &[f64], reference: &[f64], allowed: &[f64]| {
            worst(name, found, reference, |i| {
                storage(reference[i]) + allowed[i]
            })
        };
        // A query that sees no key: -∞, which has no distance from itself.
        let finite = |lse: &[f64]| -> Vec<f64> {
            let number = |x: &f64| match *x == f64::NEG_INFINITY {
                true => 0.0,
                false => *x,
            };
            lse.iter().map(number).collect()
        };
        let lse = [finite(&found.lse), finite(&reference.lse)];
        let arithmetic = |x: f64| f64::from(f32::EPSILON) * x.abs();
        vec![
            rule("o", &found.o, &reference.o, &allowed.o),
            worst("lse", &lse[0], &lse[1], |i| {
                allowed.lse[i].max(0.0) + arithmetic(lse[1][i])
            }),
            rule("d_q", &found.d_q, &reference.d_q, &allowed.d_q),
            rule("d_k", &found.d_k, &reference.d_k, &allowed.d_k),
            rule("d_v", &found.d_v, &reference.d_v, &allowed.d_v),
        ]
    }
}
