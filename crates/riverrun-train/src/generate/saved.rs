//! Where a model is in a text, in a file: a prompt that many texts begin with is read once.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{DType, Device, Tensor, TensorData};
use riverrun_models::{AnyLanguageModel, AnyLmState, StateParts};
use safetensors::tensor::{Dtype, TensorView};
use safetensors::{SafeTensors, serialize};
use xxhash_rust::xxh3::Xxh3;

use crate::Error;
use crate::run_dir::write_atomic;

/// The name of the logits of the next symbol.
const LOGITS: &str = "logits";

/// What a state is of: a number of the model's vectors, its norms and biases, which training changes.
fn fingerprint(model: &AnyLanguageModel) -> String {
    struct Vectors(Xxh3);
    impl ModuleVisitor for Vectors {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0
                .update(format!("{:?}", param.lazy_shape()).as_bytes());
            if D == 1 {
                self.0.update(param.val().into_data().as_bytes());
            }
        }
    }
    let mut vectors = Vectors(Xxh3::new());
    model.visit(&mut vectors);
    format!("{:016x}", vectors.0.digest())
}

/// The parts of a state, in memory of the host.
#[derive(Default)]
struct Written {
    tensors: BTreeMap<String, TensorData>,
    positions: BTreeMap<String, usize>,
}

impl StateParts for Written {
    fn tensor<const D: usize>(
        &mut self,
        name: String,
        part: Tensor<D>,
    ) -> Result<Tensor<D>, riverrun::Error> {
        self.tensors
            .insert(name, riverrun::device::read(part.clone())?);
        Ok(part)
    }

    fn position(&mut self, name: String, part: usize) -> Result<usize, riverrun::Error> {
        self.positions.insert(name, part);
        Ok(part)
    }
}

/// The types of a state's numbers.
const TYPES: [(DType, Dtype); 4] = [
    (DType::F32, Dtype::F32),
    (DType::F16, Dtype::F16),
    (DType::BF16, Dtype::BF16),
    (DType::F64, Dtype::F64),
];

/// Writes the state of a model and the logits of the next symbol, `[1, V]`.
pub(super) fn save(
    path: &Path,
    model: &AnyLanguageModel,
    state: AnyLmState,
    logits: Tensor<2>,
) -> Result<(), Error> {
    let mut written = Written::default();
    state.with_parts(&mut written)?;
    written.tensor(LOGITS.into(), logits)?;
    let numbers = written.positions.iter();
    let mut metadata: HashMap<String, String> = numbers
        .map(|(name, position)| (name.clone(), position.to_string()))
        .collect();
    metadata.insert("model".into(), fingerprint(model));
    let views = written.tensors.iter().map(|(name, data)| {
        let dtype = TYPES.iter().find(|(ours, _)| *ours == data.dtype());
        let (_, dtype) = dtype.expect("a state is of floats");
        let view = TensorView::new(*dtype, data.shape().to_vec(), data.as_bytes());
        view.map(|view| (name, view))
    });
    let views: Result<Vec<_>, _> = views.collect();
    let bytes = views.and_then(|views| serialize(views, Some(metadata)));
    write_atomic(path, &bytes.map_err(|error| Error::write(path, error))?)
}

/// The parts of a state in a file.
struct Read<'a> {
    path: &'a Path,
    tensors: SafeTensors<'a>,
    positions: &'a HashMap<String, String>,
    device: &'a Device,
}

impl Read<'_> {
    fn damaged(&self, reason: String) -> riverrun::Error {
        riverrun::Error::File {
            file: self.path.display().to_string(),
            reason,
        }
    }
}

impl StateParts for Read<'_> {
    fn tensor<const D: usize>(
        &mut self,
        name: String,
        part: Tensor<D>,
    ) -> Result<Tensor<D>, riverrun::Error> {
        let view = self
            .tensors
            .tensor(&name)
            .map_err(|error| self.damaged(error.to_string()))?;
        let dtype = TYPES.iter().find(|(_, theirs)| *theirs == view.dtype());
        let (expected, found) = (part.dims(), view.shape());
        // The cache of attention grows with the steps.
        let grows = name.ends_with(".keys") || name.ends_with(".values");
        let fits = expected.len() == found.len()
            && (0..D).all(|d| expected[d] == found[d] || (grows && d == 1));
        match dtype {
            Some((dtype, _)) if fits && *dtype == part.dtype() => {
                let data = TensorData::from_bytes_vec(view.data().to_vec(), found.to_vec(), *dtype);
                Ok(Tensor::from_data(data, (self.device, *dtype)))
            }
            _ => Err(self.damaged(format!(
                "`{name}` of shape {found:?} and type {:?}: expected {expected:?} and {:?}",
                view.dtype(),
                part.dtype()
            ))),
        }
    }

    fn position(&mut self, name: String, _: usize) -> Result<usize, riverrun::Error> {
        let position = self
            .positions
            .get(&name)
            .and_then(|position| position.parse().ok());
        position.ok_or_else(|| self.damaged(format!("`{name}` is missing")))
    }
}

/// The logits of the next symbol, `[1, V]`, and the state that a file has; `like` is any state and any logits of the model.
pub(super) fn load(
    path: &Path,
    model: &AnyLanguageModel,
    (logits, like): (Tensor<2>, AnyLmState),
    device: &Device,
) -> Result<(Tensor<2>, AnyLmState), Error> {
    let bytes = fs::read(path).map_err(|error| Error::read(path, error))?;
    let damaged = |error| Error::damaged(path, error);
    let (_, header) = SafeTensors::read_metadata(&bytes).map_err(damaged)?;
    let none = HashMap::new();
    let positions = header.metadata().as_ref().unwrap_or(&none);
    if positions.get("model") != Some(&fingerprint(model)) {
        return Err(Error::Unsupported(format!(
            "{} is the state of another model, or in another format",
            path.display()
        )));
    }
    let mut read = Read {
        path,
        tensors: SafeTensors::deserialize(&bytes).map_err(damaged)?,
        positions,
        device,
    };
    let state = like.with_parts(&mut read)?;
    Ok((read.tensor(LOGITS.into(), logits)?, state))
}

/// A start of one sample for several.
pub(super) fn repeated(
    (logits, state): (Tensor<2>, AnyLmState),
    samples: usize,
) -> Result<(Tensor<2>, AnyLmState), Error> {
    struct Repeat(usize);
    impl StateParts for Repeat {
        fn tensor<const D: usize>(
            &mut self,
            _: String,
            part: Tensor<D>,
        ) -> Result<Tensor<D>, riverrun::Error> {
            Ok(part.repeat_dim(0, self.0))
        }

        fn position(&mut self, _: String, part: usize) -> Result<usize, riverrun::Error> {
            Ok(part)
        }
    }
    match samples {
        1 => Ok((logits, state)),
        _ => Ok((
            logits.repeat_dim(0, samples),
            state.with_parts(&mut Repeat(samples))?,
        )),
    }
}
