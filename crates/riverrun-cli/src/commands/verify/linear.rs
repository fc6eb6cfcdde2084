//! Linear layers and MLPs, forward and every gradient, by every route; the vendor's products, each with what may follow
//! it, and their place among launches.

use burn::tensor::DType;
use half::{bf16, f16};
use riverrun::check;
use riverrun::device::DeviceInfo;
use riverrun::ops::linear::{LinearSpec, Route, WeightOrder};
use riverrun_kernels::Element;
use riverrun_kernels::gemm::check::LayerCase;

use super::table::{Row, Table};
use super::wanted;
use crate::args::VerifyArgs;
use crate::failure::Failure;

/// Checks every kind of layer in every storage type.
pub(super) fn verify(
    args: &VerifyArgs,
    info: &DeviceInfo,
    table: &mut Table,
) -> Result<(), Failure> {
    let usable = |dtype: DType| info.device.supports_dtype(dtype);
    if wanted(args, "f32") {
        layers::<f32>(args, info, DType::F32, table)?;
    }
    if wanted(args, "f16") && usable(DType::F16) {
        layers::<f16>(args, info, DType::F16, table)?;
    }
    if wanted(args, "bf16") && usable(DType::BF16) {
        layers::<bf16>(args, info, DType::BF16, table)?;
    }
    if wanted(args, "f64") && info.spec == "cpu" {
        layers::<f64>(args, info, DType::F64, table)?;
    }
    #[cfg(feature = "cuda")]
    vendor::verify(args, info, table)?;
    Ok(())
}

/// The layers' sizes: rows, then features.
fn sizes(long: bool) -> &'static [(usize, &'static [usize])] {
    const SHORT: &[(usize, &[usize])] = &[
        (1, &[6, 9]),
        (5, &[1, 3]),
        (4, &[6, 1]),
        (7, &[33, 5]),
        (12, &[16, 24]),
        (128, &[64, 96]),
        (7, &[9, 13, 3]),
        (64, &[32, 128, 32]),
    ];
    const LONG: &[(usize, &[usize])] = &[
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
    if long { LONG } else { SHORT }
}

fn layers<E: Element>(
    args: &VerifyArgs,
    info: &DeviceInfo,
    dtype: DType,
    table: &mut Table,
) -> Result<(), Failure> {
    // The backend's products are tuned shape by shape on a GPU, for minutes: there the choice alone is checked.
    let routes = match info.spec.as_str() {
        "cpu" => [("backend", Some(Route::Backend))].as_slice(),
        _ => [("choice", None), ("vendor", Some(Route::Vendor))].as_slice(),
    };
    for &(name, route) in routes {
        for (what, gelu, depth) in [
            ("linear", false, 2),
            ("linear-gelu", true, 2),
            ("mlp", true, 3),
        ] {
            let mut row = Row::default();
            let cases = sizes(args.long)
                .iter()
                .filter(|(_, features)| features.len() == depth);
            for (i, &(rows, features)) in cases.enumerate() {
                let case =
                    LayerCase::random(rows, features, gelu, i % 3 < 2, i as u64).rounded::<E>();
                for order in [WeightOrder::InputsFirst, WeightOrder::OutputsFirst] {
                    let spec = LinearSpec {
                        route,
                        ..LinearSpec::default().with_weight(order)
                    };
                    let run = || check::linear(&case, &info.device, dtype, spec);
                    let found = match run() {
                        Ok(found) => found,
                        Err(reason) => return table.skip(&info.spec, name, &reason.to_string()),
                    };
                    row.case(&case.compare::<E>(&found), run()? == found);
                }
            }
            table.row(&info.spec, what, E::NAME, name, row)?;
        }
    }
    Ok(())
}

#[cfg(feature = "cuda")]
mod vendor {
    use super::*;
    use cubecl::client::Client;
    use riverrun_kernels::check::Comparison;
    use riverrun_kernels::gemm::check::{Case, Orders, stress};
    use riverrun_kernels::gemm::vendor::Vendor;
    use riverrun_kernels::gemm::{Arithmetic, Epilogue, Order};
    use riverrun_kernels::gpu::Dtype;

    pub(super) fn verify(
        args: &VerifyArgs,
        info: &DeviceInfo,
        table: &mut Table,
    ) -> Result<(), Failure> {
        let Some(client) = riverrun::device::client(&info.device) else {
            return Ok(());
        };
        if let Err(reason) = Vendor::of(&client) {
            return table.skip(&info.spec, "cublaslt", &reason);
        }
        for epilogue in Epilogue::ALL {
            if wanted(args, "f32") {
                products::<f32>(info, &client, Dtype::F32, epilogue, Arithmetic::Full, table)?;
                products::<f32>(info, &client, Dtype::F32, epilogue, Arithmetic::Tf32, table)?;
            }
            if wanted(args, "f16") {
                products::<f16>(info, &client, Dtype::F16, epilogue, Arithmetic::Full, table)?;
            }
            if wanted(args, "bf16") {
                products::<bf16>(
                    info,
                    &client,
                    Dtype::Bf16,
                    epilogue,
                    Arithmetic::Full,
                    table,
                )?;
            }
        }
        let rounds = if args.long { 5000 } else { 500 };
        let mut row = Row::default();
        let outcome = stress(&client, 2, rounds, 1);
        if let Err(reason) = &outcome {
            table.skip(&info.spec, "interleavings", reason)?;
        }
        let verdict = Comparison {
            tensor: "any".into(),
            error: if outcome.is_ok() { 0.0 } else { f64::NAN },
            allowed: 0.0,
        };
        row.case(&[verdict], true);
        table.row(&info.spec, "interleavings", "f32", "vendor", row)
    }

    fn products<E: Element>(
        info: &DeviceInfo,
        client: &Client,
        dtype: Dtype,
        epilogue: Epilogue,
        arithmetic: Arithmetic,
        table: &mut Table,
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
                        row.case(&case.compare::<E>(&found), repeats);
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
            return table.skip(&info.spec, &format!("{} {name}", epilogue.name()), &reason);
        }
        table.row(&info.spec, epilogue.name(), name, "vendor", row)
    }
}
