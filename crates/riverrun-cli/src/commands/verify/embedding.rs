//! The embedding: rows gathered, and the gradient of the table.

use riverrun_kernels::Element;
use riverrun_kernels::embedding::Shape;
use riverrun_kernels::embedding::check::{Case, Tokens};
use riverrun_testkit::{Failure, Part, Report, Row, by_storage};

/// Every distribution of tokens, with vocabularies from 2 to 50 257, and to 200 000 in a long run.
pub(super) fn verify(part: &Part<'_>, table: &mut dyn Report) -> Result<(), Failure> {
    by_storage!(part.storage, rows(part, table))
}

fn rows<E: Element>(part: &Part<'_>, table: &mut dyn Report) -> Result<(), Failure> {
    let mut shapes = vec![
        [1, 1, 1],
        [33, 300, 16],
        [1025, 255, 3],
        [5000, 2, 24],
        [16_384, 65, 64],
        [2000, 50_257, 8],
    ];
    if part.long {
        shapes.extend([
            [65_536, 65, 512],
            [16_384, 50_257, 768],
            [65_536, 200_000, 33],
        ]);
    }
    let bug = |error: riverrun_kernels::Error| Failure(error.to_string());
    let mut row = Row::default();
    for (n, [tokens, vocab, dim]) in shapes.into_iter().enumerate() {
        for kind in Tokens::ALL {
            let shape = Shape::new(tokens, vocab, dim);
            let case = Case::random(shape, kind, 17 + n as u64).rounded::<E>();
            let run = || {
                #[cfg(feature = "gpu")]
                if let Some((client, dtype)) = part.gpu() {
                    return case.gpu(client, dtype);
                }
                case.cpu::<E>()
            };
            let (found, again) = (run().map_err(bug)?, run().map_err(bug)?);
            row.case(
                &case.compare::<E>(&found, &case.oracle()),
                found.same_bits(&again),
            );
        }
    }
    let routine = if part.target.is_cpu() { "cpu" } else { "gpu" };
    table.row(part.device(), "embedding", E::NAME, routine, row)
}
