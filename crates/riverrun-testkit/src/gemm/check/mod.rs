//! Random products and the rule that accepts a result.
//!
//! ```text
//! max |found - reference| <= 2 max |naive - reference| + eps / 2 √16 max |reference| + u λ √k max |A| |B|
//! ```
//!
//! over each tensor. `reference` is the oracle's; `naive` is the same product with sums in `f32`, in order, and every result
//! rounded to the storage type. The second term is that of [`crate::recurrence::check`]: the naive result may be accurate by
//! luck. The third is the error of a sum of `k` products in any order, with `u = 2⁻²⁴` and `λ = 7`: it stays below that with a
//! probability above 1 - 10⁻⁹ for each element (Higham & Mary, *A New Approach to Probabilistic Rounding Error Analysis*, 2019,
//! theorem 2.4). TF32 rounds both factors to 11 significant bits, which adds at most `2 · 2⁻¹¹ max |A| |B|`.

#[cfg(feature = "cuda")]
mod device;
mod layer;
#[cfg(feature = "cuda")]
mod stress;

#[cfg(feature = "cuda")]
pub use device::Orders;
pub use layer::{LayerCase, Outcome};
#[cfg(feature = "cuda")]
pub use stress::{Interleavings, stress};

use super::oracle::{self, Outputs};
use super::{Arithmetic, Epilogue};
use crate::activation::{self, Nonlinearity};
use crate::gemm::cpu::{Factor, product};
use crate::{CpuElement, Element, Error, Random, Tensors, distance, largest, stored, wide};

/// Roundings of one element, apart from its sum.
const ROUNDINGS: f64 = 16.0;
/// The unit of rounding of `f32`.
const UNIT: f64 = 5.960_464_477_539_063e-8;
/// Standard deviations that a sum's error may have.
const LAMBDA: f64 = 7.0;
/// The largest slope of GELU.
const SLOPE: f64 = 1.13;

/// A random product.
#[derive(Debug, Clone)]
pub struct Case {
    /// `m`, `k`, `n`.
    pub sizes: [usize; 3],
    /// The epilogue.
    pub epilogue: Epilogue,
    /// How `f32` is multiplied.
    pub arithmetic: Arithmetic,
    /// `A [m, k]`.
    pub a: Vec<f64>,
    /// `B [k, n]`.
    pub b: Vec<f64>,
    /// `[n]`.
    pub bias: Vec<f64>,
    /// `[m, n]`.
    pub pre: Vec<f64>,
}

impl Case {
    /// Data such that the elements of `A B` are of the order of 1.
    pub fn random(sizes: [usize; 3], epilogue: Epilogue, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let [m, k, n] = sizes;
        let bound = 3.0 / (k.max(1) as f64).sqrt();
        Self {
            sizes,
            epilogue,
            arithmetic: Arithmetic::Full,
            a: random.vec(m * k, 1.0),
            b: random.vec(k * n, bound),
            bias: random.vec(n, 1.0),
            pre: random.vec(m * n, 3.0),
        }
    }

    /// The reference.
    fn exact(&self) -> Outputs {
        oracle::run(
            &self.a,
            &self.b,
            self.sizes,
            self.epilogue,
            &self.bias,
            &self.pre,
        )
    }

    /// Sums in `f32`, in order; every result rounded to `E`.
    pub fn naive<E: Element>(&self) -> Outputs {
        let [m, k, n] = self.sizes;
        let narrow = |x: f64| E::from_f64(x).to_f64();
        let sum = |terms: &mut dyn Iterator<Item = f64>| {
            f64::from(terms.fold(0.0f32, |sum, x| (f64::from(sum) + x) as f32))
        };
        let mut d: Vec<f64> = (0..m * n)
            .map(|i| sum(&mut (0..k).map(|j| self.a[i / n * k + j] * self.b[j * n + i % n])))
            .collect();
        if matches!(
            self.epilogue,
            Epilogue::Bias | Epilogue::Gelu { bias: true, .. }
        ) {
            d.iter_mut()
                .enumerate()
                .for_each(|(i, d)| *d += self.bias[i % n]);
        }
        d.iter_mut().for_each(|d| *d = narrow(*d));
        let mut pre = None;
        match self.epilogue {
            Epilogue::Add => d.iter_mut().zip(&self.pre).for_each(|(d, c)| *d += c),
            Epilogue::Gelu { save, .. } => {
                pre = save.then(|| d.clone());
                d = activation::oracle::forward(Nonlinearity::Gelu, &d);
            }
            Epilogue::GeluBackward { .. } => {
                d = activation::oracle::backward(Nonlinearity::Gelu, &self.pre, &d)
            }
            _ => {}
        }
        d.iter_mut().for_each(|d| *d = narrow(*d));
        let sums = match self.epilogue {
            Epilogue::GeluBackward { sums: true } => Some(
                (0..n)
                    .map(|j| sum(&mut (0..m).map(|i| d[i * n + j])))
                    .collect::<Vec<f64>>(),
            ),
            Epilogue::SumsOfA => Some(
                (0..m)
                    .map(|i| sum(&mut self.a[i * k..][..k].iter().copied()))
                    .collect(),
            ),
            Epilogue::SumsOfB => Some(
                (0..n)
                    .map(|j| sum(&mut (0..k).map(|i| self.b[i * n + j])))
                    .collect(),
            ),
            _ => None,
        };
        let sums = sums.map(|sums| sums.into_iter().map(narrow).collect());
        Outputs { d, pre, sums }
    }

    /// Runs the CPU kernels, each factor as it is or transposed.
    ///
    /// # Errors
    /// The errors of the kernels.
    pub fn turned<E: CpuElement>(&self, turns: [bool; 2]) -> Result<Tensors, Error> {
        let ([m, k, n], epilogue) = (self.sizes, self.epilogue);
        let stored_as = |x: &[f64], rows, columns, turn| match turn {
            true => stored::<E>(&oracle::transpose(x, rows, columns)),
            false => stored(x),
        };
        let a = stored_as(&self.a, m, k, turns[0]);
        let b = stored_as(&self.b, k, n, turns[1]);
        let [bias, pre] = [&self.bias, &self.pre].map(|x| stored::<E>(x));
        let reads_bias = epilogue.vector(m, n) > 0 && !epilogue.writes_vector();
        let saves = matches!(epilogue, Epilogue::Gelu { save: true, .. });
        let nan = |len: usize| vec![E::from_f64(f64::NAN); len];
        let mut d = nan(m * n);
        let mut second = match saves {
            true => Some(nan(m * n)),
            false => epilogue.writes_vector().then(|| nan(epilogue.vector(m, n))),
        };
        let factor = |data, transposed| Factor { data, transposed };
        let vectors = [
            reads_bias.then_some(&bias[..]),
            epilogue.reads_matrix().then_some(&pre[..]),
        ];
        let (a, b) = (factor(&a, turns[0]), factor(&b, turns[1]));
        product(
            self.sizes,
            a,
            b,
            epilogue,
            vectors,
            &mut d,
            second.as_deref_mut(),
        )?;
        let second = second.map(|x| wide(&x));
        let outputs = Outputs {
            d: wide(&d),
            pre: second.clone().filter(|_| saves),
            sums: second.filter(|_| !saves),
        };
        Ok(outputs.named())
    }
}

impl crate::Case for Case {
    fn numbers(&mut self) -> Vec<&mut Vec<f64>> {
        vec![&mut self.a, &mut self.b, &mut self.bias, &mut self.pre]
    }

    fn oracle<E: Element>(&self) -> Tensors {
        self.exact().named()
    }

    fn allowed<E: Element>(&self, truth: &Tensors) -> Tensors {
        let naive = self.naive::<E>().named();
        let [m, k, _] = self.sizes;
        let positive = |x: &[f64]| x.iter().map(|x| x.abs()).collect::<Vec<f64>>();
        let bound = largest(
            oracle::product(&positive(&self.a), &positive(&self.b), self.sizes).into_iter(),
        );
        let factors = match self.arithmetic {
            Arithmetic::Full => 0.0,
            Arithmetic::Tf32 => 2.0 * 2f64.powi(-11),
        };
        let of_product = SLOPE * bound * (factors + UNIT * LAMBDA * (k as f64).sqrt());
        // The terms of a sum are at most as large as the largest element.
        let of_sums = match self.epilogue {
            Epilogue::GeluBackward { .. } => {
                let scale = largest(truth.get("d").iter().map(|x| x.abs()));
                let terms = m as f64;
                terms.sqrt() * LAMBDA * (of_product / LAMBDA + UNIT * terms.sqrt() * scale)
            }
            Epilogue::SumsOfA => UNIT * LAMBDA * (k as f64).powf(1.5),
            Epilogue::SumsOfB => UNIT * LAMBDA * (k as f64).powf(1.5) * 3.0 / (k as f64).sqrt(),
            _ => 0.0,
        };
        Tensors::new(truth.iter().map(|(name, truth)| {
            let scale = largest(truth.iter().map(|x| x.abs()));
            let sum = if name == "sums" { of_sums } else { of_product };
            let allowed = 2.0 * distance(naive.get(name), truth)
                + E::EPSILON / 2.0 * ROUNDINGS.sqrt() * scale
                + sum;
            (name, vec![allowed; truth.len()])
        }))
    }

    fn cpu<E: CpuElement>(&self) -> Result<Tensors, Error> {
        self.turned::<E>([false, false])
    }

    #[cfg(feature = "gpu")]
    fn gpu(
        &self,
        client: &cubecl::client::Client,
        dtype: crate::gpu::Dtype,
    ) -> Result<Tensors, Error> {
        #[cfg(feature = "cuda")]
        let found = self.vendor(client, dtype, Orders::ROWS);
        #[cfg(not(feature = "cuda"))]
        let found = {
            let _ = (client, dtype);
            Err("there is no cuBLASLt in this build".to_string())
        };
        found.map_err(|reason| Error::Routine {
            routine: "cublaslt",
            reason,
        })
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;
    use crate::{Case as _, Comparison};

    #[test]
    fn the_naive_product_is_accepted_and_a_wrong_one_is_not() {
        for (seed, epilogue) in Epilogue::ALL.into_iter().enumerate() {
            let case = Case::random([5, 33, 7], epilogue, seed as u64).rounded::<bf16>();
            let naive = case.naive::<bf16>();
            let passes = |outputs: Outputs| {
                let all = case.compared::<bf16>(&outputs.named());
                all.iter().all(Comparison::passes)
            };
            assert!(passes(naive.clone()));
            let mut wrong = naive.clone();
            wrong.d[11] += 0.1;
            assert!(!passes(wrong), "{epilogue:?}");
            let mut wrong = naive;
            if let Some(sums) = &mut wrong.sums {
                sums[2] += 0.5;
                assert!(!passes(wrong), "{epilogue:?}");
            }
        }
    }
}
