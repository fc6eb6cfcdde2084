//! The tensors of a published model, which are all checked before one is read.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

use burn::module::Param;
use burn::nn::Linear;
use burn::tensor::{DType, Element, FloatDType, Tensor, TensorData};
use burn_store::{bridge, burn_pack};
use half::{bf16, f16};
use tempfile::NamedTempFile;

use super::source::transposed;
use super::{archive, failed, is_safetensors, read};
use crate::Error;

/// Where the numbers of a parameter are in a file.
#[derive(Debug, Clone)]
pub struct Stored {
    pieces: Vec<Piece>,
    transposed: bool,
    plus_one: bool,
    wide: bool,
}

/// Rows of a tensor.
#[derive(Debug, Clone)]
struct Piece {
    name: String,
    /// Its shape in the file.
    shape: Vec<usize>,
    /// All of them when empty.
    rows: Vec<Range<usize>>,
}

impl Stored {
    /// A whole tensor of this shape.
    pub fn whole(name: impl Into<String>, shape: impl Into<Vec<usize>>) -> Self {
        Self::rows(name, shape, [])
    }

    /// Rows of a tensor of this shape, one range below the other; all when there are none.
    pub fn rows(
        name: impl Into<String>,
        shape: impl Into<Vec<usize>>,
        rows: impl IntoIterator<Item = Range<usize>>,
    ) -> Self {
        let (name, shape, rows) = (name.into(), shape.into(), rows.into_iter().collect());
        Self {
            pieces: vec![Piece { name, shape, rows }],
            transposed: false,
            plus_one: false,
            wide: false,
        }
    }

    /// The rows of another one below these.
    pub fn below(mut self, other: Self) -> Self {
        self.pieces.extend(other.pieces);
        self
    }

    /// A matrix whose rows are the columns of the parameter.
    pub fn transposed(mut self) -> Self {
        self.transposed = true;
        self
    }

    /// Numbers to which 1 is added.
    pub fn plus_one(mut self) -> Self {
        self.plus_one = true;
        self
    }

    /// Numbers that stay in `f32` whatever the format of the others.
    pub fn wide(mut self) -> Self {
        self.wide = true;
        self
    }
}

/// The files of a model. Until [`load`](Self::load) each parameter is compared with the files alone, by name, shape and type.
pub struct Reader {
    label: String,
    tensors: BTreeMap<String, burn_pack::Tensor>,
    /// Names that a parameter has asked for.
    used: BTreeSet<String>,
    /// The format of parameters, once they are loaded.
    dtype: Option<FloatDType>,
    /// The last tensor, of which another parameter may need other rows.
    last: Option<(String, TensorData)>,
    /// Corrected copies of archives have to last until their tensors have been read.
    _copies: Vec<NamedTempFile>,
}

impl Reader {
    /// Opens the files of a model, which errors call `label`: safetensors, or else what `torch.save` writes.
    ///
    /// # Errors
    /// A file that cannot be read; a tensor that is in two of them.
    pub fn open(label: &Path, files: &[PathBuf]) -> Result<Self, Error> {
        let (mut tensors, mut copies) = (BTreeMap::new(), Vec::new());
        for path in files {
            let copy = match is_safetensors(path) {
                true => None,
                false => archive::readable_copy(path).map_err(|error| failed(path, error))?,
            };
            let readable = copy.as_ref().map_or(path.as_path(), |copy| copy.path());
            for (name, tensor) in read(path, readable)? {
                if tensors.insert(name.clone(), tensor).is_some() {
                    return Err(failed(path, format!("tensor `{name}` is in two files")));
                }
            }
            copies.extend(copy);
        }
        Ok(Self {
            label: label.display().to_string(),
            tensors,
            used: BTreeSet::new(),
            dtype: None,
            last: None,
            _copies: copies,
        })
    }

    /// Leaves out tensors that the model has no use for.
    pub fn ignore(&mut self, unused: impl Fn(&str) -> bool) {
        self.tensors.retain(|name, _| !unused(name));
    }

    /// The names of the tensors.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// The shape of a tensor.
    ///
    /// # Errors
    /// No such tensor.
    pub fn shape(&self, name: &str) -> Result<Vec<usize>, Error> {
        Ok(self.tensor(name)?.shape.to_vec())
    }

    /// The format of most numbers.
    pub fn dtype(&self) -> Option<DType> {
        let largest = self
            .tensors
            .values()
            .max_by_key(|tensor| tensor.shape.num_elements());
        largest.map(|tensor| tensor.dtype)
    }

    /// From here on, parameters are filled.
    ///
    /// # Errors
    /// A tensor that no parameter has asked for.
    pub fn load(&mut self, dtype: FloatDType) -> Result<(), Error> {
        let file = self.label.clone();
        match self.tensors.keys().find(|name| !self.used.contains(*name)) {
            Some(name) => Err(Error::SurplusTensor {
                file,
                name: name.clone(),
            }),
            None => {
                self.dtype = Some(dtype);
                Ok(())
            }
        }
    }

    fn tensor(&self, name: &str) -> Result<&burn_pack::Tensor, Error> {
        self.tensors.get(name).ok_or_else(|| Error::MissingTensor {
            file: self.label.clone(),
            name: name.into(),
        })
    }

    fn refused(&self, name: &str, reason: &str) -> Error {
        let reason = format!("tensor `{name}` {reason}");
        Error::File {
            file: self.label.clone(),
            reason,
        }
    }

    /// Compares a parameter with the files, or fills it.
    ///
    /// # Errors
    /// A tensor that is missing, has another shape, holds no floats or a number that is not finite.
    ///
    /// # Panics
    /// If the stored numbers are not as many as the parameter's.
    pub fn fill<const D: usize>(
        &mut self,
        param: &mut Param<Tensor<D>>,
        stored: &Stored,
    ) -> Result<(), Error> {
        let shape = param.lazy_shape();
        let rows: usize = stored.pieces.iter().map(Piece::count).sum();
        let row: usize = stored.pieces[0].shape[1..].iter().product();
        let all = (stored.pieces.iter()).map(|piece| (&piece.name, piece.numbers()));
        let sum: usize = all.clone().map(|(_, numbers)| numbers).sum();
        let names = all.map(|(name, _)| name);
        assert_eq!(sum, shape.num_elements(), "{names:?}: {shape:?}");
        for piece in &stored.pieces {
            let tensor = self.tensor(&piece.name)?;
            if piece.shape != tensor.shape.to_vec() {
                return Err(Error::TensorShape {
                    file: self.label.clone(),
                    name: piece.name.clone(),
                    expected: piece.shape.clone(),
                    found: tensor.shape.to_vec(),
                });
            }
            if !tensor.dtype.is_float() {
                let reason = format!("holds {:?}, not floats", tensor.dtype);
                return Err(self.refused(&piece.name, &reason));
            }
            self.used.insert(piece.name.clone());
        }
        let Some(dtype) = self.dtype else {
            return Ok(());
        };
        let dtype = match stored.wide {
            true => FloatDType::F32,
            false => dtype,
        };
        let data = match &stored.pieces[..] {
            [piece] if piece.rows.is_empty() => {
                converted(self.numbers(piece, stored.plus_one)?, dtype.into())
            }
            pieces => {
                let mut bytes = Vec::new();
                for piece in pieces {
                    let data = self.numbers(piece, stored.plus_one)?;
                    let data = converted(data, dtype.into());
                    let all = data.as_bytes();
                    let row = all.len() / piece.shape[0].max(1);
                    let whole = 0..piece.shape[0];
                    let ranges = match piece.rows.is_empty() {
                        true => std::slice::from_ref(&whole),
                        false => &piece.rows[..],
                    };
                    for rows in ranges {
                        bytes.extend_from_slice(&all[rows.start * row..rows.end * row]);
                    }
                }
                TensorData::from_bytes_vec(bytes, [rows, row], dtype.into())
            }
        };
        let data = match stored.transposed {
            true => transposed(data, [rows, row]),
            false => TensorData::from_bytes(data.into_bytes(), shape, dtype.into()),
        };
        let tensor = Tensor::from_data(data, (&param.lazy_device(), DType::from(dtype)));
        let id = param.id;
        *param = param.clone().transform_for_load(tensor, id);
        Ok(())
    }

    /// [`fill`](Self::fill) of the weight of a linear layer, whose outputs are the rows in a file.
    ///
    /// # Errors
    /// As there.
    pub fn linear(&mut self, layer: &mut Linear, name: &str) -> Result<(), Error> {
        let [inputs, outputs] = layer.weight.lazy_shape().dims();
        let stored = Stored::whole(name, [outputs, inputs]).transposed();
        self.fill(&mut layer.weight, &stored)
    }

    /// The numbers of a piece's tensor.
    fn numbers(&mut self, piece: &Piece, plus_one: bool) -> Result<TensorData, Error> {
        let data = match self.last.take() {
            Some((name, data)) if name == piece.name => data,
            _ => {
                let tensor = self.tensor(&piece.name)?.clone();
                let data = bridge::into_data(tensor);
                let data = data.map_err(|error| self.refused(&piece.name, &error.to_string()))?;
                if !finite(&data) {
                    return Err(self.refused(&piece.name, "holds numbers that are not finite"));
                }
                data
            }
        };
        // A tensor of which some rows are left for another parameter.
        if !piece.rows.is_empty() {
            self.last = Some((piece.name.clone(), data.clone()));
        }
        if !plus_one {
            return Ok(data);
        }
        let numbers: Vec<f32> = data.iter::<f32>().map(|x| 1.0 + x).collect();
        Ok(TensorData::new(numbers, piece.shape.clone()))
    }
}

/// Whether all numbers are finite.
fn finite(data: &TensorData) -> bool {
    let typed = match data.dtype() {
        DType::F32 => all::<f32>(data, |x| x.is_finite()),
        DType::BF16 => all::<bf16>(data, |x| x.is_finite()),
        DType::F16 => all::<f16>(data, |x| x.is_finite()),
        _ => None,
    };
    typed.unwrap_or_else(|| data.iter::<f64>().all(f64::is_finite))
}

/// Whether all numbers of this type pass, if the memory can be read as such.
fn all<E: Element>(data: &TensorData, passes: impl Fn(E) -> bool) -> Option<bool> {
    let numbers = data.as_slice::<E>().ok()?;
    Some(numbers.iter().all(|&x| passes(x)))
}

/// The numbers in another format, each rounded once; models have too many of them for a conversion by way of any type.
fn converted(data: TensorData, dtype: DType) -> TensorData {
    let wide = match (data.dtype(), dtype) {
        (DType::BF16, DType::F32) => data.as_slice::<bf16>().ok(),
        _ => None,
    };
    match wide {
        Some(numbers) => {
            let numbers: Vec<f32> = numbers.iter().map(|x| x.to_f32()).collect();
            TensorData::new(numbers, data.shape().clone())
        }
        None => data.convert_dtype(dtype),
    }
}

impl Piece {
    /// Rows.
    fn count(&self) -> usize {
        match self.rows.is_empty() {
            true => self.shape[0],
            false => self.rows.iter().map(Range::len).sum(),
        }
    }

    /// Numbers in them.
    fn numbers(&self) -> usize {
        self.count() * self.shape[1..].iter().product::<usize>()
    }
}
