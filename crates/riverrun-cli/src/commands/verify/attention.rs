//! Attention: the result, the log-sum-exp and every gradient, under every mask.

use riverrun_kernels::Element;
use riverrun_kernels::attention::Shape;
use riverrun_kernels::attention::check::{Case, Options};

use super::part::{Part, by_storage};
use super::table::{Row, Table};
use crate::failure::Failure;

/// Shapes from nothing to several tiles with grouped heads, and causal, window, cap and documents by turns.
pub(super) fn verify(part: &Part<'_>, table: &mut Table) -> Result<(), Failure> {
    by_storage!(part.storage, rows(part, table))
}

fn rows<E: Element>(part: &Part<'_>, table: &mut Table) -> Result<(), Failure> {
    // B, T, S, H, Hk, D, and the number of the options. On a GPU every other D and option is another kernel.
    let mut problems = vec![
        ([0, 5, 5, 2, 1, 16], 0),
        ([1, 5, 0, 2, 1, 16], 0),
        ([1, 130, 200, 2, 2, 16], 0),
        ([2, 97, 97, 2, 1, 64], 1),
        ([2, 97, 97, 2, 1, 64], 7),
        ([1, 70, 90, 2, 1, 20], 14),
        ([1, 66, 66, 1, 1, 256], 3),
    ];
    if part.long {
        problems.extend([
            ([2, 512, 512, 4, 2, 64], 1),
            ([1, 700, 1000, 4, 1, 128], 7),
            ([1, 300, 300, 2, 1, 256], 11),
        ]);
    }
    let bug = |error: riverrun_kernels::Error| Failure::Bug(error.to_string());
    let mut row = Row::default();
    for (n, (sizes, options)) in problems.into_iter().enumerate() {
        let [batch, queries, keys, heads, key_heads, dim] = sizes;
        let shape = Shape {
            batch,
            queries,
            keys,
            heads,
            key_heads,
            dim,
        };
        let options = Options::nth(options, keys);
        let case = Case::random(shape, options, 17 + n as u64).rounded::<E>();
        let run = || {
            #[cfg(feature = "gpu")]
            if let Some((client, dtype)) = part.gpu() {
                return case.gpu(client, dtype, None);
            }
            case.cpu::<E>()
        };
        let (found, again) = (run().map_err(bug)?, run().map_err(bug)?);
        row.case(
            &case.compare::<E>(&found, &case.oracle()),
            found.same_bits(&again),
        );
    }
    let routine = if part.target.is_cpu() { "cpu" } else { "gpu" };
    table.row(part.device(), "attention", E::NAME, routine, row)
}
