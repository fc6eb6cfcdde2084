//! In `f64`.

use super::Epilogue;
use crate::gelu;

/// What a product gives.
#[derive(Debug, Clone, PartialEq)]
pub struct Outputs {
    /// `[m, n]`.
    pub d: Vec<f64>,
    /// `[m, n]`, where the epilogue saves it: what GELU took.
    pub pre: Option<Vec<f64>>,
    /// Where the epilogue sums: `[n]` or `[m]`.
    pub sums: Option<Vec<f64>>,
}

/// `A B` for `A [m, k]` and `B [k, n]`, rows contiguous.
pub fn product(a: &[f64], b: &[f64], [m, k, n]: [usize; 3]) -> Vec<f64> {
    assert_eq!((a.len(), b.len()), (m * k, k * n));
    let mut d = vec![0.0; m * n];
    for (row, d) in d.chunks_exact_mut(n.max(1)).enumerate() {
        for (i, &a) in a[row * k..][..k].iter().enumerate() {
            for (d, b) in d.iter_mut().zip(&b[i * n..][..n]) {
                *d += a * b;
            }
        }
    }
    d
}

/// `[rows, columns]` to `[columns, rows]`.
pub fn transpose(x: &[f64], rows: usize, columns: usize) -> Vec<f64> {
    (0..rows * columns)
        .map(|i| x[(i % rows) * columns + i / rows])
        .collect()
}

fn column_sums(x: &[f64], columns: usize) -> Vec<f64> {
    let mut sums = vec![0.0; columns];
    for row in x.chunks_exact(columns.max(1)) {
        sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
    }
    sums
}

/// A product and what follows it. `bias` is read by epilogues with one, `pre` by [`Epilogue::GeluBackward`].
pub fn run(
    a: &[f64],
    b: &[f64],
    sizes: [usize; 3],
    epilogue: Epilogue,
    bias: &[f64],
    pre: &[f64],
) -> Outputs {
    let [m, k, n] = sizes;
    let mut d = product(a, b, sizes);
    if matches!(epilogue, Epilogue::Bias | Epilogue::Gelu { bias: true, .. }) {
        assert_eq!(bias.len(), n);
        for row in d.chunks_exact_mut(n.max(1)) {
            row.iter_mut().zip(bias).for_each(|(d, b)| *d += b);
        }
    }
    let plain = |d| Outputs {
        d,
        pre: None,
        sums: None,
    };
    match epilogue {
        Epilogue::Plain | Epilogue::Bias => plain(d),
        Epilogue::Gelu { save, .. } => Outputs {
            pre: save.then(|| d.clone()),
            ..plain(gelu::oracle::forward(&d))
        },
        Epilogue::GeluBackward { sums } => {
            let d = gelu::oracle::backward(pre, &d);
            let sums = sums.then(|| column_sums(&d, n));
            Outputs { sums, ..plain(d) }
        }
        Epilogue::SumsOfA => Outputs {
            sums: Some(column_sums(&transpose(a, m, k), m)),
            ..plain(d)
        },
        Epilogue::SumsOfB => Outputs {
            sums: Some(column_sums(b, n)),
            ..plain(d)
        },
    }
}

/// The gradients of [`linear`].
#[derive(Debug, Clone, PartialEq)]
pub struct LinearGrads {
    /// `[rows, inputs]`.
    pub x: Vec<f64>,
    /// `[inputs, outputs]`.
    pub w: Vec<f64>,
    /// `[outputs]`.
    pub bias: Vec<f64>,
}

/// `y = act(x W + b)`, `x [rows, inputs]`, `W [inputs, outputs]`; `gelu` says whether `act` is GELU or nothing.
pub fn linear(x: &[f64], w: &[f64], bias: &[f64], sizes: [usize; 3], gelu: bool) -> Vec<f64> {
    let epilogue = match gelu {
        true => Epilogue::Gelu {
            bias: true,
            save: false,
        },
        false => Epilogue::Bias,
    };
    run(x, w, sizes, epilogue, bias, &[]).d
}

/// The gradients of a scalar of which `∂L/∂y` is `d_y`.
pub fn linear_backward(
    x: &[f64],
    w: &[f64],
    bias: &[f64],
    [rows, inputs, outputs]: [usize; 3],
    gelu: bool,
    d_y: &[f64],
) -> LinearGrads {
    let d_pre = match gelu {
        true => {
            let pre = linear(x, w, bias, [rows, inputs, outputs], false);
            crate::gelu::oracle::backward(&pre, d_y)
        }
        false => d_y.to_vec(),
    };
    let (w, x) = (transpose(w, inputs, outputs), transpose(x, rows, inputs));
    LinearGrads {
        x: product(&d_pre, &w, [rows, outputs, inputs]),
        w: product(&x, &d_pre, [inputs, rows, outputs]),
        bias: column_sums(&d_pre, outputs),
    }
}
