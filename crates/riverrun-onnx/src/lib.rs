//! riverrun's layers and models as [ONNX](https://onnx.ai) models, and ONNX's recurrent operators as layers.
//!
//! [`ToOnnx::to_onnx`] writes a layer or a recurrent language model with its states as inputs and outputs; ONNX Runtime and other
//! runtimes run it. [`Onnx::gru`], [`Onnx::lstm`] and [`Onnx::rnn`] read the nodes `GRU`, `LSTM` and `RNN` of a model, such as
//! PyTorch, Keras and tf2onnx write.
//!
//! ```
//! use burn::tensor::Device;
//! use riverrun::nn::{GruConfig, MinGruConfig};
//! use riverrun_onnx::{Onnx, ToOnnx};
//!
//! let device = Device::flex();
//! let folder = tempfile::tempdir().expect("a folder");
//! let (scan, cells) = (folder.path().join("scan.onnx"), folder.path().join("gru.onnx"));
//! MinGruConfig::new(8, 16).init(&device).to_onnx()?.save(&scan)?;
//!
//! let gru = GruConfig::new(8, 16).with_layers(2).init(&device);
//! gru.to_onnx()?.save(&cells)?;
//! let again = Onnx::read(&cells)?.gru(&device)?;
//! assert_eq!(again.stack.layers.len(), 2);
//! # Ok::<(), riverrun::Error>(())
//! ```
//!
//! The formats: [ONNX's IR](https://github.com/onnx/onnx/blob/main/docs/IR.md) and
//! [operators](https://onnx.ai/onnx/operators/).

mod export;
mod graph;
mod import;
mod proto;

use std::fs;
use std::path::Path;

use prost::Message;
use riverrun::Error;

pub use export::ToOnnx;
pub use import::tensor;

/// The version of the operators in models that are written here: the first with `Gelu`.
pub const OPSET: i64 = 20;
/// The version of the format: that of [`OPSET`].
const IR: i64 = 9;

/// An ONNX model.
#[derive(Debug, Clone, PartialEq)]
pub struct Onnx {
    model: proto::ModelProto,
}

impl Onnx {
    fn new(graph: proto::GraphProto, opset: i64) -> Self {
        Self {
            model: proto::ModelProto {
                ir_version: Some(IR),
                producer_name: Some("riverrun".into()),
                producer_version: Some(env!("CARGO_PKG_VERSION").into()),
                graph: Some(graph),
                opset_import: vec![proto::OperatorSetIdProto {
                    domain: Some(String::new()),
                    version: Some(opset),
                }],
            },
        }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// [`Error::File`] for one that cannot be read or is no ONNX model.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let bytes = fs::read(path).map_err(|error| file(path, error))?;
        Self::from_bytes(&bytes).map_err(|reason| file(path, reason))
    }

    /// Reads the bytes of a file.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for those of no ONNX model.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Error> {
        let model = proto::ModelProto::decode(bytes)
            .map_err(|error| Error::Unsupported(format!("not an ONNX model: {error}")))?;
        match model.graph {
            Some(_) => Ok(Self { model }),
            None => Err(Error::Unsupported(
                "not an ONNX model: there is no graph".into(),
            )),
        }
    }

    /// Writes a file.
    ///
    /// # Errors
    /// [`Error::File`] for a disk that is full or refuses; a model of 2 GiB or more, which the format does not hold in one file.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = path.as_ref();
        let size = self.model.encoded_len();
        if size >= 1 << 31 {
            return Err(file(
                path,
                format!("a model of {size} bytes is beyond the 2 GiB of an ONNX file"),
            ));
        }
        fs::write(path, self.to_bytes()).map_err(|error| file(path, error))
    }

    /// The bytes of a file.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.model.encode_to_vec()
    }
}

fn file(path: &Path, reason: impl ToString) -> Error {
    Error::File {
        file: path.display().to_string(),
        reason: reason.to_string(),
    }
}

/// The bytes of a file of a tensor of floats, as ONNX's test data have them.
pub fn float_tensor(name: &str, sizes: &[usize], numbers: &[f32]) -> Vec<u8> {
    let bytes = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
    tensor_of(name, sizes, proto::data_type::FLOAT, bytes)
}

/// The bytes of a file of a tensor of 64-bit integers, as ONNX's test data have them.
pub fn integer_tensor(name: &str, sizes: &[usize], numbers: &[i64]) -> Vec<u8> {
    let bytes = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
    tensor_of(name, sizes, proto::data_type::INT64, bytes)
}

fn tensor_of(name: &str, sizes: &[usize], dtype: i32, bytes: Vec<u8>) -> Vec<u8> {
    let tensor = proto::TensorProto {
        name: Some(name.into()),
        dims: sizes.iter().map(|&size| size as i64).collect(),
        data_type: Some(dtype),
        raw_data: Some(bytes),
        ..proto::TensorProto::default()
    };
    tensor.encode_to_vec()
}
