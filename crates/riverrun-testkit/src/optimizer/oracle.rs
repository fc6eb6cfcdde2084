//! The reference, in `f64`.

use riverrun_kernels::adamw::Step;

/// One step of a tensor: parameters, gradients, first and second moments.
pub fn update(
    step: &Step,
    decays: bool,
    factor: f64,
    p: &mut [f64],
    g: &[f64],
    m: &mut [f64],
    v: &mut [f64],
) {
    if factor == 0.0 {
        return;
    }
    let (first, second) = step.corrections();
    for i in 0..p.len() {
        let g = g[i] * factor;
        m[i] = step.beta_1 * m[i] + (1.0 - step.beta_1) * g;
        v[i] = step.beta_2 * v[i] + (1.0 - step.beta_2) * g * g;
        let delta = m[i] * first / ((v[i] * second).sqrt() + step.epsilon);
        p[i] = p[i] * step.keep(decays) - step.lr * delta;
    }
}

/// `Σ g²`.
pub fn square_sum(g: &[f64]) -> f64 {
    g.iter().map(|g| g * g).sum()
}
