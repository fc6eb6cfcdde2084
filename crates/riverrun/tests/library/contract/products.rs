//! Products of `f32` in `f32`, on every route.

use burn::backend::Dispatch;
use burn::tensor::{DType, Tensor};
use riverrun::check::backend::LinearOps;
use riverrun::ops::matmul;
use riverrun::ops::{Arithmetic, product_libraries};

use crate::common::{assert_close, devices, numbers};
use crate::random;

/// Products and batches of them without tensor cores, against `f64` sums.
#[test]
fn full_products_have_the_digits_of_f32() {
    for (name, device) in devices() {
        for [batch, m, k, n] in [
            [1, 1, 1, 1],
            [1, 5, 7, 3],
            [1, 33, 65, 17],
            [3, 24, 40, 8],
            [2, 1, 64, 31],
        ] {
            for transposed in [false, true] {
                let a: Tensor<3> = random([batch, m, k], &device);
                let b: Tensor<3> = match transposed {
                    true => random([batch, n, k], &device).swap_dims(1, 2),
                    false => random([batch, k, n], &device),
                };
                let product = Dispatch::fixed_matmul(
                    a.clone().into_dispatch(),
                    b.clone().into_dispatch(),
                    Arithmetic::Full,
                );
                let product = Tensor::<3>::from_dispatch(product);
                assert_eq!(product.dims(), [batch, m, n]);
                let (av, bv) = (numbers(a), numbers(b));
                let mut expected = vec![0.0; batch * m * n];
                for (i, sum) in expected.iter_mut().enumerate() {
                    let (s, row, column) = (i / (m * n), i / n % m, i % n);
                    *sum = (0..k)
                        .map(|j| av[(s * m + row) * k + j] * bv[(s * k + j) * n + column])
                        .sum();
                }
                // Factors below 1: k products, each rounded once, and as many sums. TF32 would be off by 2^-11 a factor.
                let tolerance = (k as f64).sqrt() * 4.0 * f64::from(f32::EPSILON);
                let what = format!("{name} {batch}x{m}x{k}x{n} transposed {transposed}");
                assert_close(&what, &numbers(product), &expected, tolerance);
            }
        }
    }
}

#[test]
fn every_product_library_has_a_name() {
    for (name, device) in devices() {
        let libraries = product_libraries(&device);
        assert!(libraries.iter().any(|library| library.dtype == DType::F32));
        let f64 = libraries.iter().any(|library| library.dtype == DType::F64);
        assert_eq!(f64, name == "cpu", "{name}");
        for library in libraries {
            assert!(!library.name.is_empty());
            assert_eq!(
                library.reason.is_none(),
                name == "cpu",
                "{name} {library:?}"
            );
        }
    }
}

#[test]
fn a_product_has_gradients() {
    for (name, device) in devices() {
        let device = device.autodiff();
        let a: Tensor<3> = random([2, 5, 7], &device).require_grad();
        let b: Tensor<3> = random([2, 7, 3], &device).require_grad();
        let d: Tensor<3> = random([2, 5, 3], &device).detach();
        let run = |product: Tensor<3>| {
            let values = numbers(product.clone());
            let grads = (product * d.clone()).sum().backward();
            let [d_a, d_b] = [&a, &b].map(|x| numbers(x.grad(&grads).expect("a gradient")));
            [values, d_a, d_b]
        };
        let found = run(matmul(a.clone(), b.clone()).unwrap());
        let expected = run(a.clone().matmul(b.clone()));
        for (what, (found, expected)) in ["a b", "d_a", "d_b"]
            .into_iter()
            .zip(found.iter().zip(&expected))
        {
            assert_close(&format!("{name} {what}"), found, expected, 2e-6);
        }
        let flat = Tensor::<2>::zeros([2, 3], &device);
        assert!(matmul(flat.clone(), flat).is_err());
        let none = matmul(
            Tensor::<3>::zeros([0, 2, 3], &device),
            Tensor::zeros([0, 3, 4], &device),
        )
        .unwrap();
        assert_eq!(none.dims(), [0, 2, 4], "{name}");
    }
}
