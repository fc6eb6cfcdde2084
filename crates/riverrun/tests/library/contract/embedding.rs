//! Rows of a table, and the gradient of the table.

use burn::tensor::{Int, Tensor, TensorData};
use riverrun::Error;
use riverrun::ops::embedding;

use crate::common::{assert_close, devices, numbers};
use crate::random;

#[test]
fn rows_and_the_gradient_of_the_table() {
    // One token makes up half of the batch; row 4 has none; widths with and without a multiple of a vector.
    let (batch, steps, vocab) = (3, 40, 7);
    let tokens: Vec<i32> = (0..batch * steps)
        .map(|n| {
            if n % 2 == 0 {
                5
            } else {
                [0, 1, 2, 3, 6][n / 2 % 5]
            }
        })
        .collect();
    for (name, device) in devices() {
        let device = device.autodiff();
        for dim in [1, 6, 32] {
            let weight: Tensor<2> = random([vocab, dim], &device).require_grad();
            let data = TensorData::new(tokens.clone(), [batch, steps]);
            let given = Tensor::<2, Int>::from_data(data, &device);
            let y = embedding(weight.clone(), given).unwrap();
            assert_eq!(y.dims(), [batch, steps, dim]);
            let d_y: Tensor<3> = random([batch, steps, dim], &device).detach();
            let grads = (y.clone() * d_y.clone()).sum().backward();
            let (table, y, d_y) = (numbers(weight.clone()), numbers(y), numbers(d_y));
            let mut expected = vec![0.0; vocab * dim];
            for (n, &token) in tokens.iter().enumerate() {
                let row = token as usize * dim;
                assert_eq!(&y[n * dim..][..dim], &table[row..][..dim], "{name}");
                for i in 0..dim {
                    expected[row + i] += d_y[n * dim + i];
                }
            }
            let found = numbers(weight.grad(&grads).expect("a gradient"));
            // Sums of 60 numbers below 1, in f32.
            assert_close(&format!("{name} D {dim}"), &found, &expected, 4e-6);
        }
    }
}

#[test]
fn no_tokens_leave_no_gradient() {
    for (name, device) in devices() {
        let device = device.autodiff();
        for shape in [[0, 3], [2, 0]] {
            let weight: Tensor<2> = random([5, 4], &device).require_grad();
            let tokens = Tensor::<2, Int>::zeros(shape, &device);
            let y = embedding(weight.clone(), tokens).unwrap();
            assert_eq!(y.dims(), [shape[0], shape[1], 4], "{name}");
            let gradient = weight.grad(&y.sum().backward()).expect("a gradient");
            assert!(numbers(gradient).iter().all(|&x| x == 0.0), "{name}");
        }
    }
}

#[test]
fn a_table_has_rows() {
    for (_, device) in devices() {
        let tokens = Tensor::<2, Int>::zeros([1, 1], &device);
        let refused = embedding(Tensor::zeros([0, 4], &device), tokens);
        assert!(matches!(refused, Err(Error::Kernel(_))));
    }
}
