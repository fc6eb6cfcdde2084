//! The oracle's gradients against central differences.

use riverrun_kernels::gemm::oracle::{linear, linear_backward};
use riverrun_kernels::recurrence::check::Random;

#[test]
fn gradients_of_a_linear_layer_are_those_of_finite_differences() {
    let sizes @ [rows, inputs, outputs] = [3, 5, 4];
    for gelu in [false, true] {
        let mut random = Random(7);
        let x = random.vec(rows * inputs, 1.0);
        let w = random.vec(inputs * outputs, 1.0);
        let bias = random.vec(outputs, 1.0);
        let d_y = random.vec(rows * outputs, 1.0);
        let loss = |x: &[f64], w: &[f64], bias: &[f64]| -> f64 {
            let y = linear(x, w, bias, sizes, gelu);
            y.iter().zip(&d_y).map(|(y, d)| y * d).sum()
        };
        let grads = linear_backward(&x, &w, &bias, sizes, gelu, &d_y);
        let step = 1e-5;
        let slope = |data: &[f64], i: usize, loss: &dyn Fn(&[f64]) -> f64| {
            let at = |by: f64| {
                let mut data = data.to_vec();
                data[i] += by;
                loss(&data)
            };
            (at(step) - at(-step)) / (2.0 * step)
        };
        // The error of a central difference: step² / 6 times a third derivative of order 10, and rounding / step.
        let close = |found: f64, expected: f64| (found - expected).abs() < 1e-8;
        for i in 0..x.len() {
            let slope = slope(&x, i, &|x| loss(x, &w, &bias));
            assert!(close(grads.x[i], slope), "d_x {i}: {} {slope}", grads.x[i]);
        }
        for i in 0..w.len() {
            let slope = slope(&w, i, &|w| loss(&x, w, &bias));
            assert!(close(grads.w[i], slope), "d_w {i}: {} {slope}", grads.w[i]);
        }
        for i in 0..bias.len() {
            let slope = slope(&bias, i, &|bias| loss(&x, &w, bias));
            assert!(
                close(grads.bias[i], slope),
                "d_b {i}: {} {slope}",
                grads.bias[i]
            );
        }
    }
}
