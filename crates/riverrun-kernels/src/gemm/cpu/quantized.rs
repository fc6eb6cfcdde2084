//! Products with a quantized matrix.

use half::bf16;
use pulp::{Simd, WithSimd};

use super::few_rows::by_columns;
use crate::Error;
use crate::error::expect_length;
use crate::gemm::quantized::{Bits, GROUP, PANEL, Quantized};
use crate::simd::level::Level;

/// Rows of `b` that are added up in one pass over the sums.
const TOGETHER: usize = 4;

/// Computes `d [m, n]` from `a [m, k]` and a quantized `b [k, n]`, with a bias, `[n]` or empty.
///
/// Products with the integers of a group are summed up in the order of the rows, and the sum is multiplied by the group's scale.
/// So a row of `d` has the same bits whatever `m`, on every processor.
///
/// # Errors
/// [`Error::Length`] for a slice of the wrong length. Nothing is written then.
pub fn quantized_product(
    a: &[f32],
    b: Quantized,
    bias: &[f32],
    d: &mut [f32],
) -> Result<(), Error> {
    let (k, n) = (b.sizes.k, b.sizes.n);
    b.check()?;
    let m = d.len().checked_div(n).unwrap_or(0);
    expect_length("d", m * n, d.len())?;
    expect_length("a", m * k, a.len())?;
    if !bias.is_empty() {
        expect_length("bias", n, bias.len())?;
    }
    if !d.is_empty() {
        Level::available()[0].with_token(Product { a, b, bias, m, d });
    }
    Ok(())
}

struct Product<'a> {
    a: &'a [f32],
    b: Quantized<'a>,
    bias: &'a [f32],
    m: usize,
    d: &'a mut [f32],
}

impl WithSimd for Product<'_> {
    type Output = ();

    fn with_simd<S: Simd>(self, simd: S) {
        let Self { a, b, bias, m, d } = self;
        by_columns([b.sizes.k, b.sizes.n], PANEL, d, |first, len| {
            let mut sums = vec![0.0; m * PANEL];
            if !bias.is_empty() {
                for sums in sums.chunks_exact_mut(PANEL) {
                    sums[..len].copy_from_slice(&bias[first..][..len]);
                }
            }
            for group in 0..b.sizes.groups() {
                simd.vectorize(Group {
                    a,
                    b,
                    panel: first / PANEL,
                    group,
                    sums: &mut sums,
                });
            }
            let rows = sums.chunks_exact(PANEL);
            rows.flat_map(|sums| &sums[..len]).copied().collect()
        });
    }
}

/// Adds the products with a group of rows of a panel to sums, `[m, PANEL]`.
struct Group<'a> {
    a: &'a [f32],
    b: Quantized<'a>,
    panel: usize,
    group: usize,
    sums: &'a mut [f32],
}

impl WithSimd for Group<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self {
            a,
            b,
            panel,
            group,
            sums,
        } = self;
        let (k, at) = (b.sizes.k, group * GROUP);
        let depth = GROUP.min(k - at);
        let bytes = b.rows(panel, at, depth);
        let mut scales = [0.0; PANEL];
        widen(b.group(panel, group), &mut scales);
        if let [sums] = sums.as_chunks_mut::<PANEL>().0 {
            let x = &a[at..][..depth];
            let mut partial = [0.0; PANEL];
            let (low, high) = partial.split_at_mut(PANEL / 2);
            match b.sizes.bits {
                Bits::Eight => add(x, bytes, &mut partial, eight),
                Bits::Four => {
                    add(x, bytes, low, low_four);
                    add(x, bytes, high, high_four);
                }
            }
            return scaled(&partial, &scales, sums);
        }
        // The integers are read once for all rows.
        let mut numbers = [0.0; GROUP * PANEL];
        for (row, to) in bytes
            .chunks_exact(b.sizes.bits.row())
            .zip(numbers.as_chunks_mut::<PANEL>().0)
        {
            let (low, high) = to.split_at_mut(PANEL / 2);
            match b.sizes.bits {
                Bits::Eight => convert(row, to, eight),
                Bits::Four => {
                    convert(row, low, low_four);
                    convert(row, high, high_four);
                }
            }
        }
        for (a, sums) in a.chunks_exact(k).zip(sums.as_chunks_mut::<PANEL>().0) {
            let mut partial = [0.0; PANEL];
            let (x, numbers) = (&a[at..][..depth], &numbers[..depth * PANEL]);
            add(x, numbers, &mut partial, |x| x);
            scaled(&partial, &scales, sums);
        }
    }
}

#[inline(always)]
fn eight(byte: u8) -> f32 {
    f32::from(byte as i8)
}

#[inline(always)]
fn low_four(byte: u8) -> f32 {
    f32::from(byte & 15) - 8.0
}

#[inline(always)]
fn high_four(byte: u8) -> f32 {
    f32::from(byte >> 4) - 8.0
}

#[inline(always)]
fn convert(bytes: &[u8], to: &mut [f32], number: impl Fn(u8) -> f32) {
    for (to, byte) in to.iter_mut().zip(bytes) {
        *to = number(*byte);
    }
}

/// Adds the products of `x` with as many rows of numbers, of the length of the sums.
#[inline(always)]
fn add<T: Copy>(x: &[f32], rows: &[T], sums: &mut [f32], number: impl Fn(T) -> f32) {
    let len = sums.len();
    let (whole, rest) = x.as_chunks::<TOGETHER>();
    let (together, alone) = rows.split_at(whole.len() * TOGETHER * len);
    for (x, rows) in whole.iter().zip(together.chunks_exact(TOGETHER * len)) {
        let (first, second) = rows.split_at(2 * len);
        let (first, second) = (first.split_at(len), second.split_at(len));
        let rows = first
            .0
            .iter()
            .zip(first.1)
            .zip(second.0.iter().zip(second.1));
        for (sum, ((a, b), (c, d))) in sums.iter_mut().zip(rows) {
            let after = *sum + x[0] * number(*a) + x[1] * number(*b);
            *sum = after + x[2] * number(*c) + x[3] * number(*d);
        }
    }
    for (x, row) in rest.iter().zip(alone.chunks_exact(len)) {
        for (sum, value) in sums.iter_mut().zip(row) {
            *sum += x * number(*value);
        }
    }
}

#[inline(always)]
fn scaled(partial: &[f32; PANEL], scales: &[f32; PANEL], sums: &mut [f32; PANEL]) {
    for ((sum, partial), scale) in sums.iter_mut().zip(partial).zip(scales) {
        *sum += partial * scale;
    }
}

#[inline(always)]
fn widen(from: &[bf16], to: &mut [f32; PANEL]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = f32::from_bits(u32::from(from.to_bits()) << 16);
    }
}
