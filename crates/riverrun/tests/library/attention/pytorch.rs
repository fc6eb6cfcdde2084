//! Attention against PyTorch: its file of weights, results, gradients.

use riverrun::Sequence;
use riverrun::nn::{MultiHeadAttentionConfig, Recurrent};
use riverrun::weights::attention_from_pytorch;
use serde_json::Value;

use crate::common::{assert_close, devices, numbers};
use crate::golden::{field, tensor};

/// The rounding of f32 through a layer of weights of this size, with a margin of about ten.
const TOLERANCE: f64 = 2e-5;

#[test]
fn attention_computes_what_pytorch_does() {
    let case: Value = serde_json::from_str(include_str!("../../golden/attention.json")).unwrap();
    let [batch, steps, width, heads] = ["batch", "steps", "width", "heads"]
        .map(|name| case[name].as_u64().expect("a number") as usize);
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/golden/attention.safetensors"
    );
    for (name, device) in devices() {
        let device = device.autodiff();
        let layer = MultiHeadAttentionConfig::new(width, heads).init(&device);
        let layer = attention_from_pytorch(layer, file, "encoder.").expect("the file fits");
        let part = |name| tensor(&case, name, [batch, steps, width], &device);
        let x = part("x").require_grad();
        let (y, _) = layer.run(x.clone(), Sequence::new());
        assert_close(&name, &numbers(y.clone()), &field(&case, "y"), TOLERANCE);
        let gradients = (y * part("d_y")).sum().backward();
        let d_x = numbers(x.grad(&gradients).expect("a gradient"));
        assert_close(&name, &d_x, &field(&case, "d_x"), TOLERANCE);
        for (what, linear) in [("in_proj_", &layer.qkv), ("out_proj.", &layer.out)] {
            let weight = linear.weight.val().grad(&gradients).expect("a gradient");
            // PyTorch's weights have the outputs first.
            let found = numbers(weight.transpose());
            let expected = field(&case, &format!("d_{what}weight"));
            assert_close(
                &format!("{name} d {what}weight"),
                &found,
                &expected,
                TOLERANCE,
            );
            let bias = linear.bias.as_ref().expect("a bias").val();
            let found = numbers(bias.grad(&gradients).expect("a gradient"));
            let expected = field(&case, &format!("d_{what}bias"));
            assert_close(
                &format!("{name} d {what}bias"),
                &found,
                &expected,
                TOLERANCE,
            );
        }
    }
}
