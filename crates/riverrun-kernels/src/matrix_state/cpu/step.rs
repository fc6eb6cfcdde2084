//! A head of a sequence, and the vectors of one of its steps.

use pulp::Simd;

use super::super::{Erase, Gate, Inputs, Problem};
use crate::Element;
use crate::simd::real::Real;
use crate::simd::vector::Vector;

/// One head of one sequence.
#[derive(Clone, Copy)]
pub struct Head<'a, E: Element> {
    pub problem: &'a Problem,
    pub inputs: &'a Inputs<&'a [E], &'a [E::Acc], &'a [bool]>,
    pub sequence: usize,
    pub head: usize,
}

/// The vectors of a step, of `K` numbers and zeros up to whole registers. All forms are
///
/// ```text
/// y = S_{t-1}ᵀ read          S_t = Diag(alpha) S_{t-1} + k uᵀ + write wᵀ          o = S_tᵀ q
/// ```
///
/// in which `u` and `w` are made of `y` and `v`. With a bonus `q` is zero, `read` the query, `write` the bonus, and `o` is made
/// of `y`.
pub struct Vectors<X> {
    pub alpha: X,
    pub k: X,
    pub q: X,
    pub read: X,
    pub write: X,
}

/// The vectors of a step.
pub const VECTORS: usize = 5;

impl<X> Vectors<X> {
    /// From [`VECTORS`] parts.
    #[inline(always)]
    pub fn of(mut parts: impl Iterator<Item = X>) -> Self {
        let mut next = || parts.next().expect("a part for every vector");
        Self {
            alpha: next(),
            k: next(),
            q: next(),
            read: next(),
            write: next(),
        }
    }
}

/// The numbers of a step.
#[derive(Clone, Copy, Default)]
pub struct Scalars<R> {
    /// `β`; 1 where there is none.
    pub beta: R,
    /// `∂o/∂u` in the step itself: `k·q`, or `Σ k q bonus`.
    pub direct: R,
    /// `∂o/∂w` in the step itself: `write·q`.
    pub cross: R,
}

impl<'a, E: Element> Head<'a, E> {
    pub fn new(
        problem: &'a Problem,
        inputs: &'a Inputs<&'a [E], &'a [E::Acc], &'a [bool]>,
        index: usize,
    ) -> Self {
        Self {
            problem,
            inputs,
            sequence: index / problem.shape.heads,
            head: index % problem.shape.heads,
        }
    }

    /// The place of step `t` among the rows of `[B, T, H, ..]`.
    #[inline(always)]
    pub fn row(&self, t: usize) -> usize {
        (self.sequence * self.problem.shape.steps + t) * self.problem.shape.heads + self.head
    }

    /// The place of step `t` among the rows of `[B, T, J, ..]`.
    #[inline(always)]
    pub fn key_row(&self, t: usize) -> usize {
        let shape = self.problem.shape;
        let key_head = self.head / shape.group();
        (self.sequence * shape.steps + t) * shape.key_heads + key_head
    }

    #[inline(always)]
    pub fn is_reset(&self, t: usize) -> bool {
        match self.inputs.reset {
            Some(reset) => reset[self.sequence * self.problem.shape.steps + t],
            None => false,
        }
    }

    /// The place of the head's state among the elements of all states.
    pub fn state(&self) -> usize {
        let shape = self.problem.shape;
        (self.sequence * shape.heads + self.head) * shape.key * shape.value
    }

    /// The values of step `t`.
    #[inline(always)]
    pub fn values<'x>(&self, x: &'x [E], t: usize) -> &'x [E] {
        let value = self.problem.shape.value;
        &x[self.row(t) * value..][..value]
    }

    /// Computes the vectors of step `t`; numbers after the first `K` must be zero.
    #[inline(always)]
    pub fn vectors<S: Simd>(
        &self,
        simd: S,
        t: usize,
        to: Vectors<&mut [E::Acc]>,
    ) -> Scalars<E::Acc> {
        let (inputs, key) = (self.inputs, self.problem.shape.key);
        let (row, key_row) = (self.row(t), self.key_row(t));
        let Vectors {
            alpha,
            k,
            q,
            read,
            write,
        } = to;
        widen(k, &inputs.k[key_row * key..][..key]);
        let queries = &inputs.q[key_row * key..][..key];
        match (self.problem.gate, inputs.g) {
            (Gate::Head, Some(g)) => {
                let decay = decay(Vector::<S, _>::splat(simd, g[row].widen()));
                for alpha in E::Acc::split_mut::<S>(alpha).0 {
                    *alpha = decay.lanes;
                }
            }
            (Gate::Row, Some(g)) => {
                alpha[key..].fill(E::Acc::ZERO);
                widen(alpha, &g[row * key..][..key]);
                for alpha in E::Acc::split_mut::<S>(alpha).0 {
                    *alpha = decay(Vector::<S, E::Acc>::new(simd, *alpha)).lanes;
                }
            }
            _ => alpha.fill(E::Acc::ONE),
        }
        let mut scalars = Scalars {
            beta: E::Acc::ONE,
            ..Scalars::default()
        };
        if let (true, Some(bonus)) = (self.problem.bonus, inputs.bonus) {
            widen(read, queries);
            widen(write, &bonus[self.head * key..][..key]);
            scalars.direct = dot(simd, [k, read, write]);
            return scalars;
        }
        widen(q, queries);
        scalars.direct = dot(simd, [k, q]);
        let own = |x: Option<&'a [E]>| x.map_or(&[][..], |x| &x[row * key..][..key]);
        match self.problem.erase {
            Erase::None => {}
            Erase::Key => {
                read.copy_from_slice(k);
                scale::<S, _>(simd, read, alpha);
                scalars.beta = inputs.beta.map_or(E::Acc::ONE, |beta| beta[row].widen());
            }
            Erase::Free => {
                widen(read, own(inputs.erase));
                scale::<S, _>(simd, read, alpha);
            }
            Erase::Separate => {
                widen(read, own(inputs.erase));
                widen(write, own(inputs.write));
                scalars.cross = dot(simd, [write, q]);
            }
        }
        scalars
    }
}

/// `e^x`, NaN where `x` is positive.
#[inline(always)]
fn decay<S: Simd, R: Real>(x: Vector<S, R>) -> Vector<S, R> {
    let nan = x.constant(R::from_f64(f64::NAN));
    x.constant(R::ZERO).less(x).select(nan, x.exp_decay())
}

/// `to ∘ by`.
#[inline(always)]
fn scale<S: Simd, R: Real>(simd: S, to: &mut [R], by: &[R]) {
    for (to, by) in R::split_mut::<S>(to).0.iter_mut().zip(R::split::<S>(by).0) {
        *to = (Vector::<S, R>::new(simd, *to) * Vector::new(simd, *by)).lanes;
    }
}

/// The sum of products over vectors.
#[inline(always)]
fn dot<S: Simd, R: Real, const N: usize>(simd: S, x: [&[R]; N]) -> R {
    let mut sum = Vector::<S, R>::splat(simd, R::ZERO);
    for (n, first) in R::split::<S>(x[0]).0.iter().enumerate() {
        let mut product = Vector::<S, R>::new(simd, *first);
        for x in &x[1..N - 1] {
            product = product * Vector::new(simd, R::split::<S>(x).0[n]);
        }
        sum = product.mul_add(Vector::new(simd, R::split::<S>(x[N - 1]).0[n]), sum);
    }
    sum.sum()
}

/// The first numbers of `to`.
#[inline(always)]
pub fn widen<E: Element>(to: &mut [E::Acc], from: &[E]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = from.widen();
    }
}

#[inline(always)]
pub fn narrow<E: Element>(to: &mut [E], from: &[E::Acc]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = E::narrow(*from);
    }
}
