//! An open file of weights.

use std::collections::BTreeMap;
use std::path::Path;

use burn::module::Param;
use burn::nn::Linear;
use burn::tensor::{Tensor, TensorData};
use burn_store::{bridge, burn_pack};
use tempfile::NamedTempFile;

use super::{archive, failed, is_safetensors, read};
use crate::Error;
use crate::nn::like;

/// A file whose tensors are taken one by one.
pub struct Source {
    /// Its path.
    pub file: String,
    /// Those not taken yet, by name.
    pub tensors: BTreeMap<String, burn_pack::Tensor>,
    /// A corrected copy has to last until its tensors have been read.
    _copy: Option<NamedTempFile>,
}

impl Source {
    /// Opens a safetensors file, or else what `torch.save` writes.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let copy = match is_safetensors(path) {
            true => None,
            false => archive::readable_copy(path).map_err(|error| failed(path, error))?,
        };
        let tensors = read(path, copy.as_ref().map_or(path, |copy| copy.path()))?;
        Ok(Self {
            file: path.display().to_string(),
            tensors,
            _copy: copy,
        })
    }

    /// The numbers of a tensor of this shape.
    pub fn take(&mut self, name: &str, expected: &[usize]) -> Result<TensorData, Error> {
        let (file, name) = (self.file.clone(), name.to_string());
        let Some(tensor) = self.tensors.remove(&name) else {
            return Err(Error::MissingTensor { file, name });
        };
        let (expected, found) = (expected.to_vec(), tensor.shape.to_vec());
        if expected != found {
            return Err(Error::TensorShape {
                file,
                name,
                expected,
                found,
            });
        }
        if !tensor.dtype.is_float() {
            let reason = format!("tensor `{name}` holds {:?}, not floats", tensor.dtype);
            return Err(Error::File { file, reason });
        }
        let data = bridge::into_data(tensor).map_err(|error| Error::File {
            file: file.clone(),
            reason: error.to_string(),
        })?;
        if !data.iter::<f64>().all(f64::is_finite) {
            let reason = format!("tensor `{name}` holds numbers that are not finite");
            return Err(Error::File { file, reason });
        }
        Ok(data)
    }

    /// Refuses a head that is not the table of the embedding, `table`.
    pub fn tied_head(&mut self, table: &TensorData) -> Result<(), Error> {
        const HEAD: &str = "lm_head.weight";
        let mut names = self.tensors.keys();
        let Some(name) = names.find(|name| name.ends_with(HEAD)).cloned() else {
            return Ok(());
        };
        let head = self.take(&name, table.shape())?;
        if !head.iter::<f64>().eq(table.iter::<f64>()) {
            let file = &self.file;
            return Err(Error::Unsupported(format!(
                "{file}: tensor `{name}` is not the embedding's: a head of its own is not supported"
            )));
        }
        Ok(())
    }

    /// Puts a tensor of a parameter's shape into it.
    pub fn replace<const D: usize>(
        &mut self,
        param: &mut Param<Tensor<D>>,
        name: String,
    ) -> Result<(), Error> {
        let data = self.take(&name, &param.val().dims())?;
        put(param, data);
        Ok(())
    }

    /// Puts the weight of one of PyTorch's linear layers, whose outputs are its first dimension, and its bias into a layer.
    pub fn linear(&mut self, layer: &mut Linear, name: &str) -> Result<(), Error> {
        let [inputs, outputs] = layer.weight.val().dims();
        let data = self.take(&format!("{name}.weight"), &[outputs, inputs])?;
        put(&mut layer.weight, transposed(data, [outputs, inputs]));
        match &mut layer.bias {
            Some(bias) => self.replace(bias, format!("{name}.bias")),
            None => Ok(()),
        }
    }

    /// Refuses tensors that have not been taken.
    pub fn finish(self) -> Result<(), Error> {
        match self.tensors.into_keys().next() {
            Some(name) => Err(Error::SurplusTensor {
                file: self.file,
                name,
            }),
            None => Ok(()),
        }
    }
}

/// Puts numbers into a parameter of their shape.
pub fn put<const D: usize>(param: &mut Param<Tensor<D>>, data: TensorData) {
    *param = param.clone().map(|old| like(&old, data));
}

/// A matrix of `rows` rows transposed.
pub fn transposed(data: TensorData, [rows, columns]: [usize; 2]) -> TensorData {
    let dtype = data.dtype();
    let bytes = match dtype.size() {
        2 => turned::<2>(data.as_bytes(), [rows, columns]),
        4 => turned::<4>(data.as_bytes(), [rows, columns]),
        _ => turned::<8>(data.as_bytes(), [rows, columns]),
    };
    TensorData::from_bytes_vec(bytes, [columns, rows], dtype)
}

/// Numbers of `N` bytes, tile by tile: a column of a large matrix has each number on a cache line of its own.
fn turned<const N: usize>(bytes: &[u8], [rows, columns]: [usize; 2]) -> Vec<u8> {
    const TILE: usize = 64;
    let (from, _) = bytes.as_chunks::<N>();
    let mut to = vec![[0; N]; from.len()];
    for first_row in (0..rows).step_by(TILE) {
        for first_column in (0..columns).step_by(TILE) {
            for column in first_column..(first_column + TILE).min(columns) {
                for row in first_row..(first_row + TILE).min(rows) {
                    to[column * rows + row] = from[row * columns + column];
                }
            }
        }
    }
    to.into_flattened()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_matrix_larger_than_a_tile_is_transposed() {
        let (rows, columns) = (70, 131);
        let numbers: Vec<f32> = (0..rows * columns).map(|n| n as f32).collect();
        let data = TensorData::new(numbers.clone(), [rows, columns]);
        let found = transposed(data, [rows, columns]);
        assert_eq!(found.shape().to_vec(), [columns, rows]);
        let expected = (0..rows * columns).map(|n| numbers[n % rows * columns + n / rows]);
        assert!(found.iter::<f32>().eq(expected));
    }
}
