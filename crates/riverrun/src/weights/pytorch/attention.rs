//! Weights of PyTorch's `nn.MultiheadAttention`.

use std::path::Path;

use super::Source;
use super::source::{put, transposed};
use crate::Error;
use crate::nn::MultiHeadAttention;

/// Loads the weights of PyTorch's `nn.MultiheadAttention` from a file that PyTorch wrote: `.safetensors`, or else what
/// `torch.save` writes for a state dict.
///
/// # Arguments
/// - `layer`: a layer of as many features and heads, with biases where the file has them; its weights are replaced.
/// - `path`: the file.
/// - `prefix`: what precedes `in_proj_weight` in the file's names, with its dot. Tensors with other names are ignored.
///
/// # Errors
/// A tensor that is missing, that the layer does not have (`bias_k`, the separate projections of `kdim`), that has another shape,
/// or that holds a number that is not finite, by its name; a file that cannot be read; a layer with what PyTorch's lacks: grouped heads, rotary positions, heads that
/// are not as wide together as the model.
pub fn attention_from_pytorch(
    mut layer: MultiHeadAttention,
    path: impl AsRef<Path>,
    prefix: &str,
) -> Result<MultiHeadAttention, Error> {
    let [width, columns] = layer.qkv.weight.dims();
    let plain = layer.key_heads == layer.heads
        && layer.rotary.is_none()
        && layer.heads * layer.head_dim() == width;
    if !plain {
        return Err(Error::Unsupported(
            "PyTorch's nn.MultiheadAttention has neither grouped heads nor rotary positions, and its heads are as wide together as the model".into(),
        ));
    }
    let mut source = Source::open(path.as_ref())?;
    source.tensors.retain(|name, _| name.starts_with(prefix));
    let data = source.take(&format!("{prefix}in_proj_weight"), &[columns, width])?;
    put(&mut layer.qkv.weight, transposed(data, [columns, width]));
    if let Some(bias) = &mut layer.qkv.bias {
        source.replace(bias, format!("{prefix}in_proj_bias"))?;
    }
    source.linear(&mut layer.out, &format!("{prefix}out_proj"))?;
    source.finish()?;
    Ok(layer)
}
