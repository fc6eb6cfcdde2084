//! The GPU kernels against the oracle. Runs on a software Vulkan driver too.

use cubecl::client::Client;
use half::{bf16, f16};
use riverrun_kernels::gpu::Dtype;
use riverrun_kernels::{CpuElement, Error};
use riverrun_testkit::block_diagonal::gpu::{self, Backward, Forward, LARGEST};
use riverrun_testkit::check::transfer::{bytes, numbers};
use riverrun_testkit::recurrence::check::Options;

use crate::block_diagonal::case::{Case, Outcome};
use crate::device::client;

/// Runs a case, every output filled with NaN beforehand.
fn run(client: &Client, case: &Case, dtype: Dtype) -> Result<Outcome, Error> {
    let shape = case.problem.shape;
    let upload = |data: &[f64]| client.create_from_slice(&bytes(dtype, data));
    let poison = |elements: usize| upload(&vec![f64::NAN; elements.max(1)]);
    let download = |handle, elements: usize| {
        let bytes = client.read_one(handle).expect("reading a result back");
        numbers(dtype, &bytes[..elements * dtype.size()])
    };
    let (a, d_h) = (upload(&case.a), upload(&case.d_h));
    let h0 = case.h0.as_deref().map(upload);
    let mask = |reset: &Vec<bool>| {
        let mask: Vec<f64> = reset.iter().map(|&r| f64::from(u8::from(r))).collect();
        upload(&mask)
    };
    let reset = case.reset.as_ref().map(mask);
    let h = poison(shape.elements());
    let forward = Forward {
        a: a.clone(),
        b: upload(&case.b),
        h0: h0.clone(),
        reset: reset.clone(),
        h: h.clone(),
    };
    gpu::forward(client, &case.problem, dtype, &forward)?;
    let (d_a, d_b) = (poison(shape.matrices()), poison(shape.elements()));
    let d_h0 = poison(shape.state());
    let backward = Backward {
        a,
        h0,
        reset,
        h: h.clone(),
        d_h,
        d_h_last: case.d_h_last.as_deref().map(upload),
        d_a: d_a.clone(),
        d_b: d_b.clone(),
        d_h0: d_h0.clone(),
    };
    gpu::backward(client, &case.problem, dtype, &backward)?;
    Ok(Outcome {
        h: download(h, shape.elements()),
        d_a: download(d_a, shape.matrices()),
        d_b: download(d_b, shape.elements()),
        d_h0: download(d_h0, shape.state()),
    })
}

fn check<E: CpuElement>(client: &Client, dtype: Dtype, sizes: [usize; 4], options: Options) {
    if !dtype.supported(client) {
        println!("skipped: {} on {}", dtype.name(), client.name());
        return;
    }
    let case = Case::random(sizes, options, 3).rounded::<E>();
    let found = run(client, &case, dtype).expect("a problem it can run");
    let again = run(client, &case, dtype).expect("a problem it can run");
    assert_eq!(found, again, "two runs differ");
    case.compare::<E>(&found, "gpu");
}

#[test]
fn the_gpu_is_right() {
    let Some(client) = client() else { return };
    let lengths = [0, 1, 2, 7, 33, 65, 100, 257];
    for size in 1..=LARGEST {
        for k in 0..2 {
            let n = 2 * size + 5 * k;
            let sizes = [1 + n % 3, lengths[n % 8], 1 + n % 5, size];
            check::<f32>(&client, Dtype::F32, sizes, Options::nth(n * 5));
        }
    }
    // No sequences.
    check::<f32>(&client, Dtype::F32, [0, 5, 2, 3], Options::nth(15));
    // More lanes than a cube has threads.
    check::<f32>(&client, Dtype::F32, [3, 20, 50, 4], Options::nth(15));
}

#[test]
fn half_precision_storage_is_right() {
    let Some(client) = client() else { return };
    for (n, size) in [1, 2, 3, 4, 8].into_iter().enumerate() {
        let sizes = [2, 40, 3, size];
        check::<f16>(&client, Dtype::F16, sizes, Options::nth(15 - n));
        check::<bf16>(&client, Dtype::Bf16, sizes, Options::nth(7 + n));
    }
}

#[test]
fn infinity_does_not_pass_a_reset() {
    let Some(client) = client() else { return };
    let mut clean = Case::random([1, 6, 2, 3], Options::nth(9), 5).rounded::<f32>();
    clean.reset = Some(vec![false, false, false, true, false, false]);
    let mut spoilt = clean.clone();
    spoilt.b[..3 * 6].fill(f64::INFINITY);
    spoilt.h0 = Some(vec![f64::NAN; 6]);
    let expected = run(&client, &clean, Dtype::F32).expect("a problem it can run");
    let found = run(&client, &spoilt, Dtype::F32).expect("a problem it can run");
    assert_eq!(found.h[18..], expected.h[18..]);
    assert_eq!(found.d_a[54..], expected.d_a[54..]);
}

#[test]
fn blocks_too_large_are_refused() {
    let Some(client) = client() else { return };
    let case = Case::random([1, 3, 2, LARGEST + 1], Options::default(), 7);
    let refused = run(&client, &case, Dtype::F32);
    assert!(matches!(refused, Err(Error::Routine { .. })), "{refused:?}");
}
