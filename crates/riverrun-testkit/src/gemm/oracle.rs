//! The reference, in `f64`.

use super::Epilogue;
use crate::Tensors;
use crate::activation::{Nonlinearity, oracle};

/// The outputs of a product.
#[derive(Debug, Clone, PartialEq)]
pub struct Outputs {
    /// `[m, n]`.
    pub d: Vec<f64>,
    /// `[m, n]`, the input of GELU, if the epilogue saves it.
    pub pre: Option<Vec<f64>>,
    /// The epilogue's sums, if any: `[n]` or `[m]`.
    pub sums: Option<Vec<f64>>,
}

impl Outputs {
    /// Those that there are, by name.
    pub fn named(self) -> Tensors {
        let others = [("pre", self.pre), ("sums", self.sums)];
        let others = others.into_iter().filter_map(|(name, x)| Some((name, x?)));
        Tensors::new([("d", self.d)].into_iter().chain(others))
    }
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

/// The sums over rows.
pub(super) fn column_sums(x: &[f64], columns: usize) -> Vec<f64> {
    let mut sums = vec![0.0; columns];
    for row in x.chunks_exact(columns.max(1)) {
        sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
    }
    sums
}

/// A product and its epilogue. `bias` is read by epilogues with one, `pre` by [`Epilogue::GeluBackward`] and, as `C`, [`Epilogue::Add`].
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
            ..plain(oracle::forward(Nonlinearity::Gelu, &d))
        },
        Epilogue::GeluBackward { sums } => {
            let d = oracle::backward(Nonlinearity::Gelu, pre, &d);
            let sums = sums.then(|| column_sums(&d, n));
            Outputs { sums, ..plain(d) }
        }
        Epilogue::Add => plain(d.iter().zip(pre).map(|(d, c)| d + c).collect()),
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
