//! `D = A B` with an epilogue: the contract of the [module above](super::super), on the CPU.

use std::borrow::Cow;

use pulp::{Simd, WithSimd};

use super::columns::Columns;
use super::factor::Factor;
use super::few_rows::FewRows;
use super::packed::{Layout, PackedMatrix};
use super::tile::{ByRows, HEIGHT, Product};
use crate::activation::Nonlinearity;
use crate::activation::cpu::{Becomes, Replace, slope};
use crate::element::compiled_here;
use crate::error::expect_length as length;
use crate::gemm::Epilogue;
use crate::simd::level::Level;
use crate::simd::real::Real;
use crate::simd::vector::{Vector, lanes};
use crate::threads::pieces::{InPieces, Pieces};
use crate::threads::{chunk, parallel_for};
use crate::{Element, Error};

/// Rows of `A` whose results an epilogue finds in the cache: a multiple of [`HEIGHT`].
const ROWS: usize = 64;

/// Rows of a transposed `A` that are summed at a time: enough to make reading and writing `D` cheap, few enough to stay in the
/// cache. Sums over rows are divided here too, so that no result depends on the number of threads.
const DEPTH: usize = 512;

/// For fewer rows of `A` than this, packing `B` takes longer than multiplying by it.
const FEW: usize = 16;

/// Computes `d [m, n]` from `a [m, k]` and `b [k, n]`. Sums are in `f32`, or `f64` for `f64`; in 16 bits each result is rounded
/// once, after the epilogue.
///
/// # Arguments
/// - `vectors`: the bias, `[n]`, for the epilogues with a bias; the saved input of GELU, `[m, n]`, for
///   [`Epilogue::GeluBackward`]; `C`, `[m, n]`, for [`Epilogue::Add`].
/// - `second`: the epilogue's second output: the input of GELU, `[m, n]`, or sums, `[n]` or `[m]`.
///
/// Every element of the outputs is overwritten. Each is one sum in an order that depends on the sizes alone.
///
/// # Errors
/// [`Error::Length`] for a slice of the wrong length, [`Error::Routine`] for more elements than there can be. Nothing is written
/// then.
pub fn product<E: Kernels<E>>(
    sizes: [usize; 3],
    a: Factor<E>,
    b: Factor<E>,
    epilogue: Epilogue,
    vectors: [Option<&[E]>; 2],
    d: &mut [E],
    second: Option<&mut [E]>,
) -> Result<(), Error> {
    E::multiply(sizes, a, b, epilogue, vectors, d, second)
}

compiled_here! {
    Kernels<E> {
        fn multiply(
            sizes: [usize; 3],
            a: Factor<E>,
            b: Factor<E>,
            epilogue: Epilogue,
            vectors: [Option<&[E]>; 2],
            d: &mut [E],
            second: Option<&mut [E]>,
        ) -> Result<(), Error> = multiply;
    }
}

fn multiply<E: Element>(
    sizes: [usize; 3],
    a: Factor<E>,
    b: Factor<E>,
    epilogue: Epilogue,
    [bias, pre]: [Option<&[E]>; 2],
    d: &mut [E],
    second: Option<&mut [E]>,
) -> Result<(), Error> {
    let [m, k, n] = sizes;
    let size = |what: &'static str, x: usize, y: usize| {
        x.checked_mul(y).ok_or_else(|| Error::Routine {
            routine: "cpu",
            reason: format!("{what} has more elements than there can be"),
        })
    };
    let mn = size("d", m, n)?;
    length("a", size("a", m, k)?, a.data.len())?;
    length("b", size("b", k, n)?, b.data.len())?;
    length("d", mn, d.len())?;
    let reads_bias = epilogue.vector(m, n) > 0 && !epilogue.writes_vector();
    length(
        "bias",
        if reads_bias { n } else { 0 },
        bias.map_or(0, <[E]>::len),
    )?;
    length(
        "pre",
        if epilogue.reads_matrix() { mn } else { 0 },
        pre.map_or(0, <[E]>::len),
    )?;
    let expected = match epilogue {
        Epilogue::Gelu { save: true, .. } => mn,
        _ if epilogue.writes_vector() => epilogue.vector(m, n),
        _ => 0,
    };
    length("second", expected, second.as_ref().map_or(0, |s| s.len()))?;
    let few = m < FEW && !a.transposed && epilogue != Epilogue::SumsOfB;
    let (mut wide_d, mut wide_second) = (widths::<E>(d.len()), Vec::new());
    let second = second.unwrap_or_default();
    let (to, to_second): (&mut [E::Acc], &mut [E::Acc]) = match same::<E>() {
        true => (
            bytemuck::cast_slice_mut(d),
            bytemuck::cast_slice_mut(second),
        ),
        false => {
            wide_second = widths::<E>(second.len());
            (&mut wide_d, &mut wide_second)
        }
    };
    let (wide_a, wide_b) = (widened(a.data), widened(if few { &[] } else { b.data }));
    let (bias, pre) = (widened(bias.unwrap_or(&[])), widened(pre.unwrap_or(&[])));
    let level = Level::available()[0];
    if few && !to.is_empty() {
        level.with_token(FewRows {
            sizes,
            a: &wide_a,
            b,
            bias: &bias,
            d: to,
        });
    }
    level.with_token(Run {
        sizes,
        a: &wide_a,
        a_transposed: a.transposed,
        b: &wide_b,
        b_transposed: b.transposed,
        epilogue,
        bias: &bias,
        pre: &pre,
        d: to,
        second: to_second,
        done: few,
    });
    if !same::<E>() {
        narrow(&wide_d, d);
        narrow(&wide_second, second);
    }
    Ok(())
}

/// Whether the storage type is the arithmetic type.
fn same<E: Element>() -> bool {
    size_of::<E>() == size_of::<E::Acc>()
}

/// Room for results that are rounded in the end.
fn widths<E: Element>(len: usize) -> Vec<E::Acc> {
    match same::<E>() {
        true => Vec::new(),
        false => vec![E::Acc::ZERO; len],
    }
}

/// Numbers of a part that a thread converts.
const PART: usize = 1 << 16;

fn widened<E: Element>(x: &[E]) -> Cow<'_, [E::Acc]> {
    if same::<E>() {
        return Cow::Borrowed(bytemuck::cast_slice(x));
    }
    let mut wide = vec![E::Acc::ZERO; x.len()];
    let parts = wide.par_chunks_mut(PART).zip(x.par_chunks(PART));
    parts.for_each(|(wide, x)| {
        wide.iter_mut()
            .zip(x)
            .for_each(|(wide, x)| *wide = x.widen())
    });
    Cow::Owned(wide)
}

fn narrow<E: Element>(x: &[E::Acc], to: &mut [E]) {
    let parts = to.par_chunks_mut(PART).zip(x.par_chunks(PART));
    parts.for_each(|(to, x)| to.iter_mut().zip(x).for_each(|(to, &x)| *to = E::narrow(x)));
}

/// A product whose lengths have been checked.
struct Run<'a, R> {
    sizes: [usize; 3],
    a: &'a [R],
    a_transposed: bool,
    b: &'a [R],
    b_transposed: bool,
    epilogue: Epilogue,
    bias: &'a [R],
    pre: &'a [R],
    d: &'a mut [R],
    second: &'a mut [R],
    /// Whether `d` has the product already, and lacks the epilogue alone.
    done: bool,
}

impl<R: Real> WithSimd for Run<'_, R> {
    type Output = ();

    fn with_simd<S: Simd>(mut self, simd: S) {
        let [m, k, n] = self.sizes;
        match self.epilogue {
            Epilogue::SumsOfA => sums(self.second, self.a, !self.a_transposed, [k, m]),
            Epilogue::SumsOfB => sums(self.second, self.b, self.b_transposed, [k, n]),
            _ => {}
        }
        if self.d.is_empty() {
            return;
        }
        if self.done {
            let saves = matches!(self.epilogue, Epilogue::Gelu { save: true, .. });
            let second = if saves { &mut *self.second } else { &mut [] };
            finish(simd, self.epilogue, self.d, second, self.pre);
        } else if self.a_transposed {
            self.outer(simd);
        } else {
            self.inner(simd);
        }
        if let Epilogue::GeluBackward { sums: true } = self.epilogue {
            sums(self.second, self.d, false, [m, n]);
        }
    }
}

impl<R: Real> Run<'_, R> {
    /// `B`'s rows `first..first + depth`, packed.
    fn pack<S: Simd>(&self, first: usize, depth: usize) -> PackedMatrix<R> {
        let [_, k, n] = self.sizes;
        let columns = |column: usize| (column < n).then_some(column * k + first);
        let layout = if self.b_transposed {
            Layout::Columns(&columns)
        } else {
            Layout::Rows {
                start: first * n,
                stride: n,
                len: n,
            }
        };
        PackedMatrix::new::<S>(self.b, layout, depth, n, HEIGHT, true)
    }

    /// `A` by rows: threads take rows of `D`, some at a time, and finish them while they are in the cache.
    fn inner<S: Simd>(&mut self, simd: S) {
        let [m, k, n] = self.sizes;
        let packed = self.pack::<S>(0, k);
        let mut init = vec![R::ZERO; n.next_multiple_of(lanes::<S, R>())];
        init[..self.bias.len()].copy_from_slice(self.bias);
        let rows = ROWS.min(
            m.div_ceil(2 * rayon::current_num_threads())
                .next_multiple_of(HEIGHT),
        );
        let (a, pre, epilogue) = (self.a, self.pre, self.epilogue);
        let saves = matches!(epilogue, Epilogue::Gelu { save: true, .. });
        let piece = |(index, (d, second)): (usize, (&mut [R], &mut [R]))| {
            let first = index * rows;
            let count = d.len() / n;
            simd.vectorize(Product {
                a: &a[first * k..],
                left: ByRows(k),
                a_group: 0,
                rows: count,
                groups: 1,
                packed: &packed,
                init: Some(&init),
                out: d,
                out_stride: n,
                out_group: 0,
                columns: n,
                add: false,
                backwards: index % 2 == 1,
            });
            let pre = pre.get(first * n..first * n + count * n).unwrap_or(&[]);
            finish(simd, epilogue, d, second, pre);
        };
        let d = self.d.par_chunks_mut(rows * n);
        if saves {
            let second = self.second.par_chunks_mut(rows * n);
            d.zip(second).enumerate().for_each(piece);
        } else {
            d.enumerate()
                .for_each(|(index, d)| piece((index, (d, &mut []))));
        }
    }

    /// The transpose of `A` by rows: outer products, some rows at a time; threads take rows of `D`.
    fn outer<S: Simd>(&mut self, simd: S) {
        let [m, k, n] = self.sizes;
        let pieces = 2 * rayon::current_num_threads();
        let mut left = Columns::with_capacity(DEPTH.min(k), m);
        if k == 0 {
            for row in self.d.chunks_exact_mut(n) {
                let bias = self.bias.iter().copied().chain(std::iter::repeat(R::ZERO));
                row.iter_mut().zip(bias).for_each(|(d, bias)| *d = bias);
            }
        }
        for first in (0..k).step_by(DEPTH) {
            let depth = DEPTH.min(k - first);
            let right = self.pack::<S>(first, depth);
            let (shape, to) = left.parts();
            let a = self.a;
            parallel_for(pieces, |index| {
                let rows = chunk(depth, pieces, HEIGHT, index);
                let source = |row: usize| &a[(first + row) * m..][..m];
                // SAFETY: pieces are disjoint rows.
                unsafe { shape.put_rows(to, rows, source, |_| None) };
            });
            // Whole panels of `A`'s columns to a piece.
            let panels = m.div_ceil(HEIGHT).div_ceil(pieces);
            self.d
                .par_chunks_mut(panels * HEIGHT * n)
                .enumerate()
                .for_each(|(index, d)| {
                    let from = index * panels;
                    let panels = from..from + (d.len() / n).div_ceil(HEIGHT);
                    left.multiply(simd, panels, &right, d, n, first > 0);
                });
        }
        // Products for weight gradients have no epilogue on `D`; others need another pass.
        let (bias, pre, epilogue) = (self.bias, self.pre, self.epilogue);
        if k > 0 && !bias.is_empty() {
            self.d
                .par_chunks_mut(n)
                .for_each(|d| d.iter_mut().zip(bias).for_each(|(d, &b)| *d += b));
        }
        let saves = matches!(epilogue, Epilogue::Gelu { save: true, .. });
        let second = if saves { &mut *self.second } else { &mut [] };
        finish(simd, epilogue, self.d, second, pre);
    }
}

/// The epilogue for some elements of `D` and the matching elements of its operands.
fn finish<S: Simd, R: Real>(simd: S, epilogue: Epilogue, d: &mut [R], second: &mut [R], pre: &[R]) {
    match epilogue {
        Epilogue::Gelu { .. } => {
            if !second.is_empty() {
                second.copy_from_slice(d);
            }
            simd.vectorize(Replace {
                nonlinearity: Nonlinearity::Gelu,
                becomes: Becomes::Value,
                numbers: d,
            });
        }
        Epilogue::GeluBackward { .. } => simd.vectorize(GeluBackward(d, pre)),
        Epilogue::Add => d.iter_mut().zip(pre).for_each(|(d, &c)| *d += c),
        _ => {}
    }
}

/// `d = d · gelu'(x)`.
struct GeluBackward<'a, R>(&'a mut [R], &'a [R]);

impl<R: Real> WithSimd for GeluBackward<'_, R> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (full, rest) = R::split_mut::<S>(self.0);
        let (x, x_rest) = R::split::<S>(self.1);
        for (d, &x) in full.iter_mut().zip(x) {
            *d = (slope(Vector::<S, R>::new(simd, x)) * Vector::new(simd, *d)).lanes;
        }
        let d = Vector::<S, R>::load_rest(simd, rest);
        let last = slope(Vector::<S, R>::load_rest(simd, x_rest)) * d;
        R::store_rest(simd, rest, last.lanes);
    }
}

/// The sums over `depth` of a matrix stored as `[depth, columns]`, or as `[columns, depth]` if `by_columns`.
fn sums<R: Real>(to: &mut [R], matrix: &[R], by_columns: bool, [depth, columns]: [usize; 2]) {
    if by_columns {
        let columns = to.par_chunks_mut(1).enumerate();
        columns.for_each(|(column, to)| {
            let column = &matrix[column * depth..][..depth];
            to[0] = column.iter().fold(R::ZERO, |sum, &x| sum + x);
        });
        return;
    }
    let rows = matrix.par_chunks(DEPTH * columns.max(1));
    let partial = rows.map(|rows| {
        let mut sums = vec![R::ZERO; columns];
        for row in rows.chunks_exact(columns.max(1)) {
            sums.iter_mut().zip(row).for_each(|(sum, &x)| *sum += x);
        }
        sums
    });
    to.fill(R::ZERO);
    for sums in partial {
        to.iter_mut().zip(sums).for_each(|(to, x)| *to += x);
    }
}
