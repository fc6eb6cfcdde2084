//! The reference, in `f64`. Rows of `gamma.len()` channels.

use riverrun_kernels::norm::{Kind, Spec};

/// `c` and `ρ` of a row.
pub(super) fn normal(spec: &Spec, x: &[f64]) -> (Vec<f64>, f64) {
    let mean = match spec.kind {
        Kind::Rms => 0.0,
        Kind::Layer => x.iter().sum::<f64>() / x.len() as f64,
    };
    let c: Vec<f64> = x.iter().map(|x| x - mean).collect();
    let square = c.iter().map(|c| c * c).sum::<f64>() / x.len() as f64;
    (c, 1.0 / (square + spec.epsilon).sqrt())
}

/// `y` of the length of `x`.
pub fn forward(spec: &Spec, x: &[f64], gamma: &[f64], beta: Option<&[f64]>) -> Vec<f64> {
    let mut y = Vec::with_capacity(x.len());
    for x in x.chunks(gamma.len()) {
        let (c, scale) = normal(spec, x);
        y.extend((0..c.len()).map(|i| c[i] * scale * gamma[i] + beta.map_or(0.0, |beta| beta[i])));
    }
    y
}

/// The results of [`backward`].
#[derive(Debug, Clone, PartialEq)]
pub struct Gradients {
    /// In the shape of `x`.
    pub d_x: Vec<f64>,
    /// `[D]`.
    pub d_gamma: Vec<f64>,
    /// `[D]`.
    pub d_beta: Vec<f64>,
}

/// The gradients; `d_sum` is added to that of `x`.
pub fn backward(
    spec: &Spec,
    x: &[f64],
    gamma: &[f64],
    d_y: &[f64],
    d_sum: Option<&[f64]>,
) -> Gradients {
    let dim = gamma.len();
    let mut d_x = Vec::with_capacity(x.len());
    let (mut d_gamma, mut d_beta) = (vec![0.0; dim], vec![0.0; dim]);
    for (x, d_y) in x.chunks(dim).zip(d_y.chunks(dim)) {
        let (c, scale) = normal(spec, x);
        let g: Vec<f64> = gamma.iter().zip(d_y).map(|(g, d)| g * d).collect();
        let pull = g.iter().zip(&c).map(|(g, c)| g * c).sum::<f64>() / dim as f64;
        let shift = match spec.kind {
            Kind::Rms => 0.0,
            Kind::Layer => g.iter().sum::<f64>() / dim as f64,
        };
        for i in 0..dim {
            d_gamma[i] += d_y[i] * c[i] * scale;
            d_beta[i] += d_y[i];
            d_x.push(scale * (g[i] - shift - c[i] * scale * scale * pull));
        }
    }
    if let Some(d_sum) = d_sum {
        d_x.iter_mut().zip(d_sum).for_each(|(d, more)| *d += more);
    }
    Gradients {
        d_x,
        d_gamma,
        d_beta,
    }
}
