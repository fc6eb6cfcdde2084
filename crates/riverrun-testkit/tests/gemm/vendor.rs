//! cuBLASLt against the oracle. Where there is no CUDA device or no library, that is said and nothing is checked.

use cubecl::client::Client;
use half::{bf16, f16};
use riverrun_kernels::Element;
use riverrun_kernels::gpu::Dtype;
use riverrun_testkit::Case as _;
use riverrun_testkit::gemm::check::{Case, Orders, stress};
use riverrun_testkit::gemm::vendor::Vendor;
use riverrun_testkit::gemm::{Arithmetic, Epilogue, Order};

fn client() -> Option<Client> {
    let client = std::panic::catch_unwind(|| cubecl::Device::default().client()).ok();
    let found = match &client {
        None => Err("no GPU on this machine".to_string()),
        Some(client) => Vendor::of(client).map(|_| ()),
    };
    if let Err(reason) = &found {
        println!("skipped: {reason}");
    }
    client.filter(|_| found.is_ok())
}

/// A description of the fault.
fn faults<E: Element>(client: &Client, dtype: Dtype, case: &Case, orders: Orders) -> Vec<String> {
    let case = case.clone().rounded::<E>();
    let what = format!(
        "{} {:?} {:?} {} {orders:?}",
        E::NAME,
        case.arithmetic,
        case.sizes,
        case.epilogue.name()
    );
    let found = match case.vendor(client, dtype, orders) {
        Ok(found) => found,
        // A plain product there must be; what follows it may be missing for a type or a shape.
        Err(reason) if case.epilogue != Epilogue::Plain => {
            println!("skipped: {what}: {reason}");
            return Vec::new();
        }
        Err(reason) => return vec![format!("{what}: {reason}")],
    };
    let verdicts = case.compared::<E>(&found);
    let wrong = verdicts.iter().filter(|verdict| !verdict.passes());
    let mut faults: Vec<String> = wrong
        .map(|verdict| format!("{what}: {verdict:?}"))
        .collect();
    if case.vendor(client, dtype, orders).as_ref() != Ok(&found) {
        faults.push(format!("{what}: two runs differ"));
    }
    faults
}

#[test]
fn every_epilogue_in_every_type_and_order() {
    let Some(client) = client() else { return };
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
        Orders {
            a: Order::Columns,
            b: Order::Columns,
            gap: 3,
        },
    ];
    let mut all = Vec::new();
    for (i, sizes) in [
        [16, 32, 24],
        [1, 1, 1],
        [7, 33, 5],
        [130, 64, 136],
        [64, 257, 96],
    ]
    .into_iter()
    .enumerate()
    {
        for epilogue in Epilogue::ALL {
            for orders in orders {
                let case = Case::random(sizes, epilogue, i as u64);
                all.extend(faults::<f32>(&client, Dtype::F32, &case, orders));
                all.extend(faults::<f16>(&client, Dtype::F16, &case, orders));
                all.extend(faults::<bf16>(&client, Dtype::Bf16, &case, orders));
                let tf32 = Case {
                    arithmetic: Arithmetic::Tf32,
                    ..case
                };
                all.extend(faults::<f32>(&client, Dtype::F32, &tf32, orders));
            }
        }
    }
    assert!(all.is_empty(), "{} faults:\n{}", all.len(), all.join("\n"));
}

#[test]
fn products_keep_their_place_among_launches() {
    let Some(client) = client() else { return };
    let done = stress(&client, 2, 400, 3).unwrap_or_else(|error| panic!("{error}"));
    println!("{done:?}");
    assert!(done.products > 200 && done.handed > 20);
}
