//! The rule of acceptance, element by element.
//!
//! With `u` a rounding of the arithmetic, `ε` one of storage and `L_i` the largest `scale · Σ_d |q_id k_jd|` of a query: a score is
//! a sum of `D` terms in some order, so it is off by at most `u (D + 16) L_i`, the exponential and the cap included, and `p` by
//! that part of itself, twice over since `lse` has the same error. `16-bit` types may round `p` and `ds` to storage before the
//! second product, as the naive computation in the storage type does. A sum over `n` terms adds `u n` of the sum of their
//! sizes. What a result is made of is summed up here in sizes: `Σ p |v|` for `o`, and so on along the formulas.

use crate::attention::check::Case;
use crate::attention::oracle::{rows, score};
use crate::case::compare;
use crate::{Comparison, Element, Tensors, roundings};

impl Case {
    /// The largest error of each number that passes, for a case rounded to `E`.
    pub(in crate::attention) fn limits<E: Element>(&self, reference: &Tensors) -> Tensors {
        let (storage, u) = roundings::<E>();
        let half = if size_of::<E>() == 2 { E::EPSILON } else { 0.0 };
        let (problem, dim) = (&self.problem, self.problem.shape.dim);
        let [all_o, all_lse] = ["o", "lse"].map(|name| reference.get(name));
        let names = ["o", "lse", "d_q", "d_k", "d_v"];
        let mut allowed = names.map(|name| vec![0.0; reference.get(name).len()]);
        let [of_o, of_lse, of_q, of_k, of_v] = &mut allowed;
        let sizes =
            |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| (a * b).abs()).sum() };
        let product = |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
        for row in rows(problem, self.reset.as_deref()) {
            let at = row.query * dim;
            let (q, d_o, o) = (
                &self.q[at..][..dim],
                &self.d_o[at..][..dim],
                &all_o[at..][..dim],
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
            of_lse[row.place] = off + u * (terms + 32.0 + all_lse[row.place].abs());
            // The rounding of `o` to storage, which `δ` inherits.
            let delta = sizes(d_o, o) * (E::EPSILON + u * dim as f64);
            for &j in &row.keys {
                let (k, v) = key(j);
                let (s, _) = score(problem, product(q, k));
                let p = (s - all_lse[row.place]).exp();
                let above = sizes(d_o, v) + sizes(d_o, o);
                let capped = problem
                    .softcap
                    .map_or(0.0, |cap| 2.0 * off / cap + 16.0 * u);
                let ds = problem.scale.abs()
                    * p
                    * (above * (part + capped + u * (dim as f64 + 8.0) + half) + delta);
                let size = problem.scale.abs() * p * above;
                for d in 0..dim {
                    of_o[at + d] += p * v[d].abs() * (part + half);
                    of_q[at + d] += (ds + size * u * terms) * k[d].abs();
                    let from = j * dim + d;
                    let group = (problem.shape.group() * problem.shape.queries) as f64;
                    of_k[from] += (ds + size * u * group) * q[d].abs();
                    of_v[from] += p * d_o[d].abs() * (part + half + u * group);
                }
            }
        }
        let allowed = Tensors::new(names.into_iter().zip(allowed));
        reference.map(|name, i, reference| {
            let allowed = allowed.get(name)[i];
            match name {
                "lse" => allowed.max(0.0) + f64::from(f32::EPSILON) * reference.abs(),
                _ => storage(reference) + allowed,
            }
        })
    }

    /// Compares every tensor of `found`, for a case rounded to `E`.
    pub fn compare<E: Element>(&self, found: &Tensors, reference: &Tensors) -> Vec<Comparison> {
        compare(found, reference, &self.limits::<E>(reference))
    }
}
