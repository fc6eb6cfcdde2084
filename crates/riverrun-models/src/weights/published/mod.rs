//! Published models, from the folders in which they are published.

mod fields;
mod mamba2;
mod qwen;
mod rwkv7;
mod xlstm;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use burn::tensor::{DType, Device, FloatDType};
use riverrun::Error;
use riverrun::internal::Reader;
use serde_json::Value;

use super::{gpt2_from_huggingface, griffin_from_huggingface};
use crate::size::MOST_LAYERS;
use crate::{AnyLanguageModel, AnyLanguageModelConfig, Gpt2Config, GriffinConfig};
use fields::Fields;

/// One more than a model can have.
const MOST_BLOCKS: usize = MOST_LAYERS + 1;

/// A model in the files that its authors publish: `config.json` and safetensors of Hugging Face, in one file or in several with
/// an index, or PyTorch's `.pth`.
///
/// | `model_type` | model |
/// | --- | --- |
/// | `qwen3_5`, `qwen3_5_text`, `qwen3_next` | [`Decoder`](crate::Decoder); dense ones, text alone |
/// | `mamba2` | [`Decoder`](crate::Decoder) |
/// | `xlstm` | [`Decoder`](crate::Decoder); xLSTM-7B, with `weight_mode` `single` |
/// | `recurrent_gemma` | [`Griffin`](crate::Griffin), in one file |
/// | `gpt2` | [`Gpt2`](crate::Gpt2), in one file |
/// | no `config.json`: RWKV-7 | [`Rwkv`](crate::Rwkv), its sizes from the shapes |
///
/// Text in means tokens in: a tokenizer is not part of it.
#[derive(Debug, Clone)]
pub struct Published {
    folder: PathBuf,
    files: Vec<PathBuf>,
    kind: Kind,
    config: AnyLanguageModelConfig,
    ends: Vec<usize>,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Qwen,
    Mamba2,
    XLstm,
    Griffin,
    Gpt2,
    Rwkv,
}

impl Published {
    /// Reads what a folder says of its model, but for the weights.
    ///
    /// # Errors
    /// A folder without weights; a `config.json` that cannot be read, of a model that is not in the table, or with a field that is
    /// missing or of which the model here has no counterpart, by its name.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self, Error> {
        let folder = folder.as_ref();
        let files = files(folder)?;
        let path = folder.join("config.json");
        if !path.exists() {
            let config = rwkv7::config(&Reader::open(folder, &files)?)?;
            config.check()?;
            return Ok(Self {
                folder: folder.into(),
                files,
                kind: Kind::Rwkv,
                config: config.into(),
                // The end of a document has the first number.
                ends: vec![0],
            });
        }
        let fields = Fields::read(&path)?;
        let (kind, config) = match fields.text("model_type") {
            Some("qwen3_5" | "qwen3_5_text" | "qwen3_next") => {
                (Kind::Qwen, qwen::config(&fields)?.into())
            }
            Some("mamba2") => (Kind::Mamba2, mamba2::config(&fields)?.into()),
            Some("xlstm") => (Kind::XLstm, xlstm::config(&fields)?.into()),
            Some("gpt2") => (Kind::Gpt2, gpt2(&fields)?),
            Some("recurrent_gemma") => (Kind::Griffin, griffin(&fields)?),
            found => {
                return Err(Error::Unsupported(format!(
                    "{}: `model_type` {}: expected qwen3_5, qwen3_5_text, qwen3_next, mamba2, xlstm, recurrent_gemma or gpt2",
                    path.display(),
                    found.unwrap_or("is missing")
                )));
            }
        };
        config.check()?;
        let generation = folder.join("generation_config.json");
        let mut ends = match generation.exists() {
            true => Fields::read(&generation)?.wholes("eos_token_id")?,
            false => vec![],
        };
        if ends.is_empty() {
            ends = fields.part("text_config").wholes("eos_token_id")?;
        }
        Ok(Self {
            folder: folder.into(),
            files,
            kind,
            config,
            ends,
        })
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The configuration of the model.
    pub fn config(&self) -> &AnyLanguageModelConfig {
        &self.config
    }

    /// The tokens after which a text ends.
    pub fn ends(&self) -> &[usize] {
        &self.ends
    }

    /// The format in which the files have most numbers.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn dtype(&self) -> Result<Option<DType>, Error> {
        Ok(Reader::open(&self.folder, &self.files)?.dtype())
    }

    /// The model with its weights in a format; parameters of decays stay in `f32`. GPT-2 and RecurrentGemma are `f32` whatever the
    /// format. All tensors are compared with the model, by name, shape and type, before one is read.
    ///
    /// # Errors
    /// A tensor that is missing, that the model does not have, that has another shape, or that holds a number that is not finite, by
    /// its name; a head with weights of its own where the configuration has none; a file that cannot be read.
    pub fn load(&self, device: &Device, dtype: FloatDType) -> Result<AnyLanguageModel, Error> {
        let mut model = self.config.init(device);
        let mut reader = match self.kind {
            Kind::Gpt2 | Kind::Griffin => return self.whole(model),
            _ => Reader::open(&self.folder, &self.files)?,
        };
        self.read(&mut model, &mut reader)?;
        reader.load(dtype)?;
        self.read(&mut model, &mut reader)?;
        Ok(model)
    }

    fn read(&self, model: &mut AnyLanguageModel, reader: &mut Reader) -> Result<(), Error> {
        use AnyLanguageModelConfig as Config;
        match (model, &self.config, self.kind) {
            (AnyLanguageModel::Decoder(model), Config::Decoder(config), Kind::Qwen) => {
                qwen::read(model, config, reader)
            }
            (AnyLanguageModel::Decoder(model), Config::Decoder(config), Kind::XLstm) => {
                xlstm::read(model, config, reader)
            }
            (AnyLanguageModel::Decoder(model), Config::Decoder(config), _) => {
                mamba2::read(model, config, reader)
            }
            (AnyLanguageModel::Rwkv(model), Config::Rwkv(config), _) => {
                rwkv7::read(model, config, reader)
            }
            _ => unreachable!("these are the models with a reader"),
        }
    }

    /// The models that are read from one file.
    fn whole(&self, model: AnyLanguageModel) -> Result<AnyLanguageModel, Error> {
        let [file] = &self.files[..] else {
            return Err(Error::Unsupported(format!(
                "{}: weights of this model in several files",
                self.folder.display()
            )));
        };
        Ok(match model {
            AnyLanguageModel::Gpt2(model) => {
                AnyLanguageModel::Gpt2(gpt2_from_huggingface(model, file)?)
            }
            AnyLanguageModel::Griffin(model) => {
                AnyLanguageModel::Griffin(griffin_from_huggingface(model, file)?)
            }
            _ => unreachable!("these are the models of one file"),
        })
    }
}

/// The files with the weights of a folder.
fn files(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let failed = |path: &Path, reason: String| Error::File {
        file: path.display().to_string(),
        reason,
    };
    for (file, index) in [
        ("model.safetensors", "model.safetensors.index.json"),
        ("pytorch_model.bin", "pytorch_model.bin.index.json"),
    ] {
        let (file, index) = (folder.join(file), folder.join(index));
        if file.exists() {
            return Ok(vec![file]);
        }
        if !index.exists() {
            continue;
        }
        let text = fs::read(&index).map_err(|error| failed(&index, error.to_string()))?;
        let value: Value =
            serde_json::from_slice(&text).map_err(|error| failed(&index, error.to_string()))?;
        let names = value["weight_map"].as_object().map(|map| map.values());
        let names: Option<BTreeSet<&str>> =
            names.and_then(|names| names.map(Value::as_str).collect());
        let names =
            names.ok_or_else(|| failed(&index, "`weight_map`: expected names of files".into()))?;
        // The names are another's: none leads out of the folder.
        if let Some(name) = names
            .iter()
            .find(|name| Path::new(name).file_name() != Some(name.as_ref()))
        {
            return Err(failed(
                &index,
                format!("`weight_map`: {name}: expected a file beside it"),
            ));
        }
        return Ok(names.into_iter().map(|name| folder.join(name)).collect());
    }
    let entries = fs::read_dir(folder).map_err(|error| failed(folder, error.to_string()))?;
    let paths = entries.filter_map(|entry| entry.ok().map(|entry| entry.path()));
    let weights: Vec<PathBuf> = paths
        .filter(|path| {
            path.extension()
                .is_some_and(|end| end == "pth" || end == "safetensors")
        })
        .collect();
    match weights.len() {
        1 => Ok(weights),
        found => Err(failed(
            folder,
            format!(
                "expected model.safetensors, its index, or one .pth or .safetensors, found {found}"
            ),
        )),
    }
}

/// GPT-2 of a `config.json`.
fn gpt2(fields: &Fields) -> Result<AnyLanguageModelConfig, Error> {
    fields.only("activation_function", "gelu_new")?;
    fields.none("n_inner")?;
    let config = Gpt2Config::new(
        fields.whole("vocab_size")?,
        fields.whole("n_embd")?,
        fields.whole("n_layer")?,
        fields.whole("n_head")?,
    );
    Ok(config
        .with_positions(fields.whole("n_positions")?)
        .with_epsilon(fields.number_or("layer_norm_epsilon", 1e-5)?)
        .into())
}

/// RecurrentGemma of a `config.json`.
fn griffin(fields: &Fields) -> Result<AnyLanguageModelConfig, Error> {
    fields.only("hidden_activation", "gelu_pytorch_tanh")?;
    fields.only("num_key_value_heads", 1)?;
    fields.only("conv1d_width", 4)?;
    fields.only("attention_bias", false)?;
    if let Some(kinds) = fields.texts("block_types")?
        && kinds != ["recurrent", "recurrent", "attention"]
    {
        return Err(Error::Unsupported(format!("block_types {kinds:?}")));
    }
    let width = fields.whole("hidden_size")?;
    let inner = fields.whole("intermediate_size")?;
    if width == 0 || !inner.is_multiple_of(2 * width) {
        return Err(Error::Invalid(format!(
            "intermediate_size: expected twice a multiple of the hidden_size {width}, found {inner}"
        )));
    }
    let config = GriffinConfig::new(
        fields.whole("vocab_size")?,
        width,
        fields.whole("num_hidden_layers")?,
        fields.whole("num_attention_heads")?,
    );
    // bfloat16 has 8 bits of a number.
    let scale = f32::from_bits(((width as f32).sqrt().to_bits() + 0x8000) & 0xffff_0000);
    Ok(config
        .with_window(fields.whole("attention_window_size")?)
        .with_d_rnn(Some(fields.whole_or("lru_width", width)?))
        .with_mlp(inner / 2 / width)
        .with_logit_cap(Some(fields.number_or("logits_soft_cap", 30.0)?))
        .with_embedding_scale(Some(f64::from(scale)))
        .into())
}
