//! `m_t = max(a_t + m_{t-1}, b_t)`: the stabilizer of exponential gates.

use burn::tensor::{Bool, Tensor, TensorData};

use crate::device;

/// Takes the place of -∞ in a sum: no number is left of one that it is added to.
pub(in crate::nn) const LOWEST: f64 = -1e30;

/// `m`, `[B, T, H]`, of `a` and `b` from `m_{-1}`, `[B, H]`; at a reset `m_{t-1}` is 0. No gradient passes through it.
///
/// On the CPU one step after the other, so that a sequence has the bits of its pieces; elsewhere by doubling, in `log₂ T` passes.
pub(super) fn maxima(
    a: Tensor<3>,
    b: Tensor<3>,
    start: Tensor<2>,
    reset: Option<Tensor<2, Bool>>,
) -> Tensor<3> {
    let (a, b, start) = (a.detach(), b.detach(), start.detach());
    let (a, b) = match reset {
        Some(reset) => {
            let reset = reset.unsqueeze_dim::<3>(2).expand(a.dims());
            let anew = a.clone().max_pair(b.clone());
            (
                a.mask_fill(reset.clone(), LOWEST),
                b.mask_where(reset, anew),
            )
        }
        None => (a, b),
    };
    match device::is_cpu(&a.device()) {
        true => one_by_one(a, b, start),
        false => by_doubling(a, b, start),
    }
}

fn one_by_one(a: Tensor<3>, b: Tensor<3>, start: Tensor<2>) -> Tensor<3> {
    let ([batch, steps, heads], device, dtype) = (a.dims(), a.device(), a.dtype());
    let numbers = |data: TensorData| data.iter::<f64>().collect::<Vec<_>>();
    let (a, mut m) = (numbers(a.into_data()), numbers(b.into_data()));
    let mut last = numbers(start.into_data());
    let single = dtype != burn::tensor::DType::F64;
    for (sequence, last) in last.chunks_exact_mut(heads).enumerate() {
        let rows = sequence * steps * heads..(sequence + 1) * steps * heads;
        let a = a[rows.clone()].chunks_exact(heads);
        for (a, m) in a.zip(m[rows].chunks_exact_mut(heads)) {
            for ((a, m), last) in a.iter().zip(m).zip(&mut *last) {
                let sum = a + *last;
                // Rounded as the tensors are, so that it does not matter where a sequence is cut.
                let sum = if single { f64::from(sum as f32) } else { sum };
                *m = m.max(sum);
                *last = *m;
            }
        }
    }
    let data = TensorData::new(m, [batch, steps, heads]).convert_dtype(dtype);
    Tensor::from_data(data, (&device, dtype))
}

/// The steps as functions `m ↦ max(a + m, b)`, each composed with those before it.
fn by_doubling(mut a: Tensor<3>, mut b: Tensor<3>, start: Tensor<2>) -> Tensor<3> {
    let steps = a.dims()[1];
    let mut width = 1;
    while width < steps {
        let (first, rest) = ((0, width), (width, steps - width));
        let part = |x: &Tensor<3>, (from, length)| x.clone().narrow(1, from, length);
        let before = (0, steps - width);
        let sum = part(&a, rest) + part(&a, before);
        let most = (part(&a, rest) + part(&b, before)).max_pair(part(&b, rest));
        a = Tensor::cat(vec![part(&a, first), sum], 1);
        b = Tensor::cat(vec![part(&b, first), most], 1);
        width *= 2;
    }
    (a + start.unsqueeze_dim(1)).max_pair(b)
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use burn::tensor::{Device, Distribution};

    use super::*;

    #[test]
    fn both_ways_agree() {
        let device = Device::flex();
        device.seed(5);
        for steps in [1, 2, 7, 16, 33] {
            let draw = |low, high| {
                Tensor::<3>::random([2, steps, 3], Distribution::Uniform(low, high), &device)
            };
            let (a, b) = (draw(-2.0, 0.0), draw(-5.0, 5.0));
            let start = draw(-3.0, 3.0).narrow(1, 0, 1).squeeze_dim::<2>(1);
            let serial = one_by_one(a.clone(), b.clone(), start.clone());
            let doubled = by_doubling(a, b, start);
            let error = (serial - doubled).abs().max().into_scalar::<f32>();
            // Sums of up to 33 numbers of at most 2, in another order.
            assert!(error <= 33.0 * 66.0 * f32::EPSILON, "{steps}: {error}");
        }
    }
}
