//! The leading right singular vectors of a small matrix, by random projections.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Random directions beside those that are asked for.
const MORE: usize = 4;
/// Sweeps of Jacobi's method: it converges quadratically, and a matrix of this size needs about six.
const SWEEPS: usize = 30;

/// Vectors of length 1, orthogonal to each other, that span nearly the best subspace of `rank` dimensions for the rows, the
/// most important first; fewer where the rows span less.
///
/// A randomised singular value decomposition with one power iteration (Halko, Martinsson and Tropp, *Finding Structure with
/// Randomness*, 2011, algorithms 4.3 and 5.1): the range of `A Aᵀ A Ω` for `rank + 4` random directions `Ω`, then the
/// eigenvectors of the small matrix `B Bᵀ`, `B = Qᵀ A`. The directions are the same in every call, so that equal rows give
/// equal bits.
pub fn leading(rows: &[&[f32]], rank: usize) -> Vec<Vec<f64>> {
    let width = rows.first().map_or(0, |row| row.len());
    let mut random = ChaCha8Rng::seed_from_u64(0x0073_7664);
    let mut start: Vec<Vec<f64>> = (0..rank + MORE)
        .map(|_| (0..width).map(|_| random.random_range(-1.0..1.0)).collect())
        .collect();
    for _ in 0..2 {
        let images = start.iter().map(|v| times(rows, v)).collect();
        let images = orthonormal(images);
        start = orthonormal(images.iter().map(|u| transposed(rows, u, width)).collect());
    }
    let images = orthonormal(start.iter().map(|v| times(rows, v)).collect());
    let b: Vec<Vec<f64>> = images.iter().map(|u| transposed(rows, u, width)).collect();
    let gram: Vec<Vec<f64>> = b
        .iter()
        .map(|one| b.iter().map(|two| dot(one, two)).collect())
        .collect();
    let (values, vectors) = eigen(gram);
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|i, j| values[*j].total_cmp(&values[*i]));
    // `v = Bᵀ u / σ`.
    let found = order.into_iter().take(rank).map(|i| {
        let mut v = vec![0.0; width];
        for (row, vector) in b.iter().zip(&vectors) {
            v.iter_mut().zip(row).for_each(|(v, x)| *v += vector[i] * x);
        }
        v
    });
    orthonormal(found.collect())
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// `A v`.
fn times(rows: &[&[f32]], v: &[f64]) -> Vec<f64> {
    let row = |row: &&[f32]| row.iter().zip(v).map(|(x, v)| f64::from(*x) * v).sum();
    rows.iter().map(row).collect()
}

/// `Aᵀ u`.
fn transposed(rows: &[&[f32]], u: &[f64], width: usize) -> Vec<f64> {
    let mut sum = vec![0.0; width];
    for (row, u) in rows.iter().zip(u) {
        sum.iter_mut()
            .zip(*row)
            .for_each(|(sum, x)| *sum += u * f64::from(*x));
    }
    sum
}

/// Vectors of length 1 with the same span, by Gram and Schmidt, each twice against the others; those that add nothing to the
/// span are left out.
fn orthonormal(vectors: Vec<Vec<f64>>) -> Vec<Vec<f64>> {
    let mut found: Vec<Vec<f64>> = Vec::new();
    for mut vector in vectors {
        let before = dot(&vector, &vector).sqrt();
        for _ in 0..2 {
            for other in &found {
                let along = dot(&vector, other);
                vector
                    .iter_mut()
                    .zip(other)
                    .for_each(|(x, o)| *x -= along * o);
            }
        }
        let length = dot(&vector, &vector).sqrt();
        if length > 1e-10 * before {
            vector.iter_mut().for_each(|x| *x /= length);
            found.push(vector);
        }
    }
    found
}

/// Eigenvalues of a symmetric matrix, and its eigenvectors as columns, by Jacobi's rotations (Golub and Van Loan, *Matrix
/// Computations*, section 8.5).
fn eigen(mut a: Vec<Vec<f64>>) -> (Vec<f64>, Vec<Vec<f64>>) {
    let n = a.len();
    let mut v: Vec<Vec<f64>> = (0..n)
        .map(|i| (0..n).map(|j| f64::from(u8::from(i == j))).collect())
        .collect();
    for _ in 0..SWEEPS {
        let mut rotated = false;
        for p in 0..n {
            for q in p + 1..n {
                if a[p][q].abs() <= 1e-15 * (a[p][p] * a[q][q]).abs().sqrt() {
                    continue;
                }
                rotated = true;
                let theta = (a[q][q] - a[p][p]) / (2.0 * a[p][q]);
                let t = theta.signum() / (theta.abs() + (theta * theta + 1.0).sqrt());
                let c = 1.0 / (t * t + 1.0).sqrt();
                let s = t * c;
                for row in a.iter_mut().chain(&mut v) {
                    (row[p], row[q]) = (c * row[p] - s * row[q], s * row[p] + c * row[q]);
                }
                for k in 0..n {
                    (a[p][k], a[q][k]) = (c * a[p][k] - s * a[q][k], s * a[p][k] + c * a[q][k]);
                }
            }
        }
        if !rotated {
            break;
        }
    }
    ((0..n).map(|i| a[i][i]).collect(), v)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows with these singular values along random directions.
    fn matrix(values: &[f64], rows: usize, width: usize, seed: u64) -> Vec<Vec<f32>> {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut directions = |len: usize| {
            let one =
                |_| -> Vec<f64> { (0..len).map(|_| random.random_range(-1.0..1.0)).collect() };
            let drawn = (0..values.len()).map(one).collect();
            orthonormal(drawn)
        };
        let (left, right) = (directions(rows), directions(width));
        let element = |i: usize, j: usize| -> f64 {
            let terms = values.iter().enumerate();
            terms
                .map(|(k, value)| value * left[k][i] * right[k][j])
                .sum()
        };
        (0..rows)
            .map(|i| (0..width).map(|j| element(i, j) as f32).collect())
            .collect()
    }

    /// The square of what projection on the span of some vectors leaves out.
    fn left_out(rows: &[&[f32]], basis: &[Vec<f64>]) -> f64 {
        rows.iter()
            .map(|row| {
                let row: Vec<f64> = row.iter().map(|x| f64::from(*x)).collect();
                let along: f64 = basis.iter().map(|v| dot(&row, v).powi(2)).sum();
                dot(&row, &row) - along
            })
            .sum()
    }

    /// Among decaying singular values, the found subspace leaves out little more than the best one, which leaves out the
    /// squares of the other values; a matrix of rank 4 is kept whole.
    #[test]
    fn the_subspace_is_nearly_the_best() {
        for seed in 0..20 {
            for (values, factor) in [
                (&[9.0, 5.0, 3.0, 2.0][..], 1.0),
                (
                    &[9.0, 5.0, 3.0, 2.0, 1.0, 0.5, 0.25, 0.2, 0.1, 0.05, 0.02],
                    1.05,
                ),
                (&[1.0; 12], 1.05),
            ] {
                let rows = matrix(values, 50, 64, seed);
                let rows: Vec<&[f32]> = rows.iter().map(Vec::as_slice).collect();
                let basis = leading(&rows, 4);
                assert_eq!(basis.len(), 4);
                let best: f64 = values[4..].iter().map(|value| value * value).sum();
                let found = left_out(&rows, &basis);
                // The elements of the rows are rounded to f32.
                let rounding = 1e-10;
                assert!(found <= factor * best + rounding, "{seed}: {found} {best}");
                for (i, one) in basis.iter().enumerate() {
                    for (j, two) in basis.iter().enumerate() {
                        let expected = f64::from(u8::from(i == j));
                        assert!((dot(one, two) - expected).abs() < 1e-12);
                    }
                }
            }
        }
    }

    #[test]
    fn rows_of_low_rank_give_fewer_directions() {
        assert!(leading(&[], 4).is_empty());
        assert!(leading(&[&[0.0; 8], &[0.0; 8]], 4).is_empty());
        let one = leading(&[&[3.0, 4.0], &[-6.0, -8.0], &[0.0, 0.0]], 4);
        assert_eq!(one.len(), 1);
        let along = (0.6 * one[0][0] + 0.8 * one[0][1]).abs();
        assert!((along - 1.0).abs() < 1e-12);
        // The largest numbers do not overflow to NaN that would spread.
        let large = leading(&[&[1e30, 0.0], &[0.0, 1e-30]], 4);
        assert!(large.iter().flatten().all(|x| x.is_finite()));
    }

    #[test]
    fn eigenvalues_of_a_known_matrix() {
        let (mut values, vectors) = eigen(vec![vec![2.0, 1.0], vec![1.0, 2.0]]);
        values.sort_by(f64::total_cmp);
        assert!((values[0] - 1.0).abs() < 1e-12 && (values[1] - 3.0).abs() < 1e-12);
        assert!((dot(&vectors[0], &vectors[1])).abs() < 1e-12);
    }
}
