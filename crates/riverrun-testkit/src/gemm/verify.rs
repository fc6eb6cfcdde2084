//! Linear layers and MLPs, forward and every gradient, by every route; the vendor's products with every epilogue, and their
//! order among launches.

use riverrun::ops::{LinearSpec, Route, WeightOrder};
use riverrun_kernels::Element;

use crate::gemm::check::LayerCase;
use crate::gemm::layer;
use crate::{Failure, Part, Report, Row, Target, by_storage};

/// The kinds of layer, and on GPUs the vendor's matmuls alone.
pub fn forms(target: &Target) -> Vec<&'static str> {
    let mut forms = vec!["linear", "linear-gelu", "mlp", "blocks"];
    if cfg!(feature = "cuda") && !target.is_cpu() {
        forms.push("cublaslt");
    }
    forms
}

/// Checks a kind of layer in a storage type.
pub fn verify(part: &Part<'_>, table: &mut dyn Report) -> Result<(), Failure> {
    #[cfg(feature = "cuda")]
    if part.form == "cublaslt" {
        return vendor::verify(part, table);
    }
    if part.form == "blocks" {
        return by_storage!(part.storage, blocks(part, table));
    }
    by_storage!(part.storage, layers(part, table))
}

/// Batches of products whose features lie side by side.
fn blocks<E: Element>(part: &Part<'_>, table: &mut dyn Report) -> Result<(), Failure> {
    let mut row = Row::default();
    for (i, [count, rows, inputs, outputs]) in
        [[1, 5, 7, 3], [3, 1, 4, 8], [4, 16, 32, 24], [8, 33, 64, 96]]
            .into_iter()
            .enumerate()
    {
        let cases: Vec<LayerCase> = (0..count)
            .map(|block| {
                let seed = (100 * i + block) as u64;
                LayerCase::random(rows, &[inputs, outputs], false, false, seed).rounded::<E>()
            })
            .collect();
        let device = &part.target.device;
        let run = || layer::blocks(&cases, device, part.storage.dtype());
        let (found, again) = (run()?, run()?);
        for (case, (found, again)) in cases.iter().zip(found.iter().zip(&again)) {
            row.case(&case.compare::<E>(found), again == found);
        }
    }
    table.row(part.device(), part.form, E::NAME, "choice", row)
}

/// The layers' sizes: rows, then features.
fn sizes(long: bool) -> &'static [(usize, &'static [usize])] {
    const ALL: &[(usize, &[usize])] = &[
        (1, &[6, 9]),
        (5, &[1, 3]),
        (4, &[6, 1]),
        (7, &[33, 5]),
        (12, &[16, 24]),
        (128, &[64, 96]),
        (7, &[9, 13, 3]),
        (64, &[32, 128, 32]),
        (2048, &[128, 96]),
        (1023, &[77, 130, 61]),
    ];
    if long { ALL } else { &ALL[..8] }
}

fn layers<E: Element>(part: &Part<'_>, table: &mut dyn Report) -> Result<(), Failure> {
    // Many shapes of kernels that are taken where there is no cuBLASLt, to be compiled: only `--long` checks them.
    let routes: &[(&str, Option<Route>)] = match (part.target.is_cpu(), part.long) {
        (true, _) => &[("backend", Some(Route::Backend))],
        (false, false) => &[("choice", None), ("vendor", Some(Route::Vendor))],
        (false, true) => &[
            ("choice", None),
            ("vendor", Some(Route::Vendor)),
            ("backend", Some(Route::Backend)),
        ],
    };
    let (gelu, depth) = match part.form {
        "linear" => (false, 2),
        "linear-gelu" => (true, 2),
        _ => (true, 3),
    };
    for &(name, route) in routes {
        let mut row = Row::default();
        let cases = sizes(part.long)
            .iter()
            .filter(|(_, features)| features.len() == depth);
        for (i, &(rows, features)) in cases.enumerate() {
            let case = LayerCase::random(rows, features, gelu, i % 3 < 2, i as u64).rounded::<E>();
            for order in [WeightOrder::InputsFirst, WeightOrder::OutputsFirst] {
                let spec = LinearSpec {
                    route,
                    ..LinearSpec::default().with_weight(order)
                };
                let device = &part.target.device;
                let run = || layer::linear(&case, device, part.storage.dtype(), spec);
                let found = match run() {
                    Ok(found) => found,
                    Err(reason) => return table.skip(part.device(), name, &reason.to_string()),
                };
                row.case(&case.compare::<E>(&found), run()? == found);
            }
        }
        table.row(part.device(), part.form, E::NAME, name, row)?;
    }
    Ok(())
}

#[cfg(feature = "cuda")]
mod vendor {
    use super::*;
    use crate::check::Comparison;
    use crate::gemm::check::{Case, Orders, stress};
    use crate::{Case as _, Storage};
    use cubecl::client::Client;
    use riverrun_kernels::gemm::vendor::Vendor;
    use riverrun_kernels::gemm::{Arithmetic, Epilogue, Order};
    use riverrun_kernels::gpu::Dtype;

    pub fn verify(part: &Part<'_>, table: &mut dyn Report) -> Result<(), Failure> {
        let Some((client, dtype)) = part.gpu() else {
            return Ok(());
        };
        if let Err(reason) = Vendor::of(client) {
            return table.skip(part.device(), "cublaslt", &reason);
        }
        for epilogue in Epilogue::ALL {
            by_storage!(
                part.storage,
                products(part, client, dtype, epilogue, Arithmetic::Full, table)
            )?;
            if part.storage == Storage::F32 {
                let arithmetic = Arithmetic::Tf32;
                products::<f32>(part, client, dtype, epilogue, arithmetic, table)?;
            }
        }
        if part.storage != Storage::F32 {
            return Ok(());
        }
        let rounds = if part.long { 5000 } else { 500 };
        let mut row = Row::default();
        let outcome = stress(client, 2, rounds, 1);
        if let Err(reason) = &outcome {
            table.fail(part.device(), "interleavings", reason)?;
        }
        let verdict = Comparison {
            tensor: "any".into(),
            error: if outcome.is_ok() { 0.0 } else { f64::NAN },
            allowed: 0.0,
        };
        row.case(&[verdict], true);
        table.row(part.device(), "interleavings", "f32", "vendor", row)
    }

    fn products<E: Element>(
        part: &Part<'_>,
        client: &Client,
        dtype: Dtype,
        epilogue: Epilogue,
        arithmetic: Arithmetic,
        table: &mut dyn Report,
    ) -> Result<(), Failure> {
        let mut row = Row::default();
        let orders = [
            Orders::ROWS,
            Orders {
                a: Order::Columns,
                b: Order::Rows,
                gap: 0,
            },
            Orders {
                a: Order::Rows,
                b: Order::Columns,
                gap: 8,
            },
        ];
        let sizes = [
            [1, 1, 1],
            [16, 32, 24],
            [7, 33, 5],
            [130, 64, 136],
            [64, 1000, 96],
        ];
        let mut missing = None;
        for (i, sizes) in sizes.into_iter().enumerate() {
            for orders in orders {
                let case = Case {
                    arithmetic,
                    ..Case::random(sizes, epilogue, i as u64).rounded::<E>()
                };
                match case.vendor(client, dtype, orders) {
                    Ok(found) => {
                        let repeats = case.vendor(client, dtype, orders).as_ref() == Ok(&found);
                        row.case(&case.compared::<E>(&found), repeats);
                    }
                    Err(reason) => missing = Some(reason),
                }
            }
        }
        let name = if arithmetic == Arithmetic::Tf32 {
            "tf32"
        } else {
            E::NAME
        };
        if let Some(reason) = missing.filter(|_| row.is_empty()) {
            let what = format!("{} {name}", epilogue.name());
            return table.skip(part.device(), &what, &reason);
        }
        table.row(part.device(), epilogue.name(), name, "vendor", row)
    }
}
