//! In `f64`. Rows of `gamma.len()` channels.

fn scale(x: &[f64], epsilon: f64) -> f64 {
    let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
    1.0 / (mean + epsilon).sqrt()
}

/// `y` of the length of `x`.
pub fn forward(x: &[f64], gamma: &[f64], epsilon: f64) -> Vec<f64> {
    x.chunks(gamma.len())
        .flat_map(|x| {
            let r = scale(x, epsilon);
            x.iter().zip(gamma).map(move |(x, g)| x * r * g)
        })
        .collect()
}

/// `d_x` and `d_gamma`.
pub fn backward(x: &[f64], gamma: &[f64], epsilon: f64, d_y: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let dim = gamma.len();
    let mut d_gamma = vec![0.0; dim];
    let mut d_x = Vec::with_capacity(x.len());
    for (x, d_y) in x.chunks(dim).zip(d_y.chunks(dim)) {
        let r = scale(x, epsilon);
        let mean = (0..dim).map(|i| gamma[i] * d_y[i] * x[i]).sum::<f64>() / dim as f64;
        for i in 0..dim {
            d_gamma[i] += d_y[i] * x[i] * r;
            d_x.push(r * (gamma[i] * d_y[i] - x[i] * r * r * mean));
        }
    }
    (d_x, d_gamma)
}
