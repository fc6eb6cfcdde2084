//! Numbers to tensors and back, for operations that are checked as users call them.

use burn::module::{ModuleMapper, Param};
use burn::tensor::{Bool, Device, FloatDType, Tensor, TensorData};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::{Element, Storage};

/// `count` numbers in `(-bound, bound)`, rounded to the type `E`.
pub fn random<E: Element>(seed: u64, count: usize, bound: f64) -> Vec<f64> {
    let mut generator = ChaCha8Rng::seed_from_u64(seed);
    let mut number = || E::from_f64(generator.random_range(-bound..bound)).to_f64();
    (0..count).map(|_| number()).collect()
}

/// A tensor of these numbers, which the type represents exactly.
pub fn upload<const D: usize>(
    numbers: &[f64],
    shape: [usize; D],
    storage: Storage,
    device: &Device,
) -> Tensor<D> {
    let dtype = storage.dtype();
    match storage {
        Storage::F64 => {
            Tensor::from_data(TensorData::new(numbers.to_vec(), shape), (device, dtype))
        }
        _ => {
            let numbers: Vec<f32> = numbers.iter().map(|&x| x as f32).collect();
            let data = TensorData::new(numbers, shape);
            Tensor::<D>::from_data(data, device).cast(dtype)
        }
    }
}

/// A mask, `[B, T]`.
pub fn mask(marks: &[bool], shape: [usize; 2], device: &Device) -> Tensor<2, Bool> {
    Tensor::from_data(TensorData::new(marks.to_vec(), shape), device)
}

/// The numbers of a tensor.
pub fn download<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    tensor.into_data().iter::<f64>().collect()
}

/// Where tensors of numbers are made: an autodiff device, and their type.
pub struct Place {
    device: Device,
    storage: Storage,
}

impl Place {
    /// Tensors of a type on a device.
    pub fn new(device: &Device, storage: Storage) -> Self {
        let device = device.clone().autodiff();
        Self { device, storage }
    }

    /// The device without autodiff.
    pub fn plain(&self) -> Device {
        self.device.clone().inner()
    }

    /// A constant.
    pub fn tensor<const D: usize>(&self, numbers: &[f64], shape: [usize; D]) -> Tensor<D> {
        upload(numbers, shape, self.storage, &self.device)
    }

    /// A tensor that gets a gradient.
    pub fn leaf<const D: usize>(&self, numbers: &[f64], shape: [usize; D]) -> Tensor<D> {
        self.tensor(numbers, shape).require_grad()
    }

    /// A mask, `[B, T]`.
    pub fn mask(&self, marks: &[bool], shape: [usize; 2]) -> Tensor<2, Bool> {
        mask(marks, shape, &self.device)
    }
}

/// The gradient of a leaf, if any.
pub fn gradient<const D: usize>(leaf: &Tensor<D>, gradients: &burn::tensor::Gradients) -> Vec<f64> {
    leaf.grad(gradients).map_or_else(Vec::new, download)
}

/// Whether two results are the same, bit for bit.
pub fn same_bits(a: &[Vec<f64>], b: &[Vec<f64>]) -> bool {
    let bits = |all: &[Vec<f64>]| -> Vec<Vec<u64>> {
        let bits = |x: &Vec<f64>| x.iter().map(|x| x.to_bits()).collect();
        all.iter().map(bits).collect()
    };
    bits(a) == bits(b)
}

/// Puts a copy of the weights on a device in a format, by way of the host.
pub struct Copied<'a> {
    /// The device.
    pub device: &'a Device,
    /// The format.
    pub dtype: FloatDType,
}

impl ModuleMapper for Copied<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let data = param.val().into_data().convert::<f32>();
        Param::from_tensor(Tensor::<D>::from_data(data, self.device).cast(self.dtype))
    }
}
