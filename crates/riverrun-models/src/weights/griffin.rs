//! Weights of RecurrentGemma as Hugging Face stores them.

use std::path::Path;

use burn::tensor::TensorData;
use riverrun::Error;
use riverrun::internal::{Source, put, transposed};
use riverrun::nn::{MultiHeadAttention, RmsNorm};

use crate::{Griffin, GriffinRecurrence, TemporalMixing};

/// Loads the weights of Hugging Face's `RecurrentGemmaForCausalLM`.
///
/// # Arguments
/// - `model`: a model of the file's sizes, with as many blocks of the gates as the file has heads, which is the default; its
///   weights are replaced. RecurrentGemma rounds the factor of the embedding to bfloat16: see
///   [`GriffinConfig::embedding_scale`](crate::GriffinConfig::embedding_scale).
/// - `path`: `.safetensors`, or else what `torch.save` writes for a state dict. A head is compared with the embedding, whose weights it shares.
///
/// # Errors
/// A tensor that is missing, that the model does not have, that has another shape, or that holds a number that is not finite, by its
/// name; a head with weights of its own; a file that cannot be read.
pub fn griffin_from_huggingface(
    mut model: Griffin,
    path: impl AsRef<Path>,
) -> Result<Griffin, Error> {
    let mut source = Source::open(path.as_ref())?;
    let shape = model.embedding.weight.val().dims();
    let table = source.take("model.embed_tokens.weight", &shape)?;
    source.tied_head(&table)?;
    put(&mut model.embedding.weight, table);
    for (n, block) in model.blocks.iter_mut().enumerate() {
        let name = |part: &str| format!("model.layers.{n}.{part}");
        norm(
            &mut source,
            &mut block.temporal_norm,
            &name("temporal_pre_norm"),
        )?;
        let temporal = name("temporal_block");
        match &mut block.temporal {
            TemporalMixing::Recurrence(part) => recurrence(&mut source, part, &temporal)?,
            TemporalMixing::Attention(part) => {
                attention(&mut source, &mut part.attention, &temporal)?;
            }
        }
        norm(
            &mut source,
            &mut block.channel_norm,
            &name("channel_pre_norm"),
        )?;
        source.linear(&mut block.gate, &name("mlp_block.gate_proj"))?;
        source.linear(&mut block.up, &name("mlp_block.up_proj"))?;
        source.linear(&mut block.down, &name("mlp_block.down_proj"))?;
    }
    norm(&mut source, &mut model.norm, "model.final_norm")?;
    source.finish()?;
    Ok(model)
}

fn floats(data: &TensorData) -> Vec<f32> {
    data.iter::<f32>().collect()
}

/// The file has what is added to a factor of 1.
fn norm(source: &mut Source, norm: &mut RmsNorm, name: &str) -> Result<(), Error> {
    let [width] = norm.gamma.val().dims();
    let data = source.take(&format!("{name}.weight"), &[width])?;
    let gamma = floats(&data).into_iter().map(|x| 1.0 + x).collect();
    put(&mut norm.gamma, TensorData::new(gamma, [width]));
    Ok(())
}

fn recurrence(source: &mut Source, part: &mut GriffinRecurrence, name: &str) -> Result<(), Error> {
    let at = |part: &str| format!("{name}.{part}");
    source.linear(&mut part.linear_x, &at("linear_x"))?;
    source.linear(&mut part.linear_y, &at("linear_y"))?;
    source.linear(&mut part.linear_out, &at("linear_out"))?;
    let [taps, hidden] = part.conv_weight.val().dims();
    let data = source.take(&at("conv_1d.weight"), &[hidden, 1, taps])?;
    put(&mut part.conv_weight, transposed(data, [hidden, taps]));
    source.replace(&mut part.conv_bias, at("conv_1d.bias"))?;
    source.replace(&mut part.rg_lru.lambda, at("rg_lru.recurrent_param"))?;
    // The gates' blocks, one below the other in the file, lie side by side in a layer, those of the recurrence gate first.
    let gates = &mut part.rg_lru.gates;
    let [block, columns] = gates.weight.val().dims();
    let blocks = hidden / block;
    let mut weight = vec![0.0; block * columns];
    let mut biases = Vec::with_capacity(columns);
    for (gate, kind) in ["recurrent_gate", "input_gate"].into_iter().enumerate() {
        let data = source.take(
            &at(&format!("rg_lru.{kind}_weight")),
            &[blocks, block, block],
        )?;
        for (n, x) in floats(&data).into_iter().enumerate() {
            let (at, row, column) = (n / (block * block), n / block % block, n % block);
            weight[row * columns + gate * hidden + at * block + column] = x;
        }
        let data = source.take(&at(&format!("rg_lru.{kind}_bias")), &[blocks, block])?;
        biases.extend(floats(&data));
    }
    put(&mut gates.weight, TensorData::new(weight, [block, columns]));
    if let Some(bias) = &mut gates.bias {
        put(bias, TensorData::new(biases, [columns]));
    }
    Ok(())
}

fn attention(source: &mut Source, layer: &mut MultiHeadAttention, name: &str) -> Result<(), Error> {
    let ([width, columns], dim) = (layer.qkv.weight.val().dims(), layer.head_dim());
    let rows = [layer.heads, layer.key_heads, layer.key_heads].map(|heads| heads * dim);
    let mut numbers = Vec::with_capacity(width * columns);
    for (part, rows) in ["q_proj", "k_proj", "v_proj"].into_iter().zip(rows) {
        let data = source.take(&format!("{name}.{part}.weight"), &[rows, width])?;
        numbers.extend(floats(&data));
    }
    let data = TensorData::new(numbers, [columns, width]);
    put(&mut layer.qkv.weight, transposed(data, [columns, width]));
    source.linear(&mut layer.out, &format!("{name}.o_proj"))
}
