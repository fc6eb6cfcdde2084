//! xLSTM-7B.

use riverrun::Error;
use riverrun::internal::{Reader, Stored};
use riverrun::nn::{MLstm, MLstmConfig, RmsNorm};

use super::fields::Fields;
use crate::{AnyHeadLayer, AnyRecurrent, Decoder, DecoderConfig, MixerConfig};

/// The model of a `config.json` of Hugging Face.
pub(super) fn config(fields: &Fields) -> Result<DecoderConfig, Error> {
    fields.only("weight_mode", "single")?;
    fields.only("use_bias", false)?;
    fields.only("add_out_norm", true)?;
    fields.only("tie_word_embeddings", false)?;
    // Added to the normalizer; the state is in `f32`.
    fields.only("eps", 1e-6)?;
    fields.only("inference_state_dtype", "float32")?;
    let width = twice_named(fields, ["hidden_size", "embedding_dim"])?;
    let layers = twice_named(fields, ["num_hidden_layers", "num_blocks"])?;
    let heads = fields.whole("num_heads")?;
    let times = |factor: f64| (width as f64 * factor) as usize;
    let head = |name: &str, absent: f64| {
        let factor = fields.number_or(name, absent)?;
        let channels = times(factor);
        match channels > 0 && channels.is_multiple_of(heads) {
            true => Ok(channels / heads),
            false => Err(Error::Invalid(format!(
                "{name}: expected a hidden_size of {width} times it to be num_heads, {heads}, of channels, found {factor}"
            ))),
        }
    };
    let (keys, values) = (head("qk_dim_factor", 0.5)?, head("v_dim_factor", 1.0)?);
    let factor = fields.number_or("ffn_proj_factor", 2.667)?;
    let multiple = fields.whole_or("ffn_round_up_to_multiple_of", 64)?;
    let inner = times(factor).checked_next_multiple_of(multiple);
    let inner = inner.filter(|inner| *inner > 0).ok_or_else(|| {
        Error::Invalid(format!(
            "ffn_proj_factor: expected a hidden_size of {width} times it to be at least 1, and to fit as a multiple of ffn_round_up_to_multiple_of, {multiple}, found {factor}"
        ))
    })?;
    let epsilon = fields.number_or("norm_eps", 1e-6)?;
    let layer = MLstmConfig::new(width, heads, keys, values)
        .with_gate_cap(fields.number_or("gate_soft_cap", 15.0)?)
        .with_epsilon(epsilon);
    // More blocks than there can be are refused by their number.
    let blocks = vec![MixerConfig::MLstm(layer); layers.min(super::MOST_BLOCKS)];
    Ok(
        DecoderConfig::new(fields.whole("vocab_size")?, width, blocks)
            .with_mlp(Some(inner))
            .with_epsilon(epsilon)
            .with_logit_cap(Some(fields.number_or("output_logit_soft_cap", 30.0)?)),
    )
}

/// A size under either of two names, or under both.
fn twice_named(fields: &Fields, names: [&str; 2]) -> Result<usize, Error> {
    let [name, other] = names;
    let size = fields.whole(other).or_else(|_| fields.whole(name))?;
    for name in names {
        fields.only(name, size)?;
    }
    Ok(size)
}

/// Compares the model with the files, or fills it.
pub(super) fn read(
    model: &mut Decoder,
    config: &DecoderConfig,
    reader: &mut Reader,
) -> Result<(), Error> {
    let shape = [config.vocab, config.width];
    let table = Stored::whole("backbone.embeddings.weight", shape);
    reader.fill(&mut model.embedding.weight, &table)?;
    if let Some(out) = &mut model.out {
        reader.linear(out, "lm_head.weight")?;
    }
    let norm = |reader: &mut Reader, norm: &mut RmsNorm, name: String| {
        reader.fill(&mut norm.gamma, &Stored::whole(name, [config.width]))
    };
    norm(reader, &mut model.norm, "backbone.out_norm.weight".into())?;
    for (n, (block, config)) in model.blocks.iter_mut().zip(&config.blocks).enumerate() {
        let at = format!("backbone.blocks.{n}");
        norm(reader, &mut block.norm, format!("{at}.norm_mlstm.weight"))?;
        match (&mut block.mixer, config) {
            (AnyRecurrent::Heads(AnyHeadLayer::MLstm(layer)), MixerConfig::MLstm(config)) => {
                mixer(reader, layer, config, &format!("{at}.mlstm_layer"))?;
            }
            _ => unreachable!("the configuration has no other layer"),
        }
        if let Some(mlp) = &mut block.mlp {
            norm(reader, &mut mlp.norm, format!("{at}.norm_ffn.weight"))?;
            reader.linear(&mut mlp.gate, &format!("{at}.ffn.proj_up_gate.weight"))?;
            reader.linear(&mut mlp.up, &format!("{at}.ffn.proj_up.weight"))?;
            reader.linear(&mut mlp.down, &format!("{at}.ffn.proj_down.weight"))?;
        }
    }
    Ok(())
}

fn mixer(
    reader: &mut Reader,
    layer: &mut MLstm,
    config: &MLstmConfig,
    at: &str,
) -> Result<(), Error> {
    let name = |part: &str| format!("{at}.{part}");
    let (width, heads) = (config.d_model, config.heads);
    let (keys, values) = (heads * config.key_dim, heads * config.value_dim);
    let part = |part: &str, rows| Stored::whole(name(part), [rows, width]);
    let qkv = part("q.weight", keys)
        .below(part("k.weight", keys))
        .below(part("v.weight", values));
    reader.fill(&mut layer.qkv.weight, &qkv.transposed())?;
    let gates = part("igate_preact.weight", heads).below(part("fgate_preact.weight", heads));
    reader.fill(&mut layer.gates.weight, &gates.transposed())?;
    if let Some(bias) = &mut layer.gates.bias {
        let part = |part| Stored::whole(name(part), [heads]);
        let both = part("igate_preact.bias").below(part("fgate_preact.bias"));
        reader.fill(bias, &both)?;
    }
    reader.linear(&mut layer.out_gate, &name("ogate_preact.weight"))?;
    let gamma = Stored::whole(name("multihead_norm.weight"), [values]);
    reader.fill(&mut layer.norm.gamma, &gamma)?;
    reader.linear(&mut layer.out, &name("out_proj.weight"))
}
