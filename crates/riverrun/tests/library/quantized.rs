//! Weights of 8 and 4 bits in layers and tables.

use burn::module::{Module, Param};
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::tensor::{DType, Device, Distribution, FloatDType, Int, Tensor};
use riverrun::nn::quantized::{Bits, QuantizedWeight, embedding, quantize, quantized_product};
use riverrun::nn::{linear, mlp};

use crate::common::{assert_close, numbers};

#[derive(Module, Debug)]
struct Net {
    table: Embedding,
    up: Linear,
    down: Linear,
    small: Linear,
}

impl Net {
    fn new(device: &Device) -> Self {
        device.seed(7);
        Self {
            table: EmbeddingConfig::new(150, 160).init(device),
            up: LinearConfig::new(160, 300).init(device),
            down: LinearConfig::new(300, 129).with_bias(false).init(device),
            small: LinearConfig::new(160, 127).init(device),
        }
    }
}

fn is_quantized(weight: &Param<Tensor<2>>) -> bool {
    weight.reparameterization::<QuantizedWeight>().is_some()
}

fn bits<const D: usize>(tensor: Tensor<D>) -> Vec<u64> {
    numbers(tensor).into_iter().map(f64::to_bits).collect()
}

#[test]
fn layers_compute_with_the_numbers_that_are_stored() {
    let device = Device::flex();
    for kind in Bits::ALL {
        let net = Net::new(&device);
        let own = quantize(net.clone(), kind).expect("the CPU");
        assert!(is_quantized(&own.up.weight) && is_quantized(&own.table.weight));
        assert!(!is_quantized(&own.small.weight));
        assert_eq!(own.up.weight.dims(), [160, 300]);
        let plain = own.clone().materialize();
        assert!(!is_quantized(&plain.up.weight));

        // What is stored is close to what was there.
        let (found, expected) = (numbers(plain.up.weight.val()), numbers(net.up.weight.val()));
        let largest = expected.iter().fold(0.0f64, |most, x| most.max(x.abs()));
        let unit = largest / if kind == Bits::Eight { 254.0 } else { 8.0 };
        let worst = found.iter().zip(&expected).map(|(x, y)| (x - y).abs());
        let worst = worst.fold(0.0, f64::max);
        assert!(worst <= 1.01 * unit, "{kind:?}: {worst}, a unit is {unit}");

        let x = Tensor::<2>::random([20, 160], Distribution::Default, &device);
        for rows in [1, 3, 20] {
            let x = x.clone().narrow(0, 0, rows);
            let what = format!("{kind:?}, {rows} rows");
            let (found, expected) = (linear(&own.up, x.clone()), linear(&plain.up, x.clone()));
            let both = [found.clone(), expected].map(numbers);
            assert_close(&what, &both[0], &both[1], 1e-5);
            let first = linear(&own.up, x.clone().narrow(0, rows - 1, 1));
            assert!(bits(found.narrow(0, rows - 1, 1)) == bits(first), "{what}");
            let (found, expected) = (
                mlp(&own.up, &own.down, x.clone()),
                mlp(&plain.up, &plain.down, x.clone()),
            );
            assert_close(&what, &numbers(found), &numbers(expected), 1e-5);
        }
        let half = x.clone().cast(FloatDType::BF16);
        let y = linear(&own.down, linear(&own.up, half));
        assert_eq!((y.dtype(), y.dims()), (DType::BF16, [20, 129]));
    }
}

#[test]
fn tables_give_the_rows_that_are_stored_and_logits_of_them() {
    let device = Device::flex();
    for kind in Bits::ALL {
        let own = quantize(Net::new(&device), kind).expect("the CPU");
        let plain = own.clone().materialize();
        let tokens = Tensor::<2, Int>::from_data([[0, 149, 7], [130, 150, -1]], &device);
        let found = embedding(&own.table.weight, tokens.clone()).expect("a table");
        let expected = embedding(&plain.table.weight, tokens).expect("a table");
        assert_eq!(
            bits(found.clone().narrow(1, 0, 1)),
            bits(expected.narrow(1, 0, 1))
        );
        assert!(
            numbers(found.slice([1..2, 1..3]))
                .iter()
                .all(|x| x.is_nan())
        );
        let x = Tensor::<3>::random([1, 2, 160], Distribution::Default, &device);
        let logits = quantized_product(&own.table.weight, &x).expect("a quantized table");
        let expected = x
            .clone()
            .squeeze_dim::<2>(0)
            .matmul(plain.table.weight.val().transpose());
        let found = numbers(logits.expect("a width that fits"));
        assert_close("logits", &found, &numbers(expected), 1e-5);
        assert!(quantized_product(&plain.table.weight, &x).is_none());
        let wrong = Tensor::<2>::zeros([1, 9], &device);
        let wrong = quantized_product(&own.table.weight, &wrong).expect("a quantized table");
        assert!(
            wrong
                .expect_err("another width")
                .to_string()
                .contains("weight")
        );
    }
}

#[test]
fn gradients_of_inputs_go_through_the_whole_weight() {
    let device = Device::flex();
    let own = quantize(Net::new(&device), Bits::Eight).expect("the CPU");
    let weight = own.up.weight.val();
    let own = own.train();
    let x = Tensor::<2>::ones([2, 160], &device.autodiff()).require_grad();
    let gradients = linear(&own.up, x.clone()).sum().backward();
    let found = numbers(x.grad(&gradients).expect("a gradient"));
    let expected = numbers(weight.sum_dim(1));
    assert_close("d_x", &found[..160], &expected, 1e-5);
}
