//! Small vectors as one, so that their sums over the ranks take no longer than that of their bytes: NCCL adds up each vector by itself.

use burn::tensor::{DType, Device, Tensor};
use riverrun::training::{FlatTensor, from_flat, to_flat};

use crate::Error;

/// Bytes from which on a vector stays alone.
const ALONE: usize = 16 << 20;
/// The most bytes of a bucket.
const BUCKET: usize = 64 << 20;
/// Vectors start at multiples of so many elements, to be copied 16 bytes at a time.
const APART: usize = 8;

/// Vectors of one dtype, each with its number among all, one after another.
pub(super) struct Bucket {
    dtype: DType,
    device: Device,
    vectors: Vec<(usize, FlatTensor)>,
    len: usize,
}

/// Takes the small vectors out, where there are several of a dtype: those that are left keep their numbers.
pub(super) fn fill(
    vectors: Vec<Tensor<1>>,
) -> Result<(Vec<Bucket>, Vec<Option<Tensor<1>>>), Error> {
    let mut buckets: Vec<Bucket> = Vec::new();
    let mut left = Vec::with_capacity(vectors.len());
    for (number, vector) in vectors.into_iter().enumerate() {
        let ([len], dtype) = (vector.dims(), vector.dtype());
        if len * dtype.size() >= ALONE {
            left.push(Some(vector));
            continue;
        }
        let most = BUCKET / dtype.size();
        let fits = |bucket: &&mut Bucket| bucket.dtype == dtype && bucket.len + len <= most;
        let bucket = match buckets.iter_mut().find(fits) {
            Some(bucket) => bucket,
            None => {
                let (device, vectors) = (vector.device(), Vec::new());
                buckets.push(Bucket {
                    dtype,
                    device,
                    vectors,
                    len: 0,
                });
                buckets.last_mut().expect("it was pushed")
            }
        };
        let start = bucket.len;
        bucket
            .vectors
            .push((number, FlatTensor::new(vector, start, 0)?));
        bucket.len = (start + len).next_multiple_of(APART);
        left.push(None);
    }
    let (one, buckets): (Vec<_>, Vec<_>) = buckets.into_iter().partition(|b| b.vectors.len() == 1);
    for (number, flat) in one.into_iter().flat_map(|bucket| bucket.vectors) {
        left[number] = Some(flat.into_tensor());
    }
    Ok((buckets, left))
}

impl Bucket {
    /// All vectors as one; what is between them is anything.
    pub fn whole(&self) -> Result<Tensor<1>, Error> {
        let flat: Vec<FlatTensor> = self.vectors.iter().map(|(_, flat)| flat.clone()).collect();
        let whole = Tensor::empty([self.len], (&self.device, self.dtype));
        Ok(to_flat(&flat, whole)?)
    }

    /// Puts every vector's part of `whole` in its place among all, in memory of its own.
    pub fn empty(self, whole: &Tensor<1>, all: &mut [Option<Tensor<1>>]) -> Result<(), Error> {
        let mut numbers = Vec::with_capacity(self.vectors.len());
        let mut places = Vec::with_capacity(self.vectors.len());
        for (number, flat) in self.vectors {
            let start = flat.place().start;
            let [len] = flat.into_tensor::<1>().dims();
            let place = Tensor::<1>::empty([len], (&self.device, self.dtype));
            places.push(FlatTensor::new(place, start, 0)?);
            numbers.push(number);
        }
        for (number, flat) in numbers.into_iter().zip(from_flat(places, whole)?) {
            all[number] = Some(flat.into_tensor());
        }
        Ok(())
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;

    #[test]
    fn vectors_come_back_in_their_order() {
        let device = Device::flex();
        let vector =
            |numbers: &[f32], dtype| Tensor::<1>::from_floats(numbers, &device).cast(dtype);
        let large = Tensor::<1>::ones([ALONE / 4], &device);
        let vectors = vec![
            vector(&[1.0, 2.0, 3.0], DType::F32),
            large,
            vector(&[4.0], DType::BF16),
            vector(&[], DType::F32),
            vector(&[5.0; 9], DType::F32),
        ];
        let expected: Vec<_> = vectors.iter().map(|x| x.clone().into_data()).collect();
        let (buckets, mut all) = fill(vectors).unwrap();
        let there: Vec<bool> = all.iter().map(Option::is_some).collect();
        assert_eq!(there, [false, true, true, false, false]);
        assert_eq!(buckets.len(), 1);
        for bucket in buckets {
            let whole = bucket.whole().unwrap();
            bucket.empty(&whole, &mut all).unwrap();
        }
        let found: Vec<_> = all.into_iter().map(|x| x.unwrap().into_data()).collect();
        assert_eq!(found, expected);
    }
}
