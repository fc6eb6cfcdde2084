//! Forms of the hand-over between the cubes of an NVIDIA GPU.

use burn::tensor::{Device, Distribution, Tensor};
use riverrun_kernels::cell::HandOver;
use riverrun_train::Precision;

use super::Subject;
use super::peer::Layer;
use crate::failure::Failure;

/// Asks for a form for what this process launches from now on.
pub fn ask(form: HandOver) {
    #[cfg(feature = "gpu")]
    riverrun_kernels::cell::gpu::set_hand_over(form);
    #[cfg(not(feature = "gpu"))]
    let _ = form;
}

/// Steps that are compared.
const STEPS: usize = 40;

/// Checks that a layer gives the same with the form as with `first`, up to roundings, before it is timed.
pub fn check(
    subject: &Subject,
    first: HandOver,
    layer: &Layer,
    device: &Device,
) -> Result<(), Failure> {
    let [batch, steps, hidden] = subject.sizes;
    let size = [batch, steps.min(STEPS), hidden];
    let x = Tensor::<3>::random(size, Distribution::Normal(0.0, 1.0), device);
    let x: Vec<f32> = x.into_data().iter::<f32>().collect();
    let outcome = |form| -> Vec<f64> {
        ask(form);
        let device = device.clone().autodiff();
        let data = burn::tensor::TensorData::new(x.clone(), size);
        let x = Tensor::<3>::from_data(data, &device);
        let x = x.cast(subject.precision.dtype()).require_grad();
        let y = layer.run(x.clone());
        let grads = y.clone().sum().backward();
        let mut all: Vec<f64> = y.into_data().iter::<f64>().collect();
        let d_x = x.grad(&grads).expect("the input has a gradient");
        all.extend(d_x.into_data().iter::<f64>());
        all
    };
    let (wanted, found) = (outcome(first), outcome(subject.hand_over));
    // Sums in another order may round a state of each step to the next number.
    let allowed = match subject.precision {
        Precision::F32 => 2e-5,
        Precision::F16 => 16.0 * f64::from(half::f16::EPSILON),
        Precision::Bf16 => 16.0 * f64::from(half::bf16::EPSILON),
    };
    let scale = wanted.iter().fold(1.0f64, |scale, x| scale.max(x.abs()));
    let wrong = |(x, y): (&f64, &f64)| (x - y).abs().is_nan() || (x - y).abs() > allowed * scale;
    match found.iter().zip(&wanted).position(wrong) {
        Some(i) => Err(Failure::Bug(format!(
            "not timed, because {} by {} and by {} differ: {} and {} at {i}",
            subject.cell,
            subject.hand_over.name(),
            first.name(),
            found[i],
            wanted[i]
        ))),
        None => Ok(()),
    }
}
