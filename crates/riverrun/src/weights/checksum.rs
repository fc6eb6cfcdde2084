//! Checksums of weights: XXH3 over names, types, shapes and numbers.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Bool, DType, Int, Tensor, TensorData};
use xxhash_rust::xxh3::Xxh3;

/// The sum of the tensors so far.
pub(super) struct Checksum(Xxh3);

impl Checksum {
    pub(super) fn new() -> Self {
        Self(Xxh3::new())
    }

    pub(super) fn add(&mut self, name: &str, dtype: DType, shape: &[usize], bytes: &[u8]) {
        let mut number = |n: usize| self.0.update(&(n as u64).to_le_bytes());
        number(name.len());
        number(shape.len());
        shape.iter().copied().for_each(&mut number);
        number(bytes.len());
        self.0.update(name.as_bytes());
        self.0.update(format!("{dtype:?}").as_bytes());
        self.0.update(bytes);
    }

    /// Sixteen hexadecimal digits.
    pub(super) fn finish(&self) -> String {
        format!("{:016x}", self.0.digest())
    }
}

/// A checksum of all parameters of a module, in order: sixteen hexadecimal digits, the same on every machine.
///
/// To detect damage: compare the checksum of a module that was loaded with the one taken when it was saved.
///
/// # Panics
/// If the device fails while a parameter is read.
pub fn checksum<M: Module>(module: &M) -> String {
    struct Sum(Checksum);
    impl Sum {
        fn data(&mut self, data: &TensorData) {
            self.0.add("", data.dtype(), data.shape(), data.as_bytes());
        }
    }
    impl ModuleVisitor for Sum {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.data(&param.val().into_data());
        }

        fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
            self.data(&param.val().into_data());
        }

        fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
            self.data(&param.val().into_data());
        }
    }
    let mut sum = Sum(Checksum::new());
    module.visit(&mut sum);
    sum.0.finish()
}
