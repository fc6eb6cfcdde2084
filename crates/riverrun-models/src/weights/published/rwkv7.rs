//! RWKV-7, in the names of its authors' files.

use riverrun::Error;
use riverrun::internal::{Reader, Stored};
use riverrun::nn::{LayerNorm, LowRank, Rwkv7};

use crate::{Rwkv, RwkvConfig};

/// The sizes of a model, which its files have in their shapes alone.
pub(super) fn config(reader: &Reader) -> Result<RwkvConfig, Error> {
    let matrix = |name: &str| -> Result<[usize; 2], Error> {
        let shape = reader.shape(name)?;
        shape.as_slice().try_into().map_err(|_| {
            Error::Unsupported(format!(
                "tensor `{name}` of shape {shape:?}: expected a matrix"
            ))
        })
    };
    let [vocab, width] = matrix("emb.weight")?;
    let [heads, _] = matrix("blocks.0.att.r_k")?;
    let [inner, _] = matrix("blocks.0.ffn.key.weight")?;
    let rank = |part: &str| matrix(&format!("blocks.0.att.{part}1")).map(|[_, rank]| rank);
    let block = |name: &str| -> Option<usize> {
        let (number, _) = name.strip_prefix("blocks.")?.split_once('.')?;
        number.parse().ok()
    };
    let layers = reader
        .names()
        .filter_map(block)
        .max()
        .map_or(0, |last| last + 1);
    let config = RwkvConfig::new(vocab, width, layers, heads)
        .with_inner(Some(inner))
        .with_decay_rank(rank("w")?)
        .with_rate_rank(rank("a")?)
        .with_gate_rank(rank("g")?);
    match layers {
        0 | 1 => Ok(config),
        _ => {
            let [_, rank] = matrix("blocks.1.att.v1")?;
            Ok(config.with_value_rank(rank))
        }
    }
}

/// Compares the model with the files, or fills it.
pub(super) fn read(
    model: &mut Rwkv,
    config: &RwkvConfig,
    reader: &mut Reader,
) -> Result<(), Error> {
    // Of the first layer, which has no values to mix; some files have them.
    reader.ignore(|name| {
        name.strip_prefix("blocks.0.att.")
            .is_some_and(|part| ["v0", "v1", "v2"].contains(&part))
    });
    let table = Stored::whole("emb.weight", [config.vocab, config.width]);
    reader.fill(&mut model.embedding.weight, &table)?;
    reader.linear(&mut model.out, "head.weight")?;
    norm(reader, &mut model.embedding_norm, "blocks.0.ln0")?;
    norm(reader, &mut model.norm, "ln_out")?;
    for (n, block) in model.blocks.iter_mut().enumerate() {
        let at = format!("blocks.{n}");
        norm(reader, &mut block.time_norm, &format!("{at}.ln1"))?;
        norm(reader, &mut block.channel_norm, &format!("{at}.ln2"))?;
        time(reader, &mut block.time, config, &format!("{at}.att"))?;
        let channels = &mut block.channels;
        let mix = Stored::whole(format!("{at}.ffn.x_k"), [1, 1, config.width]);
        reader.fill(&mut channels.mix, &mix)?;
        reader.linear(&mut channels.key, &format!("{at}.ffn.key.weight"))?;
        reader.linear(&mut channels.value, &format!("{at}.ffn.value.weight"))?;
    }
    Ok(())
}

fn norm(reader: &mut Reader, norm: &mut LayerNorm, name: &str) -> Result<(), Error> {
    let part = |part: &str, shape: Vec<usize>| Stored::whole(format!("{name}.{part}"), shape);
    let shape = norm.gamma.lazy_shape().to_vec();
    reader.fill(&mut norm.gamma, &part("weight", shape.clone()))?;
    match &mut norm.beta {
        Some(beta) => reader.fill(beta, &part("bias", shape)),
        None => Ok(()),
    }
}

/// Matrices of low rank, whose inputs come first in the files too.
fn low_rank(reader: &mut Reader, layer: &mut LowRank, name: &str) -> Result<(), Error> {
    for (matrix, part) in [(&mut layer.down, 1), (&mut layer.up, 2)] {
        let shape = matrix.weight.lazy_shape().to_vec();
        let stored = Stored::whole(format!("{name}{part}"), shape);
        reader.fill(&mut matrix.weight, &stored)?;
    }
    match &mut layer.up.bias {
        Some(bias) => {
            let [width] = bias.lazy_shape().dims();
            reader.fill(bias, &Stored::whole(format!("{name}0"), [1, 1, width]))
        }
        None => Ok(()),
    }
}

fn time(
    reader: &mut Reader,
    layer: &mut Rwkv7,
    config: &RwkvConfig,
    at: &str,
) -> Result<(), Error> {
    let name = |part: &str| format!("{at}.{part}");
    let row = |part: &str| Stored::whole(name(part), [1, 1, config.width]);
    let others = ["x_w", "x_k", "x_v", "x_a", "x_g"].into_iter();
    let mix = others.fold(row("x_r"), |rows, part| rows.below(row(part)));
    reader.fill(&mut layer.mix, &mix)?;
    reader.linear(&mut layer.receptance, &name("receptance.weight"))?;
    reader.linear(&mut layer.key, &name("key.weight"))?;
    reader.linear(&mut layer.value, &name("value.weight"))?;
    reader.linear(&mut layer.out, &name("output.weight"))?;
    low_rank(reader, &mut layer.decay, &name("w"))?;
    low_rank(reader, &mut layer.rate, &name("a"))?;
    low_rank(reader, &mut layer.gate, &name("g"))?;
    if let Some(part) = &mut layer.value_part {
        low_rank(reader, part, &name("v"))?;
    }
    reader.fill(&mut layer.key_erase, &row("k_k"))?;
    reader.fill(&mut layer.key_rate, &row("k_a"))?;
    let shape = layer.bonus.lazy_shape().to_vec();
    reader.fill(&mut layer.bonus, &Stored::whole(name("r_k"), shape))?;
    norm(reader, &mut layer.norm, &name("ln_x"))
}
