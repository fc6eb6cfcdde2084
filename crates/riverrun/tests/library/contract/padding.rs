//! What layers make of the padded steps of a batch: nothing, not even of a NaN there.

use riverrun::nn::{
    BlockDiagonalRnnConfig, DeltaNetConfig, GatedDeltaNetConfig, GatedRnnConfig, GlaConfig,
    GruConfig, Hgrn2Config, KdaConfig, LinearRnnConfig, LstmConfig, MLstmConfig, Mamba2Config,
    MinGruConfig, MinLstmConfig, RetNetConfig, RgLruConfig, RnnConfig, Rwkv6Config, Rwkv7Config,
    SLstmConfig,
};
use riverrun::ops::Gate;

use crate::common::devices;
use crate::padded::{D, check};

#[test]
fn layers_do_not_read_it() {
    for (name, device) in devices() {
        let device = &device.autodiff();
        let what = |layer: &str| format!("{name} {layer}");
        for reverse in [false, true] {
            let layer = MinGruConfig::new(D, 4).with_reverse(reverse).init(device);
            check(&what("min-gru"), &layer, device);
            let layer = MinLstmConfig::new(D, 4).with_reverse(reverse).init(device);
            check(&what("min-lstm"), &layer, device);
            let layer = LinearRnnConfig::new(D, 4)
                .with_reverse(reverse)
                .init(device);
            check(&what("linear"), &layer, device);
            let layer = RgLruConfig::new(D, 4).with_reverse(reverse).init(device);
            check(&what("rg-lru"), &layer, device);
            let layer = RgLruConfig::new(D, D)
                .with_blocks(3)
                .with_reverse(reverse)
                .init(device);
            check(&what("rg-lru in blocks"), &layer, device);
            let layer = BlockDiagonalRnnConfig::new(D, 4)
                .with_block(2)
                .with_reverse(reverse)
                .init(device);
            check(&what("block-diagonal"), &layer, device);
        }
        let layer = RgLruConfig::new(D, D).with_scale_first(false).init(device);
        check(&what("rg-lru without the first factor"), &layer, device);
        let layer = GatedRnnConfig::new(D, 4, Gate::Sigmoid).init(device);
        check(&what("gated"), &layer, device);
        let layer = GruConfig::new(D, 4)
            .with_bidirectional(true)
            .with_layers(2)
            .init(device);
        check(&what("gru"), &layer, device);
        let layer = LstmConfig::new(D, 4).with_heads(2).init(device);
        check(&what("lstm"), &layer, device);
        let layer = RnnConfig::new(D, 4).init(device);
        check(&what("rnn"), &layer, device);
    }
}

#[test]
fn layers_with_heads_do_not_read_it() {
    for (name, device) in devices() {
        let device = &device.autodiff();
        macro_rules! checked {
            ($($name:literal $config:expr;)*) => {
                $(check(&format!("{name} {}", $name), &$config.init(device), device);)*
            };
        }
        checked! {
            "gated-delta-net" GatedDeltaNetConfig::new(D, 2, 4, 3);
            "delta-net" DeltaNetConfig::new(D, 2, 4, 3);
            "kda" KdaConfig::new(D, 2, 4, 3);
            "mamba2" Mamba2Config::new(D, 2, 3).with_d_state(4);
            "gla" GlaConfig::new(D, 2, 4, 3);
            "ret-net" RetNetConfig::new(D, 2, 4, 3);
            "hgrn2" Hgrn2Config::new(D, 2, 4, 3);
            "mlstm" MLstmConfig::new(D, 2, 4, 3);
            "rwkv6" Rwkv6Config::new(D, 3);
            "rwkv7" Rwkv7Config::new(D, 1);
            "slstm" SLstmConfig::new(D, 4, 2);
        }
    }
}
