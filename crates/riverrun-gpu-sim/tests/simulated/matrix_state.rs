//! Recurrences with a matrix for a state by the kernels for tensor cores against the oracle.

use half::{bf16, f16};
use riverrun_gpu_sim::simulated::client;
use riverrun_kernels::Element;
use riverrun_kernels::gpu::Dtype;
use riverrun_testkit::Case;
use riverrun_testkit::matrix_state::{
    Erase, Form, Gate, Options, States, for_tensor_cores, in_halves, in_segments, of_many_heads,
};

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

#[test]
fn separate_erase_with_decays_of_rows() {
    // Larger ones take minutes each, the largest more shared memory than there is.
    let small = |case: &States| case.problem.shape.key < 64;
    for case in for_tensor_cores(Erase::Separate).filter(small) {
        check::<bf16>(Dtype::Bf16, case);
    }
}

#[test]
fn delta_rule_in_segments() {
    check::<bf16>(Dtype::Bf16, in_segments(Erase::Key).expect("a case"));
}

#[test]
fn delta_rule_in_halves() {
    check::<bf16>(Dtype::Bf16, in_halves(Erase::Key).expect("a case"));
}

#[test]
fn delta_rule_of_many_heads() {
    check::<bf16>(Dtype::Bf16, of_many_heads(Erase::Key).expect("a case"));
}

#[test]
fn largest_separate_erase() {
    let large = |case: &States| case.problem.shape.key == 64;
    for case in for_tensor_cores(Erase::Separate).filter(large).take(1) {
        check::<bf16>(Dtype::Bf16, case);
    }
}

/// Some steps of the one sequence of a case.
fn piece(case: &States, steps: std::ops::Range<usize>) -> States {
    let all = case.problem.shape.steps;
    let some = |x: &Vec<f64>| {
        let row = x.len() / all;
        x[steps.start * row..steps.end * row].to_vec()
    };
    let mut piece = case.clone();
    piece.problem.shape.steps = steps.len();
    let given = &case.inputs;
    piece.inputs.q = some(&given.q);
    piece.inputs.k = some(&given.k);
    piece.inputs.v = some(&given.v);
    piece.inputs.g = given.g.as_ref().map(some);
    piece.inputs.beta = given.beta.as_ref().map(some);
    piece.d_o = some(&case.d_o);
    piece
}

fn check_pieces(gate: Gate, sizes: [usize; 6], cut: usize) {
    let client = client();
    let form = Form {
        gate,
        erase: Erase::Key,
        bonus: false,
    };
    let options = Options {
        initial: true,
        d_last: true,
        ..Options::default()
    };
    let case = States::random(sizes, form, options, 1).rounded::<bf16>();
    let found = |case: &States| {
        case.gpu(&client, Dtype::Bf16)
            .expect("a problem it can run")
    };
    let whole = found(&case);
    let [mut first, mut second] = [0..cut, cut..sizes[1]].map(|steps| piece(&case, steps));
    second.inputs.initial = Some(found(&first).get("last").to_vec());
    let later = found(&second);
    first.d_last = Some(later.get("d_initial").to_vec());
    let earlier = found(&first);
    for name in ["o", "d_q", "d_k", "d_v", "d_g", "d_beta"] {
        let pieces = [earlier.get(name), later.get(name)].concat();
        assert_eq!(pieces, whole.get(name), "{name}");
    }
    assert_eq!(later.get("last"), whole.get("last"));
    assert_eq!(earlier.get("d_initial"), whole.get("d_initial"));
}

#[test]
fn pieces_have_the_bits_of_a_sequence() {
    check_pieces(Gate::Row, [1, 164, 1, 1, 32, 16], 64);
}

#[test]
fn pieces_have_the_bits_of_a_sequence_in_halves() {
    check_pieces(Gate::Head, [1, 2080, 1, 1, 32, 16], 1088);
}
