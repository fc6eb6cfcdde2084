//! PyTorch's state dicts, in safetensors and in its own files.

mod archive;
mod attention;
pub(crate) mod reader;
pub(crate) mod source;

pub use attention::attention_from_pytorch;
use source::Source;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use burn_store::pytorch_reader::PytorchReader;
use burn_store::{ModuleStore, SafetensorsStore, bridge, burn_pack};

use super::PyTorchLayer;
use super::checksum::Checksum;
use crate::Error;
use crate::device;
use crate::nn::CellStack;

/// The metadata of a file that was written here: who wrote it, and the checksum of its tensors.
const PRODUCER: (&str, &str) = ("producer", "riverrun");
const CHECKSUM: &str = "riverrun.checksum";

/// Loads the weights of a layer from a file that PyTorch wrote: `.safetensors`, or else what `torch.save` writes for a state dict.
///
/// # Arguments
/// - `layer`: a layer of the file's kind, sizes, layers and directions; its weights are replaced.
/// - `path`: the file.
/// - `prefix`: what precedes `weight_ih_l0` in the file's names, with its dot: `"encoder."`; empty if the file holds the layer
///   alone. Tensors with other names are ignored. For one layer in one direction, the names of `nn.LSTMCell`, `nn.GRUCell` and
///   `nn.RNNCell` (`weight_ih`, without `_l0`) are accepted too.
///
/// # Errors
/// A tensor that is missing, that the layer does not have, that has another shape, or that holds a number that is not finite, by
/// its name; a file that cannot be read, or one written by [`to_pytorch`] whose tensors no longer match their checksum; a projection or peepholes; a GRU that resets
/// before the product, or a layer of several heads, which PyTorch does not have.
pub fn from_pytorch<L: PyTorchLayer>(
    mut layer: L,
    path: impl AsRef<Path>,
    prefix: &str,
) -> Result<L, Error> {
    layer.check()?;
    one_head(layer.stack())?;
    let mut source = Source::open(path.as_ref())?;
    source.tensors.retain(|name, _| name.starts_with(prefix));
    if layer.stack().layers.len() == 1 {
        source.tensors = with_layer_numbers(source.tensors, prefix);
    }
    let file = source.file.clone();
    let names = names(layer.stack(), prefix);
    if let Some(name) = source.tensors.keys().find(|name| !names.contains(*name)) {
        if let Some(feature) = foreign(&name[prefix.len()..]) {
            return Err(Error::Unsupported(format!(
                "{file}: tensor `{name}`: {feature} is not supported"
            )));
        }
        return Err(Error::SurplusTensor {
            file,
            name: name.clone(),
        });
    }
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

/// Writes the weights of a layer as a safetensors file with PyTorch's names, each after `prefix`, and with a checksum that
/// [`from_pytorch`] verifies. An existing file is replaced.
///
/// # Errors
/// A path that does not end in `.safetensors` (PyTorch's own format is read, not written); a file that cannot be written;
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
        .metadata("format", "pt")
        .metadata(PRODUCER.0, PRODUCER.1)
        .metadata(CHECKSUM, stack_checksum(stack, prefix)?);
    for index in 0..stack.layers.len() {
        let to = full_name(&prefix.replace('$', "$$"), "${1}", index, directions);
        store = store.with_key_remapping(format!(r"^layers\.{index}\.(\w+)$"), to);
    }
    store
        .collect_from(stack)
        .map_err(|error| failed(path, error))
}

/// The checksum of the file that a stack is saved as.
fn stack_checksum(stack: &CellStack, prefix: &str) -> Result<String, Error> {
    let directions = stack.directions();
    let mut tensors = BTreeMap::new();
    for (index, layer) in stack.layers.iter().enumerate() {
        let weights = layer.weights();
        let mut insert = |name: &str, data| {
            tensors.insert(full_name(prefix, name, index, directions), data);
        };
        insert("weight_ih", device::read(weights.weight_ih)?);
        insert("weight_hh", device::read(weights.weight_hh)?);
        for (name, bias) in [("bias_ih", weights.bias_ih), ("bias_hh", weights.bias_hh)] {
            if let Some(bias) = bias {
                insert(name, device::read(bias)?);
            }
        }
    }
    let mut sum = Checksum::new();
    for (name, data) in tensors {
        sum.add(&name, data.dtype(), data.shape(), data.as_bytes());
    }
    Ok(sum.finish())
}

/// The names of `nn.LSTMCell` as those of a layer.
fn with_layer_numbers(
    tensors: BTreeMap<String, burn_pack::Tensor>,
    prefix: &str,
) -> BTreeMap<String, burn_pack::Tensor> {
    let renamed = |name: String| match &name[prefix.len()..] {
        "weight_ih" | "weight_hh" | "bias_ih" | "bias_hh" => format!("{name}_l0"),
        _ => name,
    };
    let renamed = tensors
        .into_iter()
        .map(|(name, tensor)| (renamed(name), tensor));
    renamed.collect()
}

/// The feature of other recurrent layers that a tensor belongs to.
fn foreign(name: &str) -> Option<&'static str> {
    let peepholes = ["peephole", "weight_c", "w_c", "_diag"];
    if name.starts_with("weight_hr") {
        Some("an LSTM with a projection (`proj_size`)")
    } else if peepholes.iter().any(|part| name.contains(part)) {
        Some("an LSTM with peephole connections")
    } else {
        None
    }
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

/// The tensors of a file, by name; their numbers are read on demand. `readable` is the file itself or a corrected copy.
fn read(path: &Path, readable: &Path) -> Result<BTreeMap<String, burn_pack::Tensor>, Error> {
    if is_safetensors(path) {
        let mut store = SafetensorsStore::from_file(path).map_indices_contiguous(false);
        let tensors = store.get_all_tensors();
        let tensors = tensors.map_err(|error| failed(path, error))?.clone();
        verify(path, &tensors)?;
        return Ok(tensors);
    }
    let reader = PytorchReader::new(readable).map_err(|error| failed(path, error))?;
    let tensors = reader.into_tensors().into_iter();
    Ok(tensors
        .map(|(name, tensor)| (name, bridge::from_pytorch(tensor)))
        .collect())
}

/// Compares the tensors of a safetensors file with the checksum in its header; a file of another program has none.
fn verify(path: &Path, tensors: &BTreeMap<String, burn_pack::Tensor>) -> Result<(), Error> {
    let header = header(path).map_err(|error| failed(path, error))?;
    let expected = after(&header, CHECKSUM).and_then(|rest| rest.get(..16));
    let ours = after(&header, PRODUCER.0).is_some_and(|rest| rest.starts_with(PRODUCER.1));
    let Some(expected) = expected else {
        return match ours {
            true => Err(failed(
                path,
                "the file is damaged: it has lost its checksum",
            )),
            false => Ok(()),
        };
    };
    let mut sum = Checksum::new();
    for (name, tensor) in tensors {
        let bytes = tensor.to_bytes().map_err(|error| failed(path, error))?;
        sum.add(name, tensor.dtype, &tensor.shape, &bytes);
    }
    if sum.finish() != expected {
        return Err(failed(
            path,
            "the file is damaged: its tensors do not match their checksum",
        ));
    }
    Ok(())
}

/// The text of a safetensors header.
fn header(path: &Path) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let mut size = [0; 8];
    file.read_exact(&mut size)?;
    let mut bytes = Vec::new();
    file.take(u64::from_le_bytes(size).min(length))
        .read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The header's text after `"key":"`.
fn after<'a>(header: &'a str, key: &str) -> Option<&'a str> {
    let start = format!("\"{key}\":\"");
    header.split_once(&start).map(|(_, rest)| rest)
}
