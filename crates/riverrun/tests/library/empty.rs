//! No sequences, no steps, or neither: every layer runs, forward and backward.

use burn::tensor::{Bool, Device, Tensor};
use riverrun::Sequence;
use riverrun::nn::{
    BlockDiagonalRnnConfig, GruConfig, LinearRnnConfig, LstmConfig, MinGruConfig, MinLstmConfig,
    Recurrent, RgLruConfig, RnnConfig,
};
use riverrun::ops::ResetGate;

use crate::common::{assert_close, devices, numbers};

const EMPTY: [[usize; 2]; 3] = [[0, 5], [2, 0], [0, 0]];

/// Runs a layer from 3 to `width` features on nothing, from the zero state and from its own last one, with resets and lengths.
fn runs<L: Recurrent>(
    what: &str,
    layer: &L,
    width: usize,
    device: &Device,
    h: impl Fn(&L::State) -> Vec<f64>,
) {
    for [batch, steps] in EMPTY {
        let what = format!("{what} B {batch} T {steps}");
        let x = || Tensor::<3>::ones([batch, steps, 3], device).require_grad();
        let mask = || Tensor::<2, Bool>::full([batch, steps], false, device);
        let lengths = vec![steps; batch];
        for sequence in [
            Sequence::new(),
            Sequence::new().with_reset(mask()),
            Sequence::new().with_lengths(&lengths),
        ] {
            let x = x();
            let (y, last) = layer.run(x.clone(), sequence);
            assert_eq!(y.dims(), [batch, steps, width], "{what}");
            assert!(h(&last).iter().all(|&h| h == 0.0), "{what}");
            let (y, again) = layer.run(x.clone(), Sequence::new().with_state(last.clone()));
            assert_close(&what, &h(&again), &h(&last), 0.0);
            let grads = y.sum().backward();
            if let Some(grad) = x.grad(&grads) {
                assert_eq!(grad.dims(), x.dims(), "{what}");
            }
        }
    }
}

fn on(name: &str, device: &Device) {
    let flat = |state: &Tensor<2>| numbers(state.clone());
    let deep = |state: &Tensor<3>| numbers(state.clone());
    let layer = MinGruConfig::new(3, 4).init(device);
    runs(&format!("{name} min-gru"), &layer, 4, device, flat);
    let layer = MinLstmConfig::new(3, 4).with_reverse(true).init(device);
    runs(&format!("{name} min-lstm"), &layer, 4, device, flat);
    let layer = LinearRnnConfig::new(3, 4).init(device);
    runs(&format!("{name} linear"), &layer, 4, device, flat);
    let layer = RgLruConfig::new(3, 4).init(device);
    runs(&format!("{name} rg-lru"), &layer, 4, device, flat);
    let layer = RgLruConfig::new(3, 3).init(device);
    runs(
        &format!("{name} rg-lru of the input's width"),
        &layer,
        3,
        device,
        flat,
    );
    for block in [1, 2, 4] {
        let layer = BlockDiagonalRnnConfig::new(3, 4)
            .with_block(block)
            .init(device);
        let what = format!("{name} block-diagonal {block}");
        runs(&what, &layer, 4, device, flat);
    }
    for (both, heads, layers) in [(false, 1, 1), (true, 1, 2), (false, 2, 2)] {
        let width = if both { 8 } else { 4 };
        let what = |kind: &str| format!("{name} {kind}, both ways {both}, heads {heads}");
        for reset in [ResetGate::After, ResetGate::Before] {
            let layer = GruConfig::new(3, 4)
                .with_bidirectional(both)
                .with_heads(heads)
                .with_layers(layers)
                .with_dropout(0.5)
                .with_reset_gate(reset)
                .init(device);
            runs(&what("gru"), &layer, width, device, deep);
        }
        let layer = LstmConfig::new(3, 4)
            .with_bidirectional(both)
            .with_heads(heads)
            .with_layers(layers)
            .init(device);
        runs(&what("lstm"), &layer, width, device, |state| {
            [numbers(state.h.clone()), numbers(state.c.clone())].concat()
        });
        let layer = RnnConfig::new(3, 4)
            .with_bidirectional(both)
            .with_heads(heads)
            .with_layers(layers)
            .init(device);
        runs(&what("rnn"), &layer, width, device, deep);
    }
}

#[test]
fn layers_run_on_nothing() {
    for (name, device) in devices() {
        on(&name, &device.autodiff());
    }
}

#[test]
fn an_input_without_features_is_refused_before_anything_runs() {
    for (_, device) in devices() {
        let layer = LstmConfig::new(3, 4).init(&device);
        for lengths in [None, Some(vec![5, 2])] {
            let x = Tensor::<3>::zeros([2, 5, 0], &device);
            let sequence = match &lengths {
                Some(lengths) => Sequence::new().with_lengths(lengths),
                None => Sequence::new(),
            };
            let error = layer
                .checked_run(x, sequence)
                .map(|_| ())
                .expect_err("no features");
            assert!(error.to_string().contains("weight_ih"), "{error}");
        }
    }
}
