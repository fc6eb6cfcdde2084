//! The GPU kernels. They run on a software Vulkan driver too.

use cubecl::ir::{ElemType, IntKind};
use riverrun_kernels::Error;
use riverrun_kernels::embedding::Shape;
use riverrun_kernels::embedding::gpu::{Backward, Forward, backward, forward};
use riverrun_kernels::gpu::Dtype;
use riverrun_testkit::embedding::{Embedding, Tokens, oracle};
use riverrun_testkit::{Case, judge};

use crate::device::client;

/// Blocks of four and of sixteen tokens a thread.
#[test]
fn a_large_vocabulary() {
    let Some(client) = client() else { return };
    let cases = [
        ([8000, 200_000, 2], Tokens::Uniform),
        ([8000, 200_000, 2], Tokens::Skewed),
        ([86_100, 200_000, 1], Tokens::Skewed),
    ];
    for ([tokens, vocab, dim], kind) in cases {
        let case = Embedding::random(Shape::new(tokens, vocab, dim), kind, 9).rounded::<f32>();
        let verdict = judge::<f32, _>(&case, || case.gpu(&client, Dtype::F32)).unwrap();
        assert!(verdict.passes(), "{tokens} {kind:?}: {verdict:?}");
    }
}

#[test]
fn small_buffers_are_refused() {
    let Some(client) = client() else { return };
    let shape = Shape::new(3, 4, 2);
    let floats = |n: usize| client.create_from_slice(&vec![0; n * 4]);
    let index = ElemType::Int(IntKind::I32);
    let args = Forward {
        weight: floats(7),
        tokens: floats(3),
        index,
        y: floats(6),
    };
    let error = Error::Length {
        what: "weight",
        expected: 8,
        found: 7,
    };
    assert_eq!(forward(&client, Dtype::F32, shape, &args), Err(error));
    let args = Backward {
        d_y: floats(6),
        tokens: floats(2),
        index,
        d_weight: floats(8),
    };
    let error = Error::Length {
        what: "tokens",
        expected: 3,
        found: 2,
    };
    assert_eq!(backward(&client, Dtype::F32, shape, &args), Err(error));
}

/// A token beyond 32 bits is no row, whatever its lower half is.
#[test]
fn tokens_of_64_bits() {
    use cubecl::ir::features::TypeUsage;
    let Some(client) = client() else { return };
    let index = ElemType::Int(IntKind::I64);
    if !client
        .properties()
        .type_usage(index)
        .contains(TypeUsage::Conversion)
    {
        println!("skipped: the device has no 64-bit integers");
        return;
    }
    let shape = Shape::new(3, 4, 1);
    let tokens = [1_i64, (1 << 32) + 1, -(1 << 32)];
    let weight = [1.0_f32, 2.0, 3.0, 4.0];
    let y = client.create_from_slice(&[0; 12]);
    let args = Forward {
        weight: client.create_from_slice(bytemuck::cast_slice(&weight)),
        tokens: client.create_from_slice(bytemuck::cast_slice(&tokens)),
        index,
        y: y.clone(),
    };
    forward(&client, Dtype::F32, shape, &args).unwrap();
    let read = client.read_one(y).unwrap();
    let found: &[f32] = bytemuck::cast_slice(&read);
    let expected = oracle::forward(shape, &weight.map(f64::from), &tokens);
    for (found, expected) in found.iter().zip(expected) {
        assert!(f64::from(*found) == expected || found.is_nan() && expected.is_nan());
    }
}
