//! The cells in one launch against the oracle.

use cubecl::client::Client;
use half::{bf16, f16};
use riverrun_gpu_sim::simulated::client;
use riverrun_kernels::Element;
use riverrun_kernels::cell::check::{Case, Options, compare};
use riverrun_kernels::cell::gpu::{handover_fault, missing};
use riverrun_kernels::cell::{Cell, Problem};
use riverrun_kernels::gpu::Dtype;

fn check<E: Element + bytemuck::Pod>(
    client: &Client,
    dtype: Dtype,
    problem: Problem,
    options: Options,
) {
    if let Some(reason) = missing(client, &problem, dtype) {
        println!("skipped: {} {}, {reason}", problem.cell.name(), E::NAME);
        return;
    }
    let case = Case::<E>::random(problem, options, problem.batch as u64);
    let found = case.gpu(client, dtype, None).expect("a problem it can run");
    assert!(!handover_fault(client), "{problem:?}: a wait gave up");
    let mut wrong = compare(&case, &found).expect("a problem the oracle takes");
    wrong.retain(|comparison| !comparison.passes());
    assert!(wrong.is_empty(), "{problem:?} {}: {wrong:?}", E::NAME);
    let again = case.gpu(client, dtype, None).expect("ran once already");
    assert!(found.bits() == again.bits(), "{problem:?}: two runs differ");
}

#[test]
fn every_cell() {
    let client = client();
    for (n, cell) in Cell::all().into_iter().enumerate() {
        let problem = Problem::new(cell, 3, 4, 40).reversed(n % 2 == 1);
        check::<f32>(&client, Dtype::F32, problem, Options::ALL);
        let problem = Problem::new(cell, 9, 3, 64).with_heads(2);
        check::<bf16>(&client, Dtype::Bf16, problem, Options::ALL);
        let problem = Problem::new(cell, 2, 3, 16);
        check::<f16>(&client, Dtype::F16, problem, Options::NONE);
    }
}
