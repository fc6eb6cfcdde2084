//! The oracle's gradients against central differences.

use riverrun_testkit::gemm::check::LayerCase;

/// `Σ y ∘ d_y`.
fn loss(case: &LayerCase) -> f64 {
    let outcome = case.oracle();
    let (_, y) = &outcome[0];
    y.iter().zip(&case.d_y).map(|(y, d)| y * d).sum()
}

#[test]
fn gradients_of_layers_are_those_of_finite_differences() {
    type Part = fn(&mut LayerCase) -> &mut Vec<f64>;
    let cases: [(&[usize], bool); 3] = [(&[5, 4], false), (&[5, 4], true), (&[5, 7, 4], true)];
    for (features, gelu) in cases {
        let case = LayerCase::random(3, features, gelu, true, 7);
        let grads = case.oracle();
        let parts: [(&str, Part); 5] = [
            ("d_x", |case| &mut case.x),
            ("d_weight 0", |case| &mut case.layers[0].weight),
            ("d_bias 0", |case| {
                case.layers[0].bias.as_mut().expect("a bias")
            }),
            ("d_weight 1", |case| &mut case.layers[1].weight),
            ("d_bias 1", |case| {
                case.layers[1].bias.as_mut().expect("a bias")
            }),
        ];
        for (name, part) in parts {
            let Some((_, grad)) = grads.iter().find(|(tensor, _)| tensor == name) else {
                assert!(name.ends_with('1') && features.len() == 2, "{name}");
                continue;
            };
            let step = 1e-5;
            for i in 0..grad.len() {
                let at = |by: f64| {
                    let mut case = case.clone();
                    part(&mut case)[i] += by;
                    loss(&case)
                };
                let slope = (at(step) - at(-step)) / (2.0 * step);
                // The error of a central difference: step² / 6 times a third derivative of order 10, and rounding / step.
                assert!(
                    (grad[i] - slope).abs() < 1e-8,
                    "{features:?} {gelu} {name} {i}: {} {slope}",
                    grad[i]
                );
            }
        }
    }
}
