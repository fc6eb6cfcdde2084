//! Weights of PyTorch's `nn.MultiheadAttention`.

use std::path::Path;

use burn::module::Param;
use burn::tensor::Tensor;

use super::{Source, archive, failed, is_safetensors, read};
use crate::Error;
use crate::nn::{MultiHeadAttention, like};

/// Loads the weights of PyTorch's `nn.MultiheadAttention` from a file that PyTorch wrote: `.safetensors`, or else what
/// `torch.save` writes for a state dict.
///
/// # Arguments
/// - `layer`: a layer of as many features and heads, with biases where the file has them; its weights are replaced.
/// - `path`: the file.
/// - `prefix`: what precedes `in_proj_weight` in the file's names, with its dot. Tensors with other names are ignored.
///
/// # Errors
/// A tensor that is missing, that the layer does not have (`bias_k`, the separate projections of `kdim`), or that has another
/// shape, by its name; a file that cannot be read; a layer with what PyTorch's lacks: grouped heads, rotary positions, heads that
/// are not as wide together as the model.
pub fn attention_from_pytorch(
    mut layer: MultiHeadAttention,
    path: impl AsRef<Path>,
    prefix: &str,
) -> Result<MultiHeadAttention, Error> {
    let [width, _] = layer.qkv.weight.dims();
    let plain = layer.key_heads == layer.heads
        && layer.rotary.is_none()
        && layer.heads * layer.head_dim() == width;
    if !plain {
        return Err(Error::Unsupported(
            "PyTorch's nn.MultiheadAttention has neither grouped heads nor rotary positions, and its heads are as wide together as the model".into(),
        ));
    }
    let path = path.as_ref();
    // A corrected copy has to last until its tensors have been read.
    let archive = match is_safetensors(path) {
        true => None,
        false => archive::readable_copy(path).map_err(|error| failed(path, error))?,
    };
    let mut tensors = read(path, archive.as_ref().map_or(path, |copy| copy.path()))?;
    tensors.retain(|name, _| name.starts_with(prefix));
    let file = path.display().to_string();
    let mut source = Source { file, tensors };
    let name = |name: &str| format!("{prefix}{name}");
    for (linear, weight, bias) in [
        (&mut layer.qkv, "in_proj_weight", "in_proj_bias"),
        (&mut layer.out, "out_proj.weight", "out_proj.bias"),
    ] {
        // PyTorch stores a linear layer's weight with the outputs first.
        let old = linear.weight.val().detach().transpose();
        let mut transposed: Param<Tensor<2>> = Param::from_tensor(old);
        source.replace(&mut transposed, name(weight))?;
        let data = transposed.val().detach().transpose().into_data();
        linear.weight = linear.weight.clone().map(|old| like(&old, data));
        if let Some(param) = &mut linear.bias {
            source.replace(param, name(bias))?;
        }
    }
    match source.tensors.into_keys().next() {
        Some(name) => Err(Error::SurplusTensor {
            file: source.file,
            name,
        }),
        None => Ok(layer),
    }
}
