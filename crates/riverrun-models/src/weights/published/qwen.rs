//! Qwen3.5 and Qwen3-Next, dense, text alone.

use std::ops::Range;

use riverrun::Error;
use riverrun::internal::{Reader, Stored};
use riverrun::nn::{
    GatedDeltaNet, GatedDeltaNetConfig, MultiHeadAttention, MultiHeadAttentionConfig, RmsNorm,
    Rotary,
};

use super::fields::Fields;
use crate::{AnyHeadLayer, AnyRecurrent, Decoder, DecoderConfig, MixerConfig};

/// The model of a `config.json`.
pub(super) fn config(fields: &Fields) -> Result<DecoderConfig, Error> {
    let all = fields.part("text_config");
    all.only("hidden_act", "silu")?;
    all.only("attention_bias", false)?;
    let width = all.whole("hidden_size")?;
    let layers = all.whole("num_hidden_layers")?;
    let epsilon = all.number_or("rms_norm_eps", 1e-6)?;
    dense(&all, layers)?;
    let recurrence = GatedDeltaNetConfig::new(
        width,
        all.whole("linear_num_value_heads")?,
        all.whole("linear_key_head_dim")?,
        all.whole("linear_value_head_dim")?,
    )
    .with_key_heads(Some(all.whole("linear_num_key_heads")?))
    .with_taps(all.whole_or("linear_conv_kernel_dim", 4)?)
    .with_epsilon(epsilon);
    let heads = all.whole("num_attention_heads")?;
    let dim = all.whole_or("head_dim", width / heads.max(1))?;
    let rope = all.part("rope_parameters");
    rope.only("rope_type", "default")?;
    all.none("rope_scaling")?;
    let turned = rope.number_or("partial_rotary_factor", 0.25)?;
    let rotary = Rotary::new((dim as f64 * turned) as usize)
        .with_base(rope.number_or("rope_theta", 10_000.0)?);
    let attention = MultiHeadAttentionConfig::new(width, heads)
        .with_key_heads(Some(all.whole("num_key_value_heads")?))
        .with_head_dim(Some(dim))
        .with_bias(false)
        .with_out_bias(false)
        .with_rotary(Some(rotary))
        .with_norm_epsilon(Some(epsilon))
        .with_gate(true);
    let every = all.whole_or("full_attention_interval", 4)?.max(1);
    let attends = match all.texts("layer_types")? {
        Some(kinds) => {
            if let Some(kind) = kinds
                .iter()
                .find(|kind| !["linear_attention", "full_attention"].contains(kind))
            {
                return Err(Error::Unsupported(format!("a layer of the type {kind}")));
            }
            kinds.iter().map(|kind| *kind == "full_attention").collect()
        }
        None => (1..=layers)
            .map(|n| n.is_multiple_of(every))
            .collect::<Vec<_>>(),
    };
    if attends.len() != layers {
        return Err(Error::Invalid(format!(
            "layer_types: expected {layers}, the layers, found {}",
            attends.len()
        )));
    }
    let block = |attends: bool| match attends {
        true => MixerConfig::Attention(attention.clone()),
        false => MixerConfig::GatedDeltaNet(recurrence.clone()),
    };
    let blocks = attends.into_iter().map(block).collect();
    Ok(DecoderConfig::new(all.whole("vocab_size")?, width, blocks)
        .with_mlp(Some(all.whole("intermediate_size")?))
        .with_epsilon(epsilon)
        .with_tied(all.flag_or("tie_word_embeddings", false)?))
}

/// Refuses experts.
fn dense(fields: &Fields, layers: usize) -> Result<(), Error> {
    let experts = fields.whole_or("num_experts", 0)?;
    let dense = fields.wholes("mlp_only_layers")?;
    match experts > 0 && !(0..layers).all(|layer| dense.contains(&layer)) {
        true => Err(Error::Unsupported(format!(
            "a mixture of {experts} experts: only dense models are supported"
        ))),
        false => Ok(()),
    }
}

/// Compares the model with the files, or fills it.
pub(super) fn read(
    model: &mut Decoder,
    config: &DecoderConfig,
    reader: &mut Reader,
) -> Result<(), Error> {
    // Predicting several tokens, and images.
    reader.ignore(|name| name.starts_with("mtp.") || name.starts_with("model.visual."));
    const NESTED: &str = "model.language_model.";
    let prefix = match reader.names().any(|name| name.starts_with(NESTED)) {
        true => NESTED,
        false => "model.",
    };
    let table = Stored::whole(
        format!("{prefix}embed_tokens.weight"),
        [config.vocab, config.width],
    );
    reader.fill(&mut model.embedding.weight, &table)?;
    match &mut model.out {
        Some(out) => reader.linear(out, "lm_head.weight")?,
        // The embedding's once more, if it is there at all.
        None => reader.ignore(|name| name == "lm_head.weight"),
    }
    norm(reader, &mut model.norm, format!("{prefix}norm.weight"))?;
    for (n, (block, config)) in model.blocks.iter_mut().zip(&config.blocks).enumerate() {
        let at = format!("{prefix}layers.{n}");
        norm(
            reader,
            &mut block.norm,
            format!("{at}.input_layernorm.weight"),
        )?;
        match (&mut block.mixer, config) {
            (
                AnyRecurrent::Heads(AnyHeadLayer::GatedDeltaNet(layer)),
                MixerConfig::GatedDeltaNet(config),
            ) => recurrence(reader, layer, config, &format!("{at}.linear_attn"))?,
            (AnyRecurrent::Attention(layer), MixerConfig::Attention(_)) => {
                attention(reader, layer, &format!("{at}.self_attn"))?;
            }
            _ => unreachable!("the configuration has no other layer"),
        }
        if let Some(mlp) = &mut block.mlp {
            let name = format!("{at}.post_attention_layernorm.weight");
            norm(reader, &mut mlp.norm, name)?;
            reader.linear(&mut mlp.gate, &format!("{at}.mlp.gate_proj.weight"))?;
            reader.linear(&mut mlp.up, &format!("{at}.mlp.up_proj.weight"))?;
            reader.linear(&mut mlp.down, &format!("{at}.mlp.down_proj.weight"))?;
        }
    }
    Ok(())
}

/// The files have what is added to a factor of 1.
fn norm(reader: &mut Reader, norm: &mut RmsNorm, name: String) -> Result<(), Error> {
    let shape = norm.gamma.lazy_shape().to_vec();
    reader.fill(&mut norm.gamma, &Stored::whole(name, shape).plus_one())
}

/// Parts of the rows of each of `groups` groups of `size` rows, from `first` on.
fn grouped(groups: usize, size: usize, first: usize, rows: usize) -> Vec<Range<usize>> {
    let group = |n: usize| n * size + first..n * size + first + rows;
    (0..groups).map(group).collect()
}

fn recurrence(
    reader: &mut Reader,
    layer: &mut GatedDeltaNet,
    config: &GatedDeltaNetConfig,
    at: &str,
) -> Result<(), Error> {
    let name = |part: &str| format!("{at}.{part}");
    let (width, heads, key_heads) = (
        config.d_model,
        config.heads,
        config.key_heads.unwrap_or(config.heads),
    );
    let values = heads * config.value_dim;
    let mixed = 2 * key_heads * config.key_dim + values;
    if reader
        .names()
        .any(|tensor| tensor == name("in_proj_qkvz.weight"))
    {
        // Of each key head: its query and key, then the values and gates of the heads that share them.
        let (keys, own) = (config.key_dim, values / key_heads);
        let (size, rates) = (2 * (keys + own), heads / key_heads);
        let part = |first, rows| {
            let shape = [mixed + values, width];
            let rows = grouped(key_heads, size, first, rows);
            Stored::rows(name("in_proj_qkvz.weight"), shape, rows)
        };
        let queries = part(0, keys).below(part(keys, keys));
        let qkv = queries.below(part(2 * keys, own)).transposed();
        reader.fill(&mut layer.qkv.weight, &qkv)?;
        let gate = part(2 * keys + own, own).transposed();
        reader.fill(&mut layer.gate.weight, &gate)?;
        let rate = |first| {
            let rows = grouped(key_heads, 2 * rates, first, rates);
            Stored::rows(name("in_proj_ba.weight"), [2 * heads, width], rows)
        };
        let both = rate(0).below(rate(rates)).transposed();
        reader.fill(&mut layer.rates.weight, &both)?;
    } else {
        reader.linear(&mut layer.qkv, &name("in_proj_qkv.weight"))?;
        reader.linear(&mut layer.gate, &name("in_proj_z.weight"))?;
        let rate = |part| Stored::whole(name(part), [heads, width]);
        let both = rate("in_proj_b.weight").below(rate("in_proj_a.weight"));
        reader.fill(&mut layer.rates.weight, &both.transposed())?;
    }
    let taps = Stored::whole(name("conv1d.weight"), [mixed, 1, config.taps]);
    reader.fill(&mut layer.convolution.weight, &taps.transposed())?;
    let decay = |part| Stored::whole(name(part), [heads]).wide();
    reader.fill(&mut layer.decay.a_log, &decay("A_log"))?;
    reader.fill(&mut layer.decay.dt_bias, &decay("dt_bias"))?;
    let gamma = Stored::whole(name("norm.weight"), [config.value_dim]);
    reader.fill(&mut layer.norm.gamma, &gamma)?;
    reader.linear(&mut layer.out, &name("out_proj.weight"))
}

fn attention(reader: &mut Reader, layer: &mut MultiHeadAttention, at: &str) -> Result<(), Error> {
    let name = |part: &str| format!("{at}.{part}.weight");
    let [queries, width] = layer.out.weight.lazy_shape().dims();
    let (heads, dim) = (layer.heads, queries / layer.heads);
    let keys = [layer.key_heads * dim, width];
    // Of each head: its query, then its gate.
    let part = |first| {
        let rows = grouped(heads, 2 * dim, first, dim);
        Stored::rows(name("q_proj"), [2 * queries, width], rows)
    };
    let qkv = part(0)
        .below(Stored::whole(name("k_proj"), keys))
        .below(Stored::whole(name("v_proj"), keys));
    reader.fill(&mut layer.qkv.weight, &qkv.transposed())?;
    if let Some(gate) = &mut layer.gate {
        reader.fill(&mut gate.weight, &part(dim).transposed())?;
    }
    for (part, which) in [
        (&mut layer.query_norm, "q_norm"),
        (&mut layer.key_norm, "k_norm"),
    ] {
        if let Some(part) = part {
            norm(reader, part, name(which))?;
        }
    }
    reader.linear(&mut layer.out, &name("o_proj"))
}
