//! A NaN, and what it may not reach.

use super::{Case, Outcome};
use crate::attention::oracle;

impl Case {
    /// The same with NaN in every tensor at a position of sequence 0.
    pub fn poisoned(&self, at: usize) -> Self {
        let shape = self.problem.shape;
        let mut case = self.clone();
        let width = shape.key_heads * shape.dim;
        for x in [&mut case.k, &mut case.v] {
            x[at * width..(at + 1) * width].fill(f64::NAN);
        }
        let width = shape.heads * shape.dim;
        for x in [&mut case.q, &mut case.d_o] {
            x[at * width..(at + 1) * width].fill(f64::NAN);
        }
        case
    }

    /// Compares results without and with [`Self::poisoned`], of as many queries as keys, where the NaN may not reach: at steps
    /// that neither see it nor are seen by it. The number of those steps, counted once for queries and once for keys.
    ///
    /// # Errors
    /// The first tensor and step that differ.
    pub fn untouched(&self, at: usize, clean: &Outcome, found: &Outcome) -> Result<usize, String> {
        let shape = self.problem.shape;
        let reset = self.reset.as_deref().map(|reset| &reset[..shape.keys]);
        let sees = |i: usize, j: usize| oracle::sees(&self.problem, reset, i, j);
        let mut untouched = 0;
        for step in (0..shape.batch * shape.keys).filter(|&step| step != at) {
            let own = step < shape.keys;
            // A query that sees the NaN has NaN gradients for all that it sees.
            let reached = own && (0..shape.keys).any(|i| sees(i, step) && (sees(i, at) || i == at));
            let (queries, keys) = (!own || !sees(step, at), !reached);
            let [heads, key_heads] = [shape.heads, shape.key_heads].map(|heads| heads * shape.dim);
            for (name, width, wanted) in [
                ("o", heads, queries),
                ("d_q", heads, queries),
                ("d_k", key_heads, keys),
                ("d_v", key_heads, keys),
            ] {
                let [clean, found] = [clean, found].map(|x| &x.get(name)[step * width..][..width]);
                if wanted && clean != found {
                    return Err(format!("{name} differs at step {step}"));
                }
            }
            untouched += usize::from(queries) + usize::from(keys);
        }
        Ok(untouched)
    }
}
