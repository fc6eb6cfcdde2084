//! Weights of GPT-2 as Hugging Face stores them.

use std::path::Path;

use burn::nn::Linear;
use riverrun::Error;
use riverrun::internal::{Source, put};
use riverrun::nn::LayerNorm;

use crate::Gpt2;

/// Loads the weights of Hugging Face's `GPT2Model` or `GPT2LMHeadModel`, such as the published `model.safetensors`.
///
/// # Arguments
/// - `model`: a model of the file's sizes; its weights are replaced.
/// - `path`: `.safetensors`, or else what `torch.save` writes for a state dict. Names may begin with `transformer.`. The masks
///   `attn.bias` and `attn.masked_bias` are ignored; a head is compared with the embedding, whose weights it shares.
///
/// # Errors
/// A tensor that is missing, that the model does not have, that has another shape, or that holds a number that is not finite, by its
/// name; a head with weights of its own; a file that cannot be read.
pub fn gpt2_from_huggingface(mut model: Gpt2, path: impl AsRef<Path>) -> Result<Gpt2, Error> {
    let mut source = Source::open(path.as_ref())?;
    let ignored = [".attn.bias", ".attn.masked_bias"];
    source
        .tensors
        .retain(|name, _| !ignored.iter().any(|end| name.ends_with(end)));
    const PREFIX: &str = "transformer.";
    let prefix = match source.tensors.keys().any(|name| name.starts_with(PREFIX)) {
        true => PREFIX,
        false => "",
    };
    let shape = model.tokens.val().dims();
    let table = source.take(&format!("{prefix}wte.weight"), &shape)?;
    source.tied_head(&table)?;
    put(&mut model.tokens, table);
    source.replace(&mut model.positions, format!("{prefix}wpe.weight"))?;
    for (n, block) in model.blocks.iter_mut().enumerate() {
        let name = |part: &str| format!("{prefix}h.{n}.{part}");
        norm(&mut source, &mut block.attention_norm, name("ln_1"))?;
        layer(&mut source, &mut block.attention.qkv, name("attn.c_attn"))?;
        layer(&mut source, &mut block.attention.out, name("attn.c_proj"))?;
        norm(&mut source, &mut block.mlp_norm, name("ln_2"))?;
        layer(&mut source, &mut block.up, name("mlp.c_fc"))?;
        layer(&mut source, &mut block.down, name("mlp.c_proj"))?;
    }
    norm(&mut source, &mut model.norm, format!("{prefix}ln_f"))?;
    source.finish()?;
    Ok(model)
}

fn norm(source: &mut Source, norm: &mut LayerNorm, name: String) -> Result<(), Error> {
    source.replace(&mut norm.gamma, format!("{name}.weight"))?;
    match &mut norm.beta {
        Some(beta) => source.replace(beta, format!("{name}.bias")),
        None => Ok(()),
    }
}

/// A `Conv1D`, whose weight has the inputs first, as Burn's linear layers.
fn layer(source: &mut Source, layer: &mut Linear, name: String) -> Result<(), Error> {
    source.replace(&mut layer.weight, format!("{name}.weight"))?;
    match &mut layer.bias {
        Some(bias) => source.replace(bias, format!("{name}.bias")),
        None => Ok(()),
    }
}
