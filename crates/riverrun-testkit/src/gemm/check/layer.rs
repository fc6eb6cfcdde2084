//! Random linear layers and MLPs, forward and every gradient, and the rule that accepts a result:
//!
//! ```text
//! max |found - reference| <= 2 max |naive - reference| + (eps / 2 √16 + e / 2 √(16 K)) max |reference|
//! ```
//!
//! The first two terms are those of products ([`super`]). The third is for sums: `e` is the `eps` of the arithmetic, `K` the
//! length of the longest sum, of at most four in a row, whose products and additions round `16 K` times at most.

use super::{ROUNDINGS, oracle};
use crate::Element;
use crate::activation::{self, Nonlinearity};
use crate::check::{Comparison, distance, largest};
use crate::gemm::Arithmetic;
use crate::recurrence::check::Random;

/// A layer's parameters, or the gradients of them.
#[derive(Debug, Clone, PartialEq)]
pub struct Layer {
    /// Features in and out.
    pub features: [usize; 2],
    /// `[I, O]`.
    pub weight: Vec<f64>,
    /// `[O]`.
    pub bias: Option<Vec<f64>>,
}

/// A linear layer, or two with GELU between: an MLP.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerCase {
    /// Rows of `x`.
    pub rows: usize,
    /// The layers.
    pub layers: Vec<Layer>,
    /// GELU after the first.
    pub gelu: bool,
    /// How `f32` is multiplied.
    pub arithmetic: Arithmetic,
    /// `[rows, I]`.
    pub x: Vec<f64>,
    /// `[rows, O]`.
    pub d_y: Vec<f64>,
}

/// The results of a layer: the output and every gradient, by name.
pub type Outcome = Vec<(String, Vec<f64>)>;

/// The sums and roundings of a form.
struct Way<'a> {
    sum: &'a dyn Fn(&mut dyn Iterator<Item = f64>) -> f64,
    /// The rounding of a factor of a product.
    factor: &'a dyn Fn(f64) -> f64,
    /// The rounding of a tensor's element.
    keep: &'a dyn Fn(f64) -> f64,
}

impl Way<'_> {
    fn product(&self, a: &[f64], b: &[f64], [m, k, n]: [usize; 3]) -> Vec<f64> {
        let factors = |x: &[f64]| x.iter().map(|&x| (self.factor)(x)).collect::<Vec<f64>>();
        let (a, b) = (factors(a), oracle::transpose(&factors(b), k, n));
        (0..m * n)
            .map(|i| {
                let (a, b) = (&a[i / n * k..][..k], &b[i % n * k..][..k]);
                (self.sum)(&mut a.iter().zip(b).map(|(a, b)| a * b))
            })
            .collect()
    }

    fn kept(&self, mut x: Vec<f64>) -> Vec<f64> {
        x.iter_mut().for_each(|x| *x = (self.keep)(*x));
        x
    }
}

impl LayerCase {
    /// An MLP if there are three `features`, a linear layer, with GELU or without, if there are two.
    pub fn random(rows: usize, features: &[usize], gelu: bool, bias: bool, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let layers: Vec<Layer> = features
            .windows(2)
            .map(|pair| Layer {
                features: [pair[0], pair[1]],
                weight: random.vec(pair[0] * pair[1], 3.0 / (pair[0] as f64).sqrt()),
                bias: bias.then(|| random.vec(pair[1], 1.0)),
            })
            .collect();
        Self {
            rows,
            gelu: gelu || layers.len() > 1,
            layers,
            arithmetic: Arithmetic::Full,
            x: random.vec(rows * features[0], 1.0),
            d_y: random.vec(rows * features[features.len() - 1], 1.0),
        }
    }

    /// The same with every number rounded to a storage type.
    pub fn rounded<E: Element>(mut self) -> Self {
        let round =
            |data: &mut Vec<f64>| data.iter_mut().for_each(|x| *x = E::from_f64(*x).to_f64());
        for layer in &mut self.layers {
            round(&mut layer.weight);
            layer.bias.iter_mut().for_each(round);
        }
        round(&mut self.x);
        round(&mut self.d_y);
        self
    }

    /// The reference.
    pub fn oracle(&self) -> Outcome {
        self.compute(&Way {
            sum: &|terms| terms.sum(),
            factor: &|x| x,
            keep: &|x| x,
        })
    }

    /// Sums in `f32` (`f64` if that is the storage type), in order; every tensor rounded to `E`.
    pub fn naive<E: Element>(&self) -> Outcome {
        let tf32 = self.arithmetic == Arithmetic::Tf32;
        let wide = E::EPSILON < f64::from(f32::EPSILON);
        self.compute(&Way {
            sum: &|terms| match wide {
                true => terms.sum(),
                false => f64::from(terms.fold(0.0f32, |sum, x| (f64::from(sum) + x) as f32)),
            },
            // To the nearest number of 11 significant bits.
            factor: &|x| match tf32 {
                true => f64::from(f32::from_bits(((x as f32).to_bits() + 0x1000) & !0x1fff)),
                false => x,
            },
            keep: &|x| E::from_f64(x).to_f64(),
        })
    }

    fn compute(&self, way: &Way) -> Outcome {
        let rows = self.rows;
        let (mut inputs, mut pres) = (Vec::new(), Vec::new());
        let mut x = self.x.clone();
        for (i, layer) in self.layers.iter().enumerate() {
            let [from, to] = layer.features;
            let mut pre = way.kept(way.product(&x, &layer.weight, [rows, from, to]));
            if let Some(bias) = &layer.bias {
                pre.iter_mut()
                    .enumerate()
                    .for_each(|(i, y)| *y += bias[i % to]);
            }
            let pre = way.kept(pre);
            inputs.push(std::mem::replace(
                &mut x,
                match self.gelu && i == 0 {
                    true => way.kept(activation::oracle::forward(Nonlinearity::Gelu, &pre)),
                    false => pre.clone(),
                },
            ));
            pres.push(pre);
        }
        let mut outcome = vec![("y".to_string(), x)];
        let mut d = self.d_y.clone();
        for (i, layer) in self.layers.iter().enumerate().rev() {
            let [from, to] = layer.features;
            if self.gelu && i == 0 {
                d = way.kept(activation::oracle::backward(
                    Nonlinearity::Gelu,
                    &pres[i],
                    &d,
                ));
            }
            let turned = oracle::transpose(&inputs[i], rows, from);
            let d_weight = way.kept(way.product(&turned, &d, [from, rows, to]));
            outcome.push((format!("d_weight {i}"), d_weight));
            if layer.bias.is_some() {
                let sums = (0..to).map(|j| (way.sum)(&mut d.iter().skip(j).step_by(to).copied()));
                outcome.push((format!("d_bias {i}"), way.kept(sums.collect())));
            }
            let turned = oracle::transpose(&layer.weight, from, to);
            d = way.kept(way.product(&d, &turned, [rows, to, from]));
        }
        outcome.push(("d_x".into(), d));
        outcome
    }

    /// Compares every tensor of a result in `E`.
    pub fn compare<E: Element>(&self, found: &Outcome) -> Vec<Comparison> {
        let (reference, naive) = (self.oracle(), self.naive::<E>());
        assert_eq!(found.len(), reference.len());
        let widths = self.layers.iter().flat_map(|layer| layer.features);
        let terms = widths.fold(self.rows, usize::max) as f64;
        let arithmetic = E::EPSILON.min(f64::from(f32::EPSILON));
        let floor = (E::EPSILON + arithmetic * terms.sqrt()) / 2.0 * ROUNDINGS.sqrt();
        let tensors = found.iter().zip(naive.iter().zip(&reference));
        tensors
            .map(|((name, found), ((_, naive), (expected, reference)))| {
                assert_eq!(name, expected);
                Comparison {
                    tensor: name.clone(),
                    error: distance(found, reference),
                    allowed: 2.0 * distance(naive, reference)
                        + floor * largest(reference.iter().map(|x| x.abs())),
                }
            })
            .collect()
    }
}
