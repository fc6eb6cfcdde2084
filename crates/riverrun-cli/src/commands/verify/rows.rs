//! Operations on the rows of a matrix, forward and every gradient: the norms and the cross-entropy; and the optimizer.

use half::{bf16, f16};
use riverrun_kernels::{CpuElement, Error, adamw, cross_entropy, flat};
use riverrun_testkit::{Failure, Part, Report, Row, Storage, by_storage};

/// The cross-entropy.
pub(super) fn loss(part: &Part<'_>, table: &mut dyn Report) -> Result<(), Failure> {
    by_storage!(part.storage, loss_row(part, table))
}

/// AdamW with gradients in each storage type, and the clipping of gradients.
pub(super) fn optimizer(part: &Part<'_>, table: &mut dyn Report) -> Result<(), Failure> {
    match part.storage {
        Storage::F16 => optimizer_rows::<f16>(part, table),
        Storage::Bf16 => optimizer_rows::<bf16>(part, table),
        // The weights and their moments are f32 whatever the gradients are; there are no f64 ones.
        Storage::F32 | Storage::F64 => optimizer_rows::<f32>(part, table),
    }
}

fn routine(part: &Part<'_>) -> &'static str {
    if part.target.is_cpu() { "cpu" } else { "gpu" }
}

fn optimizer_rows<E: CpuElement<Acc = f32>>(
    part: &Part<'_>,
    table: &mut dyn Report,
) -> Result<(), Failure> {
    let mut row = Row::default();
    let many: Vec<usize> = (0..40).map(|n| 1 + 13 * n).collect();
    let mut sets = vec![vec![0, 1, 3, 64, 5001], many];
    if part.long {
        sets.push(vec![1 << 22, 1 << 20, 4096, 12_345]);
    }
    for (n, sizes) in sets.iter().enumerate() {
        let case = adamw::check::Case::random(sizes, 17 + n as u64).rounded::<E>();
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
    table.row(part.device(), "adamw", E::NAME, routine(part), row)?;
    if E::NAME == "f32" {
        vectors(part, &sets, table)?;
    }
    #[cfg(feature = "gpu")]
    if let Some((client, riverrun_kernels::gpu::Dtype::F32)) = part.gpu() {
        let mut row = Row::default();
        for scaled in [false, true] {
            let case = adamw::check::ClipCase::new(scaled);
            let (found, again) = (case.gpu(client), case.gpu(client));
            // Compared as text: a factor may be NaN.
            let same = format!("{found:?}") == format!("{again:?}");
            row.case(&case.compare(&found, &case.oracle()), same);
        }
        table.row(part.device(), "clip", "f32", "gpu", row)?;
    }
    Ok(())
}

/// Sums of vectors added to tensors of these sizes, and copies between both.
fn vectors(part: &Part<'_>, sets: &[Vec<usize>], table: &mut dyn Report) -> Result<(), Failure> {
    let mut row = Row::default();
    for (n, sizes) in sets.iter().enumerate() {
        let case = flat::check::Case::random(sizes, flat::DIRECTIONS, 23 + n as u64);
        let run = || {
            #[cfg(feature = "gpu")]
            if let Some((client, _)) = part.gpu() {
                return case.gpu(client);
            }
            case.cpu()
        };
        let (found, again) = (run().map_err(bug)?, run().map_err(bug)?);
        row.case(
            &case.compare(&found, &case.oracle()),
            found.same_bits(&again),
        );
    }
    table.row(part.device(), "flat", "f32", routine(part), row)
}

fn bug(error: Error) -> Failure {
    Failure(error.to_string())
}

fn loss_row<E: CpuElement>(part: &Part<'_>, table: &mut dyn Report) -> Result<(), Failure> {
    let mut shapes = vec![
        [1, 1],
        [9, 2],
        [5, 31],
        [64, 65],
        [100, 256],
        [8, 1003],
        [7, 5000],
        [2, 50_257],
    ];
    if part.long {
        shapes.extend([[2000, 65], [64, 50_257], [1, 262_144]]);
    }
    let mut row = Row::default();
    for (n, shape) in shapes.into_iter().enumerate() {
        let case = cross_entropy::check::Case::random(shape, 17 + n as u64).rounded::<E>();
        let run = || {
            #[cfg(feature = "gpu")]
            if let Some((client, dtype)) = part.gpu() {
                return case.gpu(client, dtype, [None; 2]);
            }
            case.cpu::<E>()
        };
        let (found, again) = (run().map_err(bug)?, run().map_err(bug)?);
        row.case(
            &case.compare::<E>(&found, &case.oracle()),
            found.same_bits(&again),
        );
    }
    table.row(part.device(), "cross-entropy", E::NAME, routine(part), row)
}
