//! Recurrences with a matrix for a state by the kernels for tensor cores against the oracle.

use half::{bf16, f16};
use riverrun_gpu_sim::simulated::client;
use riverrun_kernels::Element;
use riverrun_kernels::gpu::Dtype;
use riverrun_testkit::Case;
use riverrun_testkit::matrix_state::{Erase, Gate, States, for_tensor_cores};

fn check<E: Element>(dtype: Dtype, case: States) {
    let client = client();
    let mut case = case.in_chunks(true).rounded::<E>();
    assert!(case.on_tensor_cores(&client, dtype));
    case.coarse = true;
    let found = case.gpu(&client, dtype).expect("a problem it can run");
    for comparison in case.compared::<E>(&found) {
        assert!(
            comparison.passes(),
            "{} {:?}: {comparison:?}",
            E::NAME,
            case.problem
        );
    }
}

#[test]
fn delta_rule() {
    for case in for_tensor_cores(Erase::Key).take(5) {
        check::<bf16>(Dtype::Bf16, case);
    }
}

#[test]
fn without_an_erase() {
    for case in for_tensor_cores(Erase::None).take(5) {
        check::<f16>(Dtype::F16, case);
    }
}

fn with_decays_of_rows(erase: Erase) -> impl Iterator<Item = States> {
    for_tensor_cores(erase).filter(|case| case.problem.gate == Gate::Row)
}

#[test]
fn delta_rule_with_decays_of_rows() {
    for case in with_decays_of_rows(Erase::Key).take(3) {
        check::<bf16>(Dtype::Bf16, case);
    }
}

#[test]
fn decays_of_rows_without_an_erase() {
    for case in with_decays_of_rows(Erase::None).take(3) {
        check::<f16>(Dtype::F16, case);
    }
}

#[test]
fn largest_with_decays_of_rows() {
    for case in with_decays_of_rows(Erase::Key).skip(3) {
        check::<bf16>(Dtype::Bf16, case);
    }
}
