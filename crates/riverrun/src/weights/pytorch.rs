//! PyTorch's state dicts, in safetensors and in its own files.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::Path;

use burn::module::Param;
use burn::tensor::{Tensor, TensorData};
use burn_store::pytorch_reader::PytorchReader;
use burn_store::{ModuleStore, SafetensorsStore, bridge, burn_pack};

use super::PyTorchLayer;
use crate::Error;
use crate::nn::{CellStack, like};

/// Takes the weights of a layer from a file that PyTorch wrote: `.safetensors`, or else what `torch.save` writes for a state dict.
///
/// # Arguments
/// - `layer`: a layer of the file's kind, sizes, layers and directions; its weights are replaced.
/// - `path`: the file.
/// - `prefix`: what stands before `weight_ih_l0` in the file's names, with its dot: `"encoder."`; empty if the file is the layer's
///   alone. Names that do not begin so are not looked at.
///
/// # Errors
/// A tensor that is missing, that the layer does not have, or that has another shape, by its name; a file that cannot be read;
/// a GRU that resets before the product, or a layer of several heads, which PyTorch does not have.
pub fn from_pytorch<L: PyTorchLayer>(
    mut layer: L,
    path: impl AsRef<Path>,
    prefix: &str,
) -> Result<L, Error> {
    layer.check()?;
    one_head(layer.stack())?;
    let path = path.as_ref();
    let mut tensors = read(path)?;
    tensors.retain(|name, _| name.starts_with(prefix));
    let file = path.display().to_string();
    let names = names(layer.stack(), prefix);
    if let Some(name) = tensors.keys().find(|name| !names.contains(*name)) {
        return Err(Error::SurplusTensor {
            file,
            name: name.clone(),
        });
    }
    let mut source = Source { file, tensors };
    let stack = layer.stack_mut();
    let directions = stack.directions();
    let mut layers = stack.layers.clone();
    for (index, layer) in layers.iter_mut().enumerate() {
        let name = |tensor: &str| full_name(prefix, tensor, index, directions);
        source.replace(&mut layer.weight_ih, name("weight_ih"))?;
        source.replace(&mut layer.weight_hh, name("weight_hh"))?;
        if let Some(bias) = &mut layer.bias_ih {
            source.replace(bias, name("bias_ih"))?;
        }
        if let Some(bias) = &mut layer.bias_hh {
            source.replace(bias, name("bias_hh"))?;
        }
    }
    stack.layers = layers;
    Ok(layer)
}

/// Writes the weights of a layer as a safetensors file with PyTorch's names, each after `prefix`; a file in its place is replaced.
///
/// # Errors
/// A path that does not end in `.safetensors` (PyTorch's own format is read here, not written); a file that cannot be written;
/// a GRU that resets before the product, or a layer of several heads, which PyTorch does not have.
pub fn to_pytorch<L: PyTorchLayer>(
    layer: &L,
    path: impl AsRef<Path>,
    prefix: &str,
) -> Result<(), Error> {
    layer.check()?;
    one_head(layer.stack())?;
    let path = path.as_ref();
    if !is_safetensors(path) {
        return Err(failed(
            path,
            "weights are written as .safetensors; PyTorch's own format is read only",
        ));
    }
    let stack = layer.stack();
    let directions = stack.directions();
    let mut store = SafetensorsStore::from_file(path)
        .overwrite(true)
        .map_indices_contiguous(false)
        .metadata("format", "pt");
    for index in 0..stack.layers.len() {
        let to = full_name(&prefix.replace('$', "$$"), "${1}", index, directions);
        store = store.with_key_remapping(format!(r"^layers\.{index}\.(\w+)$"), to);
    }
    store
        .collect_from(stack)
        .map_err(|error| failed(path, error))
}

fn one_head(stack: &CellStack) -> Result<(), Error> {
    match stack.layers.iter().all(|layer| layer.heads() == 1) {
        true => Ok(()),
        false => Err(Error::Unsupported(
            "PyTorch has no layers of several heads".into(),
        )),
    }
}

/// PyTorch's name of a parameter of the `index`-th layer and direction.
fn full_name(prefix: &str, tensor: &str, index: usize, directions: usize) -> String {
    let reverse = if index % directions == 1 {
        "_reverse"
    } else {
        ""
    };
    format!("{prefix}{tensor}_l{}{reverse}", index / directions)
}

/// Every name of a stack.
fn names(stack: &CellStack, prefix: &str) -> Vec<String> {
    let directions = stack.directions();
    let mut names = Vec::new();
    for (index, layer) in stack.layers.iter().enumerate() {
        let biases = [
            layer.bias_ih.as_ref().map(|_| "bias_ih"),
            layer.bias_hh.as_ref().map(|_| "bias_hh"),
        ];
        let tensors = ["weight_ih", "weight_hh"].into_iter();
        names.extend(
            tensors
                .chain(biases.into_iter().flatten())
                .map(|tensor| full_name(prefix, tensor, index, directions)),
        );
    }
    names
}

fn is_safetensors(path: &Path) -> bool {
    path.extension()
        .is_some_and(|extension| extension.eq_ignore_ascii_case("safetensors"))
}

fn failed(path: &Path, reason: impl Display) -> Error {
    Error::File {
        file: path.display().to_string(),
        reason: reason.to_string(),
    }
}

/// The tensors of a file, by name; their numbers are read when they are asked for.
fn read(path: &Path) -> Result<BTreeMap<String, burn_pack::Tensor>, Error> {
    if is_safetensors(path) {
        let mut store = SafetensorsStore::from_file(path).map_indices_contiguous(false);
        let tensors = store.get_all_tensors();
        return Ok(tensors.map_err(|error| failed(path, error))?.clone());
    }
    let reader = PytorchReader::new(path).map_err(|error| failed(path, error))?;
    let tensors = reader.into_tensors().into_iter();
    Ok(tensors
        .map(|(name, tensor)| (name, bridge::from_pytorch(tensor)))
        .collect())
}

/// An open file.
struct Source {
    file: String,
    tensors: BTreeMap<String, burn_pack::Tensor>,
}

impl Source {
    fn replace<const D: usize>(
        &mut self,
        param: &mut Param<Tensor<D>>,
        name: String,
    ) -> Result<(), Error> {
        let file = self.file.clone();
        let Some(tensor) = self.tensors.remove(&name) else {
            return Err(Error::MissingTensor { file, name });
        };
        let (expected, found) = (param.val().dims().to_vec(), tensor.shape.to_vec());
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
        let data: TensorData = bridge::into_data(tensor).map_err(|error| Error::File {
            file,
            reason: error.to_string(),
        })?;
        *param = param.clone().map(|old| like(&old, data));
        Ok(())
    }
}
