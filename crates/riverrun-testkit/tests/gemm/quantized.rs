//! Quantized matrices: what is stored of a number, and products with them.

use half::bf16;
use riverrun_kernels::Error;
use riverrun_kernels::gemm::cpu::quantized_product;
use riverrun_kernels::gemm::quantized::{Bits, GROUP, Quantized, Sizes, quantize};
use riverrun_testkit::Random;

/// A matrix `[k, n]`, quantized.
struct Stored {
    sizes: Sizes,
    values: Vec<f32>,
    numbers: Vec<u8>,
    scales: Vec<bf16>,
}

impl Stored {
    fn new(sizes: Sizes, values: Vec<f32>) -> Self {
        let n = sizes.n;
        let (numbers, scales) = quantize(sizes, |i, j| values[i * n + j]);
        Self {
            sizes,
            values,
            numbers,
            scales,
        }
    }

    fn random(bits: Bits, k: usize, n: usize, seed: u64) -> Self {
        let values = Random::new(seed).vec(k * n, 1.0);
        let values = values.iter().map(|&x| x as f32).collect();
        Self::new(Sizes { bits, k, n }, values)
    }

    fn view(&self) -> Quantized<'_> {
        Quantized {
            sizes: self.sizes,
            numbers: &self.numbers,
            scales: &self.scales,
        }
    }

    /// What is stored, by columns: `[n, k]`.
    fn columns(&self) -> Vec<Vec<f32>> {
        let column = |j| {
            let mut column = vec![0.0; self.sizes.k];
            self.view().column(j, &mut column);
            column
        };
        (0..self.sizes.n).map(column).collect()
    }
}

const SIZES: [[usize; 2]; 6] = [
    [1, 1],
    [31, 127],
    [32, 128],
    [33, 129],
    [70, 300],
    [257, 1100],
];

#[test]
fn a_number_is_stored_within_half_a_unit_of_its_group() {
    for bits in Bits::ALL {
        for (seed, [k, n]) in SIZES.into_iter().enumerate() {
            let stored = Stored::random(bits, k, n, seed as u64);
            for (j, column) in stored.columns().iter().enumerate() {
                let values: Vec<f32> = (0..k).map(|i| stored.values[i * n + j]).collect();
                for (found, values) in column.chunks(GROUP).zip(values.chunks(GROUP)) {
                    let largest = values.iter().fold(0.0f32, |most, x| most.max(x.abs()));
                    // A scale is rounded away from 0 by less than one part in 2⁷. Of 4 bits there is no +8.
                    let (levels, units) = match bits {
                        Bits::Eight => (127.0, 0.5),
                        Bits::Four => (8.0, 1.0),
                    };
                    let allowed = units * largest / levels * (1.0 + 1.0 / 128.0);
                    for (found, x) in found.iter().zip(values) {
                        assert!(
                            (found - x).abs() <= allowed * 1.0001,
                            "{bits:?} {k} x {n}, column {j}: {found} for {x}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn products_are_those_of_the_stored_numbers_in_the_same_bits_for_any_rows() {
    for bits in Bits::ALL {
        for (seed, [k, n]) in SIZES.into_iter().enumerate() {
            let stored = Stored::random(bits, k, n, seed as u64);
            let columns = stored.columns();
            let rows = 20;
            let mut random = Random::new(90 + seed as u64);
            let mut random =
                |count| -> Vec<f32> { random.vec(count, 1.0).iter().map(|&x| x as f32).collect() };
            let (a, bias) = (random(rows * k), random(n));
            for bias in [&bias[..], &[]] {
                let run = |first: usize, rows: usize| {
                    let mut d = vec![f32::NAN; rows * n];
                    quantized_product(&a[first * k..][..rows * k], stored.view(), bias, &mut d)
                        .expect("lengths that fit");
                    d
                };
                let whole = run(0, rows);
                for (place, found) in whole.iter().enumerate() {
                    let (row, j) = (place / n, place % n);
                    let start = bias.get(j).map_or(0.0, |&x| f64::from(x));
                    let terms = a[row * k..][..k].iter().zip(&columns[j]);
                    let terms = terms.map(|(&a, &w)| f64::from(a) * f64::from(w));
                    let (sum, size) = terms.fold((start, start.abs()), |(sum, size), term| {
                        (sum + term, size + term.abs())
                    });
                    // A product, the additions in a group and of the groups, the scale and the bias.
                    let roundings = k.min(GROUP) + k.div_ceil(GROUP) + 3;
                    let allowed = roundings as f64 * f64::from(f32::EPSILON) / 2.0 * size;
                    assert!(
                        (f64::from(*found) - sum).abs() <= allowed,
                        "{bits:?} {k} x {n}, row {row}, column {j}: {found} for {sum}"
                    );
                }
                let bits_of = |d: &[f32]| d.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                for (first, count) in [(0, 1), (7, 2), (3, 15), (19, 1)] {
                    let found = bits_of(&run(first, count));
                    let expected = bits_of(&whole[first * n..][..count * n]);
                    assert!(
                        found == expected,
                        "{bits:?} {k} x {n}, {count} rows from {first}"
                    );
                }
            }
        }
    }
}

#[test]
fn zeros_stay_zeros_and_what_is_not_finite_stays_in_its_column() {
    let (k, n) = (40, 3);
    let mut values = vec![0.0; k * n];
    values[n + 1] = f32::INFINITY;
    values[35 * n + 2] = 1e-30;
    for bits in Bits::ALL {
        let stored = Stored::new(Sizes { bits, k, n }, values.clone());
        let mut d = [0.0; 3];
        quantized_product(&vec![1.0; k], stored.view(), &[], &mut d).expect("lengths that fit");
        assert_eq!(d[0], 0.0);
        assert!(d[1].is_nan());
        assert!((d[2] - 1e-30).abs() < 1e-32, "{}", d[2]);
    }
}

#[test]
fn wrong_lengths_are_refused_before_anything_is_written() {
    let stored = Stored::random(Bits::Eight, 3, 5, 0);
    let mut d = [7.0; 10];
    let mut refused = |a: &[f32], bias: &[f32], len: usize| {
        let found = quantized_product(a, stored.view(), bias, &mut d[..len]);
        assert!(matches!(found, Err(Error::Length { .. })), "{found:?}");
    };
    refused(&[0.0; 5], &[], 10);
    refused(&[0.0; 6], &[0.0; 4], 10);
    refused(&[0.0; 6], &[], 9);
    let short = Quantized {
        numbers: &stored.numbers[1..],
        ..stored.view()
    };
    assert!(short.check().is_err());
    assert_eq!(d, [7.0; 10]);
}
