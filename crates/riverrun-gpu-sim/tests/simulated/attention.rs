//! Attention by the kernels for tensor cores against the oracle.

use half::{bf16, f16};
use riverrun_gpu_sim::simulated::client;
use riverrun_kernels::Element;
use riverrun_kernels::gpu::Dtype;
use riverrun_testkit::attention::Shape;
use riverrun_testkit::attention::check::{Case, Options};
use riverrun_testkit::attention::gpu::tensor_cores;

/// `[B, T, S, H, Hk, D]`.
fn shape([batch, queries, keys, heads, key_heads, dim]: [usize; 6]) -> Shape {
    Shape {
        batch,
        queries,
        keys,
        heads,
        key_heads,
        dim,
    }
}

fn check<E: Element>(dtype: Dtype, sizes: [usize; 6], options: usize) {
    let client = client();
    let case = Case::random(shape(sizes), Options::nth(options, sizes[2]), 7).rounded::<E>();
    assert!(tensor_cores(&client, &case.problem, dtype));
    let found = case
        .gpu(&client, dtype, None)
        .expect("a problem it can run");
    for verdict in case.compare::<E>(&found, &case.oracle()) {
        assert!(
            verdict.passes(),
            "{} {:?}: {verdict:?}",
            E::NAME,
            case.problem
        );
    }
    let again = case.gpu(&client, dtype, None).expect("ran once already");
    assert!(
        found.same_bits(&again),
        "{:?}: two runs differ",
        case.problem
    );
}

#[test]
fn every_size_of_tile() {
    check::<bf16>(Dtype::Bf16, [2, 7, 7, 2, 1, 8], 7);
    check::<bf16>(Dtype::Bf16, [1, 90, 90, 2, 1, 64], 15);
    check::<f16>(Dtype::F16, [1, 70, 70, 1, 1, 128], 1);
    check::<bf16>(Dtype::Bf16, [1, 40, 70, 1, 1, 256], 0);
    check::<bf16>(Dtype::Bf16, [1, 140, 200, 2, 1, 64], 7);
    check::<f16>(Dtype::F16, [1, 140, 200, 1, 1, 96], 8);
}

/// Products of four planes, several tiles.
#[test]
fn by_four_planes() {
    check::<bf16>(Dtype::Bf16, [1, 70, 80, 1, 1, 40], 5);
}

#[test]
fn without_queries_or_keys() {
    check::<bf16>(Dtype::Bf16, [1, 5, 0, 1, 1, 8], 0);
    check::<bf16>(Dtype::Bf16, [1, 0, 7, 1, 1, 8], 0);
    check::<bf16>(Dtype::Bf16, [0, 5, 5, 2, 1, 8], 5);
}

#[test]
fn nan_stays_where_it_is_seen() {
    let client = client();
    for (dtype, options, dim) in [
        (Dtype::Bf16, 1, 16),
        (Dtype::F16, 6, 16),
        (Dtype::F16, 1, 72),
        (Dtype::Bf16, 6, 64),
    ] {
        let options = Options::nth(options, 60);
        let case = Case::random(shape([2, 80, 80, 1, 1, dim]), options, 5);
        let run = |case: &Case| {
            case.gpu(&client, dtype, None)
                .expect("a problem it can run")
        };
        let untouched = case.untouched(70, &run(&case), &run(&case.poisoned(70)));
        assert!(matches!(untouched, Ok(1..)), "{dtype:?}: {untouched:?}");
    }
}
