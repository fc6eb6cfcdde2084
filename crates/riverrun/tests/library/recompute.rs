//! Scans that keep no states: the same gradients as those that keep all.

use burn::tensor::{Bool, DType, Device, FloatDType, Tensor, TensorData};
use riverrun::Sequence;
use riverrun::nn::{MinGruConfig, Recurrent};
use riverrun::ops::{Gate, SavedStates, ScanOptions, gated_scan, linear_scan};

use crate::common::{assert_close, devices, numbers};
use crate::random;

/// Everything a scan takes, as values, so that graphs can be made of it again and again.
struct Data {
    x: Vec<Tensor<3>>,
    h0: Option<Tensor<2>>,
    reset: Option<Tensor<2, Bool>>,
    reverse: bool,
    d_h: Tensor<3>,
    d_last: Tensor<2>,
    weight: Tensor<2>,
}

impl Data {
    fn new(gate: Gate, h0: bool, reset: bool, reverse: bool, device: &Device) -> Self {
        let (b, t, d) = (2, 70, 12);
        let mask: Vec<bool> = (0..b * t).map(|n| n % 17 == 11 || n % 23 == 0).collect();
        let mask = || Tensor::from_data(TensorData::new(mask.clone(), [b, t]), device);
        let x = match gate {
            Gate::Raw => vec![random([b, t, d], device), random([b, t, d], device)],
            _ => vec![random([b, t, gate.inputs() * d], device)],
        };
        Self {
            x,
            h0: h0.then(|| random([b, d], device)),
            reset: reset.then(mask),
            reverse,
            d_h: random([b, t, d], device),
            d_last: random([b, d], device),
            weight: random([d, 5], device),
        }
    }

    /// The states and the gradients of every input and of `h0`; with `product`, through a product that keeps the states.
    fn gradients(&self, gate: Gate, saved_states: SavedStates, product: bool) -> Vec<Vec<f64>> {
        let x: Vec<_> = self.x.iter().map(|x| x.clone().require_grad()).collect();
        let h0 = self.h0.clone().map(Tensor::require_grad);
        let mut sequence = Sequence::from(h0.clone());
        sequence.reset = self.reset.clone();
        let options = ScanOptions::new()
            .with_saved_states(saved_states)
            .with_reverse(self.reverse);
        let (h, last) = match x.as_slice() {
            [a, b] => linear_scan(a.clone(), b.clone(), sequence, options).unwrap(),
            _ => gated_scan(x[0].clone(), gate, sequence, options).unwrap(),
        };
        let mut loss = (h.clone() * self.d_h.clone()).sum() + (last * self.d_last.clone()).sum();
        let weight = self.weight.clone().require_grad();
        if product {
            loss = loss + h.clone().matmul(weight.clone().unsqueeze()).sum();
        }
        let grads = loss.backward();
        let mut found = vec![numbers(h)];
        found.extend(
            x.iter()
                .map(|x| numbers(x.grad(&grads).expect("a gradient"))),
        );
        found.extend(h0.map(|h0| numbers(h0.grad(&grads).expect("a gradient"))));
        found.extend(weight.grad(&grads).map(numbers));
        found
    }
}

fn min_gru() -> Gate {
    Gate::MinGru {
        candidate: Default::default(),
    }
}

#[test]
fn gradients_are_those_of_a_scan_that_keeps_everything() {
    for (name, device) in devices() {
        let device = device.autodiff();
        for n in 0..4 {
            for (m, gate) in [Gate::Raw, min_gru()].into_iter().enumerate() {
                let options = |bit: usize| (n + m) >> bit & 1 == 1;
                let data = Data::new(gate, options(0), options(1), n % 2 == 1, &device);
                let expected = data.gradients(gate, SavedStates::All, false);
                let found = data.gradients(gate, SavedStates::None, false);
                assert_eq!(found.len(), expected.len());
                for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
                    let what = format!("{name} {} {n} tensor {i}", gate.name());
                    assert_close(&what, found, expected, 0.0);
                }
            }
        }
    }
}

#[test]
fn burn_s_own_checkpointing_computes_the_states_again_for_others() {
    for (name, device) in devices() {
        let plain = device.clone().autodiff();
        let data = Data::new(min_gru(), true, true, false, &plain);
        let expected = data.gradients(min_gru(), SavedStates::All, true);
        let again = device.autodiff().gradient_checkpointing();
        let move_to = |x: Tensor<3>| Tensor::<3>::from_data(x.into_data(), &again);
        let move_state = |x: Tensor<2>| Tensor::<2>::from_data(x.into_data(), &again);
        let data = Data {
            x: data.x.into_iter().map(move_to).collect(),
            h0: data.h0.map(move_state),
            reset: data
                .reset
                .map(|reset| Tensor::from_data(reset.into_data(), &again)),
            d_h: move_to(data.d_h),
            d_last: move_state(data.d_last),
            weight: move_state(data.weight),
            reverse: data.reverse,
        };
        for kept in [SavedStates::All, SavedStates::None] {
            let found = data.gradients(min_gru(), kept, true);
            assert_eq!(found.len(), expected.len());
            for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let what = format!("{name} kept {kept} tensor {i}");
                assert_close(&what, found, expected, 2e-6);
            }
        }
    }
}

#[test]
fn sixteen_bit_storage_keeps_its_bits_when_all_is_computed_again() {
    for (name, device) in devices() {
        for dtype in [FloatDType::F16, FloatDType::BF16] {
            if !device.supports_dtype(DType::from(dtype)) {
                println!("skipped: {name} does not compute in {dtype:?}");
                continue;
            }
            // Drawn once: other tests draw from the same generator at the same time.
            let device = device.clone().autodiff();
            let k = random([2, 50, 16], &device).cast(dtype);
            let gradient = |saved_states: SavedStates| {
                let k = k.clone().require_grad();
                let options = ScanOptions::new().with_saved_states(saved_states);
                let (h, _) = gated_scan(k.clone(), min_gru(), Sequence::new(), options).unwrap();
                numbers(
                    k.grad(&(h.clone() * h).sum().backward())
                        .expect("a gradient"),
                )
            };
            let expected = gradient(SavedStates::All);
            assert_close(&name, &gradient(SavedStates::None), &expected, 0.0);
        }
    }
}

#[test]
fn a_layer_keeps_what_it_was_told_to() {
    for (name, device) in devices() {
        let device = device.autodiff();
        let x = random([2, 33, 4], &device);
        let mut layer = MinGruConfig::new(4, 6).init(&device);
        let mut gradient = |kept| {
            layer.saved_states = kept;
            let (y, _) = layer.run(x.clone(), Sequence::new());
            let grads = (y.clone() * y).sum().backward();
            numbers(
                layer
                    .projection
                    .weight
                    .val()
                    .grad(&grads)
                    .expect("a gradient"),
            )
        };
        let expected = gradient(SavedStates::All);
        // Through products, whose kernels a GPU may still be choosing.
        assert_close(&name, &gradient(SavedStates::None), &expected, 2e-6);
    }
}

#[test]
fn choices_have_names_and_a_bad_one_is_an_error() {
    for (name, saved_states) in [("all", SavedStates::All), ("none", SavedStates::None)] {
        assert_eq!(name.parse(), Ok(saved_states));
        assert_eq!(saved_states.to_string(), name);
    }
    assert!("16".parse::<SavedStates>().is_err());
}
