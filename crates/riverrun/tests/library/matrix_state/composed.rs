//! The formulas of the layers' parts by plain tensor operations, one step after the other.

use burn::tensor::Tensor;
use burn::tensor::activation::sigmoid;
use riverrun::nn::{LayerNorm, LowRank, ShortConvolution};

/// `1` where a sequence goes on, `0` where it restarts: `[B, 1]` for each step.
pub fn kept(reset: Option<Tensor<2, burn::tensor::Bool>>, like: &Tensor<3>) -> Vec<Tensor<2>> {
    let [batch, steps, _] = like.dims();
    let options = (&like.device(), like.dtype());
    let kept = match reset {
        Some(reset) => Tensor::ones([batch, steps], options) - reset.float().cast(like.dtype()),
        None => Tensor::ones([batch, steps], options),
    };
    (0..steps).map(|t| kept.clone().narrow(1, t, 1)).collect()
}

/// `x W`, with a bias if there is one.
pub fn linear(layer: &burn::nn::Linear, x: Tensor<3>) -> Tensor<3> {
    let y = x.matmul(layer.weight.val().unsqueeze());
    match &layer.bias {
        Some(bias) => y + bias.val().unsqueeze(),
        None => y,
    }
}

pub fn silu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    x.clone() * sigmoid(x)
}

/// `ln(1 + e^x)`, for numbers of moderate size.
pub fn softplus<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    x.exp().log1p()
}

/// `x γ / √(mean x² + ε)` over the last dimension.
pub fn rms_norm<const D: usize>(x: Tensor<D>, gamma: Tensor<1>, epsilon: f64) -> Tensor<D> {
    let square = x.clone().powi_scalar(2).mean_dim(D - 1);
    x / (square + epsilon).sqrt() * gamma.unsqueeze()
}

/// `x / √(Σ x² + 1e-6)` over the last dimension.
pub fn unit_norm(x: Tensor<4>) -> Tensor<4> {
    let square = x.clone().powi_scalar(2).sum_dim(3);
    x / (square + 1e-6).sqrt()
}

/// A window of inputs, pushed along step by step; SiLU.
pub fn convolved(
    layer: &ShortConvolution,
    x: Tensor<3>,
    state: Tensor<3>,
    kept: &[Tensor<2>],
) -> (Tensor<3>, Tensor<3>) {
    let weight = layer.weight.val();
    let [taps, _] = weight.dims();
    let mut window: Vec<Tensor<2>> = (0..taps - 1)
        .map(|i| state.clone().narrow(1, i, 1).squeeze_dim(1))
        .collect();
    let mut y = Vec::new();
    for (t, kept) in kept.iter().enumerate() {
        window
            .iter_mut()
            .for_each(|x| *x = x.clone() * kept.clone());
        window.push(x.clone().narrow(1, t, 1).squeeze_dim(1));
        let products = window.iter().enumerate();
        let products = products.map(|(i, x)| x.clone() * weight.clone().narrow(0, i, 1));
        let mut sum = products.reduce(|sum, x| sum + x).expect("a tap");
        if let Some(bias) = &layer.bias {
            sum = sum + bias.val().unsqueeze();
        }
        y.push(silu(sum));
        window.remove(0);
    }
    (Tensor::stack(y, 1), Tensor::stack(window, 1))
}

/// The channels of heads, each repeated `times`: `[B, T, heads · times, channels / heads]`.
pub fn heads(x: Tensor<3>, first: usize, [heads, times, dim]: [usize; 3]) -> Tensor<4> {
    let [batch, steps, _] = x.dims();
    let x = x
        .narrow(2, first, heads * dim)
        .reshape([batch, steps, heads, 1, dim]);
    let x = Tensor::cat(vec![x; times], 3);
    x.reshape([batch, steps, heads * times, dim])
}

/// A column, `[B, H, K, 1]`, of a step of `[B, T, H, K]`.
pub fn column(x: &Tensor<4>, t: usize) -> Tensor<4> {
    x.clone().narrow(1, t, 1).swap_dims(1, 2).swap_dims(2, 3)
}

/// A row, `[B, H, 1, V]`, of a step of `[B, T, H, V]`.
pub fn row(x: &Tensor<4>, t: usize) -> Tensor<4> {
    x.clone().narrow(1, t, 1).swap_dims(1, 2)
}

/// `Sᵀ q` for a column `q`: `[B, 1, H, V]`.
pub fn read(state: &Tensor<4>, q: Tensor<4>) -> Tensor<4> {
    (state.clone() * q).sum_dim(2).swap_dims(1, 2)
}

/// `f(x W_down) W_up`, with a bias if there is one.
pub fn low_rank(layer: &LowRank, x: Tensor<3>, f: impl Fn(Tensor<3>) -> Tensor<3>) -> Tensor<3> {
    linear(&layer.up, f(linear(&layer.down, x)))
}

/// LayerNorm over the channels of each head: `[B, T, H V]` of `[B, T, H, V]`.
pub fn head_norm(norm: &LayerNorm, x: Tensor<4>) -> Tensor<3> {
    let [batch, steps, heads, channels] = x.dims();
    let x = x.clone() - x.mean_dim(3);
    let square = x.clone().powi_scalar(2).mean_dim(3);
    let y = (x / (square + norm.epsilon).sqrt()).reshape([batch, steps, heads * channels]);
    let y = y * norm.gamma.val().unsqueeze();
    match &norm.beta {
        Some(beta) => y + beta.val().unsqueeze(),
        None => y,
    }
}

/// `x_{t-1} - x_t`, with a last input before the first step; and the last input.
pub fn shifted(x: &Tensor<3>, state: Tensor<3>, kept: &[Tensor<2>]) -> (Tensor<3>, Tensor<3>) {
    let (mut before, mut all) = (state.squeeze_dim::<2>(1), Vec::new());
    for (t, kept) in kept.iter().enumerate() {
        let now = x.clone().narrow(1, t, 1).squeeze_dim::<2>(1);
        all.push(before * kept.clone() - now.clone());
        before = now;
    }
    (Tensor::stack(all, 1), before.unsqueeze_dim(1))
}

/// `S ← e^g S`, `S ← S + k (β (v - Sᵀ k))ᵀ`, `o = Sᵀ q`; without `β`, `S ← S + k vᵀ`. All `[B, T, H, ..]`, `g` with a last
/// dimension of `K` or 1, `β` with one of 1.
pub fn recurrence(
    [q, k, v]: [Tensor<4>; 3],
    g: Option<Tensor<4>>,
    beta: Option<Tensor<4>>,
    mut state: Tensor<4>,
    kept: &[Tensor<2>],
) -> (Tensor<4>, Tensor<4>) {
    let mut o = Vec::new();
    for (t, kept) in kept.iter().enumerate() {
        state = state * kept.clone().unsqueeze_dims(&[2, 3]);
        if let Some(g) = &g {
            state = state * column(g, t).exp();
        }
        let (k, mut u) = (column(&k, t), row(&v, t));
        if let Some(beta) = &beta {
            let found = (state.clone() * k.clone()).sum_dim(2);
            u = (u - found) * row(beta, t);
        }
        state = state + k * u;
        o.push(read(&state, column(&q, t)));
    }
    (Tensor::cat(o, 1), state)
}
