//! Random problems, the forms run on them, and the rule that accepts a result.
//!
//! For each of `K` directions a product and a sum are rounded, where they are not one operation, each by `ε / 2` of at most
//! the sum of the terms' sizes. That sum has grown by its own roundings, for which one `ε` more counts: the numbers are within
//! `(K + 1) ε` times the sum of the sizes. Copies have the same bits.

use super::{Place, cpu, oracle};
use crate::Error;
use crate::check::{Comparison, Random, rounded, same_bits, stored, wide, worst};

/// Tensors of several sizes, and vectors of all of them, in `f64` but representable in `f32`.
#[derive(Debug, Clone)]
pub struct Case {
    /// The places, one tensor after another.
    pub places: Vec<Place>,
    /// The elements of a vector.
    pub total: usize,
    /// The tensors.
    pub tensors: Vec<Vec<f64>>,
    /// The directions of the addition.
    pub directions: Vec<Vec<f64>>,
    /// A row for each group.
    pub coefficients: Vec<f64>,
}

/// The results: the tensors after the addition, the vector taken from them, and the tensors put back from another vector.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// After the addition.
    pub added: Vec<Vec<f64>>,
    /// Their elements, one tensor after another.
    pub taken: Vec<f64>,
    /// The elements of the first direction, as tensors.
    pub put: Vec<Vec<f64>>,
}

impl Outcome {
    /// Whether all numbers have the same bits.
    pub fn same_bits(&self, other: &Self) -> bool {
        fn tensors(of: &Outcome) -> impl Iterator<Item = &[f64]> {
            let lists = of.added.iter().chain(&of.put).chain([&of.taken]);
            lists.map(Vec::as_slice)
        }
        same_bits(tensors(self), tensors(other))
    }
}

/// Groups of tensors.
const GROUPS: usize = 3;

impl Case {
    /// Tensors of these sizes in three groups, and some directions. One element of the last tensor is NaN.
    pub fn random(sizes: &[usize], directions: usize, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut narrow = |n: usize, bound: f64| rounded::<f32>(&random.vec(n, bound));
        let mut start = 0;
        let places = sizes.iter().enumerate().map(|(n, &len)| {
            let place = Place {
                start,
                len,
                group: n % GROUPS,
            };
            start += len;
            place
        });
        let places: Vec<Place> = places.collect();
        let mut tensors: Vec<Vec<f64>> = sizes.iter().map(|&n| narrow(n, 2.0)).collect();
        if let Some(last) = tensors.last_mut().and_then(|tensor| tensor.last_mut()) {
            *last = f64::NAN;
        }
        Self {
            places,
            total: start,
            tensors,
            directions: (0..directions).map(|_| narrow(start, 1.0)).collect(),
            coefficients: narrow(GROUPS * directions, 3.0),
        }
    }

    /// Runs the reference.
    pub fn oracle(&self) -> Outcome {
        let directions: Vec<&[f64]> = self.directions.iter().map(Vec::as_slice).collect();
        let mut added = self.tensors.clone();
        for (place, p) in self.places.iter().zip(&mut added) {
            oracle::add(*place, p, &directions, &self.coefficients);
        }
        let part = |place: &Place| self.directions[0][place.start..][..place.len].to_vec();
        Outcome {
            taken: added.concat(),
            put: self.places.iter().map(part).collect(),
            added,
        }
    }

    /// Runs the CPU kernels.
    ///
    /// # Errors
    /// Those of the kernels.
    pub fn cpu(&self) -> Result<Outcome, Error> {
        let narrow = |x: &Vec<f64>| stored::<f32>(x);
        let wide = |x: &Vec<f32>| wide(x);
        let directions: Vec<Vec<f32>> = self.directions.iter().map(narrow).collect();
        let slices: Vec<&[f32]> = directions.iter().map(Vec::as_slice).collect();
        let coefficients = narrow(&self.coefficients);
        let mut tensors: Vec<Vec<f32>> = self.tensors.iter().map(narrow).collect();
        let mut taken = vec![f32::NAN; self.total];
        for (place, p) in self.places.iter().zip(&mut tensors) {
            cpu::add(*place, p, &slices, &coefficients)?;
            cpu::take(*place, p, &mut taken)?;
        }
        let added = tensors.iter().map(wide).collect();
        for (place, p) in self.places.iter().zip(&mut tensors) {
            cpu::put(*place, p, &directions[0])?;
        }
        Ok(Outcome {
            added,
            taken: wide(&taken),
            put: tensors.iter().map(wide).collect(),
        })
    }

    /// Runs the GPU kernels.
    ///
    /// # Errors
    /// Those of the kernels.
    #[cfg(feature = "gpu")]
    pub fn gpu(&self, client: &cubecl::client::Client) -> Result<Outcome, Error> {
        use super::gpu::{Buffer, add, put, take};
        use crate::check::transfer::{download, poison, upload};
        use crate::gpu::Dtype;
        let up = |x: &Vec<f64>| upload(client, Dtype::F32, x);
        let buffer = |(place, p): (&Place, &Vec<f64>)| Buffer {
            place: *place,
            p: up(p),
        };
        let tensors: Vec<Buffer> = self.places.iter().zip(&self.tensors).map(buffer).collect();
        let directions: Vec<_> = self.directions.iter().map(up).collect();
        let coefficients = up(&self.coefficients);
        let down = || -> Vec<Vec<f64>> {
            let read = |t: &Buffer| download(client, Dtype::F32, t.p.clone(), t.place.len);
            tensors.iter().map(read).collect()
        };
        add(
            client,
            &tensors,
            &directions,
            self.total,
            &coefficients,
            GROUPS,
        )?;
        let added = down();
        let vector = poison(client, Dtype::F32, self.total);
        take(client, &tensors, &vector, self.total)?;
        put(client, &tensors, &directions[0], self.total)?;
        Ok(Outcome {
            added,
            taken: download(client, Dtype::F32, vector, self.total),
            put: down(),
        })
    }

    /// Compares the sums, and the copies exactly.
    pub fn compare(&self, found: &Outcome, reference: &Outcome) -> Vec<Comparison> {
        let count = self.directions.len();
        let slack = (count + 1) as f64 * f64::from(f32::EPSILON);
        let size = |place: &Place, i: usize| -> f64 {
            let row = &self.coefficients[place.group * count..];
            let terms = self.directions.iter().zip(row);
            terms.map(|(d, c)| (c * d[place.start + i]).abs()).sum()
        };
        let mut sizes = Vec::with_capacity(self.total);
        for (place, p) in self.places.iter().zip(&self.tensors) {
            sizes.extend((0..p.len()).map(|i| seen(p[i]).abs() + size(place, i)));
        }
        let flat = |tensors: &[Vec<f64>]| -> Vec<f64> {
            tensors.iter().flatten().copied().map(seen).collect()
        };
        let added = flat(&found.added);
        let taken: Vec<f64> = found.taken.iter().copied().map(seen).collect();
        vec![
            worst("added", &added, &flat(&reference.added), |i| {
                slack * sizes[i]
            }),
            worst("taken", &taken, &added, |_| 0.0),
            worst("put", &flat(&found.put), &flat(&reference.put), |_| 0.0),
        ]
    }
}

/// A number that no result has stands for NaN, so that where the reference has NaN, only NaN passes.
fn seen(x: f64) -> f64 {
    if x.is_nan() { 1e30 } else { x }
}
