//! Sums of vectors added to many tensors, and copies between both.
//!
//! For each of `K` directions a product and a sum are rounded, where they are not one operation, each by `ε / 2` of at most
//! the sum of the terms' sizes. That sum has grown by its own roundings, for which one `ε` more counts: the numbers are within
//! `(K + 1) ε` times the sum of the sizes. Copies have the same bits.

pub mod oracle;

use riverrun_kernels::flat::{Place, cpu};
use riverrun_kernels::{CpuElement, Element, Error};

use crate::{Case, Random, Tensors, rounded, stored, wide};

/// Tensors of several sizes, and vectors of all of them, in `f64` but representable in `f32`.
#[derive(Debug, Clone)]
pub struct Flat {
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

/// Groups of tensors.
const GROUPS: usize = 3;

impl Flat {
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

    /// The tensors after the addition; their elements, one tensor after another; the elements of the first direction, as tensors.
    fn tensors(added: Vec<Vec<f64>>, taken: Vec<f64>, put: Vec<Vec<f64>>) -> Tensors {
        let (added, put) = (added.concat(), put.concat());
        Tensors::new([("added", added), ("taken", taken), ("put", put)])
    }
}

/// The storage type is that of the copies; additions are in `f32`.
impl Case for Flat {
    fn numbers(&mut self) -> Vec<&mut Vec<f64>> {
        let tensors = self.tensors.iter_mut();
        tensors.chain(&mut self.directions).collect()
    }

    fn oracle<E: Element>(&self) -> Tensors {
        let directions: Vec<&[f64]> = self.directions.iter().map(Vec::as_slice).collect();
        let mut added = self.tensors.clone();
        for (place, p) in self.places.iter().zip(&mut added) {
            oracle::add(*place, p, &directions, &self.coefficients);
        }
        let part = |place: &Place| self.directions[0][place.start..][..place.len].to_vec();
        let put = self.places.iter().map(part).collect();
        Self::tensors(added, self.tensors.concat(), put)
    }

    fn allowed<E: Element>(&self, truth: &Tensors) -> Tensors {
        let count = self.directions.len();
        let slack = (count + 1) as f64 * f64::from(f32::EPSILON);
        let size = |place: &Place, i: usize| -> f64 {
            let row = &self.coefficients[place.group * count..];
            let terms = self.directions.iter().zip(row);
            terms.map(|(d, c)| (c * d[place.start + i]).abs()).sum()
        };
        let mut sizes = Vec::with_capacity(self.total);
        for (place, p) in self.places.iter().zip(&self.tensors) {
            sizes.extend((0..p.len()).map(|i| p[i].abs() + size(place, i)));
        }
        truth.map(|name, i, _| match name {
            "added" => slack * sizes[i],
            _ => 0.0,
        })
    }

    fn cpu<E: CpuElement>(&self) -> Result<Tensors, Error> {
        let narrow = |x: &Vec<f64>| stored::<f32>(x);
        let wide = |x: &Vec<f32>| wide(x);
        let directions: Vec<Vec<f32>> = self.directions.iter().map(narrow).collect();
        let slices: Vec<&[f32]> = directions.iter().map(Vec::as_slice).collect();
        let coefficients = narrow(&self.coefficients);
        let mut tensors: Vec<Vec<f32>> = self.tensors.iter().map(narrow).collect();
        for (place, p) in self.places.iter().zip(&mut tensors) {
            cpu::add(*place, p, &slices, &coefficients)?;
        }
        let added = tensors.iter().map(wide).collect();
        let mut tensors: Vec<Vec<E>> = self.tensors.iter().map(|x| stored(x)).collect();
        let (direction, mut taken) = (
            stored::<E>(&self.directions[0]),
            vec![E::default(); self.total],
        );
        for (place, p) in self.places.iter().zip(&mut tensors) {
            cpu::take(*place, p, &mut taken)?;
            cpu::put(*place, p, &direction)?;
        }
        let put = tensors.iter().map(|x| crate::wide(x)).collect();
        Ok(Self::tensors(added, crate::wide(&taken), put))
    }

    #[cfg(feature = "gpu")]
    fn gpu(
        &self,
        client: &cubecl::client::Client,
        dtype: riverrun_kernels::gpu::Dtype,
    ) -> Result<Tensors, Error> {
        use crate::transfer::{download, poison, upload};
        use riverrun_kernels::flat::gpu::{Buffer, add, put, take};
        use riverrun_kernels::gpu::Dtype;
        let buffers = |dtype| -> Vec<Buffer> {
            let buffer = |(place, p): (&Place, &Vec<f64>)| Buffer {
                place: *place,
                p: upload(client, dtype, p),
            };
            self.places.iter().zip(&self.tensors).map(buffer).collect()
        };
        let down = |dtype, tensors: &[Buffer]| -> Vec<Vec<f64>> {
            let read = |t: &Buffer| download(client, dtype, t.p.clone(), t.place.len);
            tensors.iter().map(read).collect()
        };
        let tensors = buffers(Dtype::F32);
        let directions = self.directions.iter();
        let directions: Vec<_> = directions.map(|x| upload(client, Dtype::F32, x)).collect();
        let coefficients = upload(client, Dtype::F32, &self.coefficients);
        add(
            client,
            &tensors,
            &directions,
            self.total,
            &coefficients,
            GROUPS,
        )?;
        let added = down(Dtype::F32, &tensors);
        let (tensors, vector) = (buffers(dtype), poison(client, dtype, self.total));
        take(client, dtype, &tensors, &vector, self.total)?;
        let direction = upload(client, dtype, &self.directions[0]);
        put(client, dtype, &tensors, &direction, self.total)?;
        let taken = download(client, dtype, vector, self.total);
        Ok(Self::tensors(added, taken, down(dtype, &tensors)))
    }
}
