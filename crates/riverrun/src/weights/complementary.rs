//! GRUs whose update gate weighs the candidate, as [`Ensemble`](crate::ops::Ensemble) has them.

use burn::module::Param;
use burn::tensor::Tensor;

use super::keras::{expect, set_biases};
use crate::Error;
use crate::nn::{Gru, GruConfig};
use crate::ops::ResetGate;

/// A [`Gru`] of one layer with the weights of a GRU whose update gate weighs the candidate,
///
/// ```text
/// z = σ(W_z x + U_z h + b_z)    r = σ(W_r x + U_r h + b_r)    c = tanh(W_c x + U_c (r ∘ h) + b_c)
/// h' = (1 - z) ∘ h + z ∘ c
/// ```
///
/// where a [`Gru`] has `h' = (1 - z) ∘ n + z ∘ h`. Since `1 - σ(a) = σ(-a)`, the rows of `z` change their sign, and nothing is
/// lost. A member of an [`Ensemble`](crate::ops::Ensemble) is such a GRU.
///
/// # Arguments
/// - `w`: `[3H, I]`. `u`: `[3H, H]`. `bias`: `[3H]`. Rows of `z`, then of `r`, then of the candidate.
///
/// The layer resets before the product and is on the device of `w`.
///
/// # Errors
/// A tensor of the wrong shape, by its name.
pub fn from_complementary_gru(w: Tensor<2>, u: Tensor<2>, bias: Tensor<1>) -> Result<Gru, Error> {
    let [_, hidden] = u.dims();
    if hidden == 0 {
        return Err(riverrun_kernels::Error::NoChannels.into());
    }
    let [_, input] = w.dims();
    expect("u", &[3 * hidden, hidden], &u)?;
    expect("w", &[3 * hidden, input], &w)?;
    expect("bias", &[3 * hidden], &bias)?;
    let mut gru = GruConfig::new(input, hidden)
        .with_reset_gate(ResetGate::Before)
        .init(&w.device());
    let layer = &mut gru.stack.layers[0];
    layer.weight_ih = Param::from_tensor(converted(w).detach());
    layer.weight_hh = Param::from_tensor(converted(u).detach());
    let bias = converted(bias);
    let zeros = bias.zeros_like();
    set_biases(layer, bias, zeros);
    Ok(gru)
}

/// Rows of `z, r, c` as rows of `r, -z, c`.
fn converted<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    let size = x.dims()[0] / 3;
    let rows = |gate: usize| x.clone().narrow(0, gate * size, size);
    Tensor::cat(vec![rows(1), rows(0).neg(), rows(2)], 0)
}
