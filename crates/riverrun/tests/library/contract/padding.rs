//! What layers make of the padded steps of a batch: nothing, not even of a NaN there.

use riverrun::nn::{
    BlockDiagonalRnnConfig, GatedRnnConfig, GruConfig, LinearRnnConfig, LstmConfig, MinGruConfig,
    MinLstmConfig, RgLruConfig, RnnConfig,
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
