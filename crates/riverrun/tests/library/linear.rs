//! Linear layers and MLPs as operations, against the float64 oracle.

use burn::tensor::{DType, Device, Distribution, Tensor};
use half::{bf16, f16};
use riverrun::ops::{LinearSpec, Route, WeightOrder, linear, mlp};
use riverrun_kernels::Element;
use riverrun_testkit::gemm::check::LayerCase;
use riverrun_testkit::gemm::layer as check;

use crate::common::{assert_close, devices, numbers};

fn hold<E: Element>(name: &str, device: &Device, dtype: DType, case: &LayerCase, spec: LinearSpec) {
    let case = case.clone().rounded::<E>();
    let found = check::linear(&case, device, dtype, spec).expect("a route that exists");
    for verdict in case.compare::<E>(&found) {
        let features: Vec<_> = case.layers.iter().map(|layer| layer.features).collect();
        assert!(
            verdict.passes(),
            "{name} {} {features:?} {spec:?}: {verdict:?}",
            E::NAME
        );
    }
}

#[test]
fn layers_agree_with_the_oracle() {
    for (name, device) in devices() {
        let cases: [(usize, &[usize], bool, bool); 9] = [
            (1, &[6, 9], true, true),
            (5, &[1, 3], true, true),
            (4, &[6, 1], false, true),
            (7, &[33, 5], false, true),
            (7, &[33, 5], true, false),
            (12, &[16, 24], true, true),
            (5, &[9, 13, 3], true, true),
            (6, &[8, 16, 8], true, false),
            (40, &[24, 40, 24], true, true),
        ];
        for (seed, (rows, features, gelu, bias)) in cases.into_iter().enumerate() {
            let case = LayerCase::random(rows, features, gelu, bias, seed as u64);
            let turned = LinearSpec::default().with_weight(WeightOrder::OutputsFirst);
            if name != "cpu" {
                // A GPU's own products are tuned for every shape, which takes a software one seconds each.
                if features == [9, 13, 3] {
                    hold::<f32>(&name, &device, DType::F32, &case, LinearSpec::default());
                    hold::<f32>(&name, &device, DType::F32, &case, turned);
                }
                continue;
            }
            for spec in [LinearSpec::default(), turned] {
                hold::<f32>(&name, &device, DType::F32, &case, spec);
                hold::<f16>(&name, &device, DType::F16, &case, spec);
                hold::<bf16>(&name, &device, DType::BF16, &case, spec);
                hold::<f64>(&name, &device, DType::F64, &case, spec);
            }
        }
    }
}

#[test]
fn no_rows_give_no_rows_and_zero_gradients() {
    for (_, device) in devices() {
        let device = device.autodiff();
        let random =
            |shape| Tensor::<2>::random(shape, Distribution::Default, &device).require_grad();
        let (up, down) = (random([3, 5]), random([5, 2]));
        let x = Tensor::<3>::zeros([2, 0, 3], &device).require_grad();
        let spec = LinearSpec::default().with_gelu();
        let y = linear(x.clone(), up.clone(), None, spec).expect("it fits");
        assert_eq!(y.dims(), [2, 0, 5]);
        let y = mlp(x.clone(), (up.clone(), None), (down.clone(), None), spec).expect("it fits");
        assert_eq!(y.dims(), [2, 0, 2]);
        let grads = (y.sum() + up.clone().sum() * 0.0).backward();
        assert!(
            numbers(up.grad(&grads).expect("a gradient"))
                .iter()
                .all(|x| *x == 0.0)
        );
        assert_eq!(down.grad(&grads).expect("a gradient").dims(), [5, 2]);
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let (_, device) = devices().swap_remove(0);
    let zeros = |shape| Tensor::<2>::zeros(shape, &device);
    let (x, spec) = (zeros([2, 3]), LinearSpec::default());
    let refused = |weight: Tensor<2>, bias: Option<Tensor<1>>, spec: LinearSpec| {
        linear(x.clone(), weight, bias, spec)
            .expect_err("it does not fit")
            .to_string()
    };
    assert_eq!(
        refused(zeros([4, 3]), None, spec),
        "weight: expected shape [3, 3], found [4, 3]"
    );
    let turned = spec.with_weight(WeightOrder::OutputsFirst);
    assert!(linear(x.clone(), zeros([4, 3]), None, turned).is_ok());
    assert!(refused(zeros([3, 4]), Some(Tensor::zeros([3], &device)), spec).starts_with("bias"));
    assert!(refused(zeros([3, 4]).cast(DType::F64), None, spec).contains("dtype F32"));
    let message = refused(zeros([3, 4]), None, spec.with_route(Route::Vendor));
    assert!(message.starts_with("no products by cuBLASLt"), "{message}");
}

#[test]
fn the_layers_of_burn_give_the_same() {
    for (name, device) in devices() {
        let layer = |i, o| burn::nn::LinearConfig::new(i, o).init(&device);
        let (up, down) = (layer(6, 10), layer(10, 4));
        let x = Tensor::<3>::random([2, 3, 6], Distribution::Default, &device);
        let found = riverrun::nn::linear(&up, x.clone());
        assert_close(
            &name,
            &numbers(found),
            &numbers(up.forward(x.clone())),
            1e-6,
        );
        let found = riverrun::nn::mlp(&up, &down, x.clone());
        let expected = down.forward(riverrun::ops::gelu(up.forward(x)).unwrap());
        assert_close(&name, &numbers(found), &numbers(expected), 1e-6);
    }
}

#[test]
fn a_matrix_by_columns_gives_the_same_numbers() {
    for (name, device) in devices() {
        let weight = Tensor::<2>::random([19, 33], Distribution::Default, &device);
        let columns = Tensor::<2>::from_data(weight.clone().transpose().into_data(), &device);
        let columns = columns.transpose();
        for rows in [1, 3, 40] {
            let x = Tensor::<2>::random([rows, 19], Distribution::Default, &device);
            let run = |x: &Tensor<2>, weight: &Tensor<2>| {
                linear(x.clone(), weight.clone(), None, LinearSpec::default()).expect("a product")
            };
            let expected = numbers(run(&x, &weight));
            assert_eq!(numbers(run(&x, &columns)), expected, "{name}, {rows} rows");
            let inputs = Tensor::<2>::from_data(x.clone().transpose().into_data(), &device);
            assert_eq!(
                numbers(run(&inputs.transpose(), &columns)),
                expected,
                "{name}"
            );
        }
    }
}

#[test]
fn layers_beside_each_other_have_the_gradients_of_layers_apart() {
    for (name, device) in devices() {
        let device = device.autodiff();
        let layer = |outputs| {
            let config = burn::nn::LinearConfig::new(6, outputs);
            config.with_bias(outputs != 3).init(&device)
        };
        let layers = [5, 3, 8].map(layer);
        let x = Tensor::<3>::random([2, 3, 6], Distribution::Default, &device).require_grad();
        // With the results that a loss reads.
        let run = |apart: bool, read: [bool; 3]| {
            let each = layers.each_ref();
            let y = match apart {
                true => each.map(|layer| riverrun::nn::linear(layer, x.clone())),
                false => riverrun::internal::beside(each, x.clone()).expect("layers that fit"),
            };
            let mut found: Vec<Vec<f64>> = y.iter().map(|y| numbers(y.clone())).collect();
            let read = y.into_iter().zip(read).filter(|(_, read)| *read);
            let loss = read.map(|(y, _)| y.sin().sum()).reduce(|a, b| a + b);
            let gradients = loss.expect("a result").backward();
            found.extend(x.grad(&gradients).map(numbers));
            for layer in each {
                found.extend(layer.weight.val().grad(&gradients).map(numbers));
                let bias = layer.bias.as_ref();
                found.extend(
                    bias.and_then(|bias| bias.val().grad(&gradients))
                        .map(numbers),
                );
            }
            found
        };
        for read in [
            [true, true, true],
            [false, true, false],
            [true, false, false],
            [false, false, true],
        ] {
            let (found, expected) = (run(false, read), run(true, read));
            assert_eq!(found.len(), expected.len(), "{name}, {read:?}");
            for (found, expected) in found.iter().zip(&expected) {
                assert_close(&name, found, expected, 1e-6);
            }
        }
    }
}
