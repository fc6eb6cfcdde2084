//! Attention: the result, the log-sum-exp and every gradient, under every mask.

use riverrun_kernels::CpuElement;
use riverrun_kernels::attention::Shape;

use crate::attention::check::{Case, Options};
use crate::{Failure, Part, Report, Target, by_storage};

/// The kernels of riverrun, and on GPUs cuDNN's; rotary positions.
pub fn forms(target: &Target) -> Vec<&'static str> {
    let mut forms = vec!["attention"];
    if cfg!(feature = "ops") {
        forms.push("rotary");
    }
    if cfg!(all(feature = "cuda", unix)) && !target.is_cpu() {
        forms.push("cudnn");
    }
    forms
}

/// Shapes from nothing to several tiles with grouped heads, a step with a cache, and causal, window, cap and documents by turns.
pub fn verify(part: &Part<'_>, table: &mut dyn Report) -> Result<(), Failure> {
    #[cfg(all(feature = "cuda", unix))]
    if part.form == "cudnn" {
        return vendor::verify(part, table);
    }
    #[cfg(feature = "ops")]
    if part.form == "rotary" {
        use super::rotary::turned;
        return by_storage!(part.storage, turned(part, table));
    }
    by_storage!(part.storage, rows(part, table))
}

fn rows<E: CpuElement>(part: &Part<'_>, table: &mut dyn Report) -> Result<(), Failure> {
    // B, T, S, H, Hk, D, and the number of the options. On a GPU every other D and option is another kernel.
    let mut problems = vec![
        ([0, 5, 5, 2, 1, 16], 0),
        ([1, 5, 0, 2, 1, 16], 0),
        ([1, 130, 200, 2, 2, 16], 0),
        ([2, 97, 97, 2, 1, 64], 1),
        ([2, 97, 97, 2, 1, 64], 7),
        ([2, 1, 150, 4, 2, 64], 1),
        ([1, 70, 90, 2, 1, 20], 14),
        ([1, 150, 150, 2, 1, 128], 1),
        ([1, 66, 66, 1, 1, 256], 3),
    ];
    if part.long {
        problems.extend([
            ([2, 512, 512, 4, 2, 64], 1),
            ([1, 700, 1000, 4, 1, 128], 7),
            ([1, 300, 300, 2, 1, 256], 11),
        ]);
    }
    let problems = problems.into_iter().enumerate();
    let cases = problems.map(|(n, (sizes, options))| {
        let [batch, queries, keys, heads, key_heads, dim] = sizes;
        let shape = Shape {
            batch,
            queries,
            keys,
            heads,
            key_heads,
            dim,
        };
        Case::random(shape, Options::nth(options, keys), 17 + n as u64)
    });
    part.run_all::<E, _>("attention", cases, table)
}

#[cfg(all(feature = "cuda", unix))]
mod vendor {
    //! cuDNN's attention, of the problems that it is asked for.

    use cubecl::client::Client;
    use riverrun_kernels::attention::vendor::{Layout, Sums, Vendor};
    use riverrun_kernels::gpu::Dtype;

    use super::*;
    use crate::Row;

    pub fn verify(part: &Part<'_>, table: &mut dyn Report) -> Result<(), Failure> {
        let Some((client, dtype)) = part.gpu() else {
            return Ok(());
        };
        if let Err(reason) = Vendor::of(client) {
            return table.skip(part.device(), "cudnn", &reason);
        }
        if dtype == Dtype::F32 {
            let reason = "cuDNN's attention is for 16 bits";
            return table.skip(part.device(), "cudnn f32", reason);
        }
        for way in [
            (Sums::Ordered, Layout::Separate),
            (Sums::Atomic, Layout::Separate),
            (Sums::Ordered, Layout::Packed),
        ] {
            by_storage!(part.storage, rows(part, client, dtype, way, table))?;
        }
        Ok(())
    }

    fn rows<E: CpuElement>(
        part: &Part<'_>,
        client: &Client,
        dtype: Dtype,
        (sums, layout): (Sums, Layout),
        table: &mut dyn Report,
    ) -> Result<(), Failure> {
        // B, T, H, Hk, D, and the number of the options: causal, a window too, or neither.
        let mut problems = vec![
            ([2, 256, 2, 2, 64], 0),
            ([2, 256, 4, 2, 64], 1),
            ([1, 384, 2, 1, 128], 3),
            ([1, 128, 2, 1, 256], 1),
        ];
        if part.long {
            problems.extend([([2, 1024, 4, 2, 128], 1), ([1, 1152, 2, 2, 64], 3)]);
        }
        let (mut row, mut refused) = (Row::default(), None);
        for (n, ([batch, steps, heads, key_heads, dim], options)) in
            problems.into_iter().enumerate()
        {
            let shape = Shape {
                key_heads,
                ..Shape::same(batch, steps, heads, dim)
            };
            let options = Options::nth(options, steps);
            let case = Case::random(shape, options, 40 + n as u64).rounded::<E>();
            match case.vendor(client, dtype, Some(sums), layout) {
                Ok(found) if sums == Sums::Atomic => {
                    row.case(&case.compare::<E>(&found, &case.oracle()), true);
                }
                Ok(found) => {
                    let again = case
                        .vendor(client, dtype, Some(sums), layout)
                        .map_err(Failure)?;
                    row.case(
                        &case.compare::<E>(&found, &case.oracle()),
                        found.same_bits(&again),
                    );
                }
                Err(reason) => {
                    let what = format!("cudnn {} {steps}x{dim}", E::NAME);
                    table.skip(part.device(), &what, &reason)?;
                    refused = Some(reason);
                }
            }
        }
        if row.is_empty() && refused.is_some() {
            return Ok(());
        }
        let routine = match (sums, layout) {
            (_, Layout::Packed) => "cudnn-packed",
            (Sums::Ordered, _) => "cudnn",
            (Sums::Atomic, _) => "cudnn-atomic",
        };
        table.row(part.device(), "attention", E::NAME, routine, row)
    }
}
