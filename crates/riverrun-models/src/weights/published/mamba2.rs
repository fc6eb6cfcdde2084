//! Mamba-2.

use riverrun::Error;
use riverrun::internal::{Reader, Stored};
use riverrun::nn::{Mamba2, Mamba2Config};

use super::fields::Fields;
use crate::{AnyHeadLayer, AnyRecurrent, Decoder, DecoderConfig, MixerConfig};

/// The model of a `config.json` of Hugging Face.
pub(super) fn config(fields: &Fields) -> Result<DecoderConfig, Error> {
    fields.only("hidden_act", "silu")?;
    fields.only("use_bias", false)?;
    fields.only("use_conv_bias", true)?;
    fields.unlimited("time_step_limit")?;
    let (width, heads, dim) = (
        fields.whole("hidden_size")?,
        fields.whole("num_heads")?,
        fields.whole("head_dim")?,
    );
    let expand = fields.number_or("expand", 2.0)?;
    if (width as f64 * expand) as usize != heads.saturating_mul(dim) {
        return Err(Error::Invalid(format!(
            "expand: expected a hidden_size of {width} times it to be {heads} heads of {dim}, found {expand}"
        )));
    }
    let epsilon = fields.number_or("layer_norm_epsilon", 1e-5)?;
    let layer = Mamba2Config::new(width, heads, dim)
        .with_d_state(fields.whole("state_size")?)
        .with_groups(fields.whole("n_groups")?)
        .with_taps(fields.whole_or("conv_kernel", 4)?)
        .with_epsilon(epsilon);
    let layers = fields.whole("num_hidden_layers")?;
    // More blocks than there can be are refused by their number.
    let blocks = vec![MixerConfig::Mamba2(layer); layers.min(super::MOST_BLOCKS)];
    Ok(
        DecoderConfig::new(fields.whole("vocab_size")?, width, blocks)
            .with_epsilon(epsilon)
            .with_tied(fields.flag_or("tie_word_embeddings", true)?),
    )
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
    match &mut model.out {
        Some(out) => reader.linear(out, "lm_head.weight")?,
        // The embedding's once more, if it is there at all.
        None => reader.ignore(|name| name == "lm_head.weight"),
    }
    let norm = |name: String| Stored::whole(name, [config.width]);
    reader.fill(
        &mut model.norm.gamma,
        &norm("backbone.norm_f.weight".into()),
    )?;
    for (n, (block, config)) in model.blocks.iter_mut().zip(&config.blocks).enumerate() {
        let at = format!("backbone.layers.{n}");
        reader.fill(&mut block.norm.gamma, &norm(format!("{at}.norm.weight")))?;
        match (&mut block.mixer, config) {
            (AnyRecurrent::Heads(AnyHeadLayer::Mamba2(layer)), MixerConfig::Mamba2(config)) => {
                mixer(reader, layer, config, &format!("{at}.mixer"))?;
            }
            _ => unreachable!("the configuration has no other layer"),
        }
    }
    Ok(())
}

fn mixer(
    reader: &mut Reader,
    layer: &mut Mamba2,
    config: &Mamba2Config,
    at: &str,
) -> Result<(), Error> {
    let name = |part: &str| format!("{at}.{part}");
    let (width, heads, values) = (config.d_model, config.heads, config.heads * config.head_dim);
    let mixed = values + 2 * config.groups * config.d_state;
    // The gates, then `x`, `B` and `C`, then the steps.
    let part = |first: usize, rows: usize| {
        let shape = [values + mixed + heads, width];
        let rows = std::iter::once(first..first + rows);
        Stored::rows(name("in_proj.weight"), shape, rows).transposed()
    };
    reader.fill(&mut layer.gate.weight, &part(0, values))?;
    reader.fill(&mut layer.xbc.weight, &part(values, mixed))?;
    reader.fill(&mut layer.dt.weight, &part(values + mixed, heads))?;
    let taps = Stored::whole(name("conv1d.weight"), [mixed, 1, config.taps]);
    reader.fill(&mut layer.convolution.weight, &taps.transposed())?;
    if let Some(bias) = &mut layer.convolution.bias {
        reader.fill(bias, &Stored::whole(name("conv1d.bias"), [mixed]))?;
    }
    let head = |part| Stored::whole(name(part), [heads]);
    reader.fill(&mut layer.decay.a_log, &head("A_log").wide())?;
    reader.fill(&mut layer.decay.dt_bias, &head("dt_bias").wide())?;
    reader.fill(&mut layer.d, &head("D"))?;
    let gamma = Stored::whole(name("norm.weight"), [values]);
    reader.fill(&mut layer.norm.gamma, &gamma)?;
    reader.linear(&mut layer.out, &name("out_proj.weight"))
}
