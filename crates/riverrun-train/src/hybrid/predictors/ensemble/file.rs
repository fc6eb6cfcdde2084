//! The ensemble in a file of its own, so that what is learned from some runs serves others.

use std::fs;
use std::path::Path;

use burn::tensor::Device;
use riverrun_kernels::rollout::HEADS;
use safetensors::tensor::{Dtype, TensorView};
use safetensors::{SafeTensors, serialize};

use super::EnsembleConfig;
use super::net::Net;
use crate::Error;
use crate::hybrid::FEATURES;
use crate::run_dir::write_atomic;

/// The tensors' names, in the order of the fields of [`Net`].
const NAMES: [&str; 4] = ["w", "u", "bias", "heads"];

/// Writes the weights as safetensors, in f32.
///
/// # Errors
/// A device that fails; a disk that is full or refuses.
pub(super) fn save(path: &Path, net: &Net) -> Result<(), Error> {
    let all = [
        riverrun::device::read(net.w.val())?,
        riverrun::device::read(net.u.val())?,
        riverrun::device::read(net.bias.val())?,
        riverrun::device::read(net.heads.val())?,
    ];
    let views = NAMES.iter().zip(&all).map(|(name, data)| {
        let view = TensorView::new(Dtype::F32, data.shape().to_vec(), data.as_bytes());
        view.map(|view| (*name, view))
    });
    let bytes = views
        .collect::<Result<Vec<_>, _>>()
        .and_then(|views| serialize(views, None))
        .map_err(|error| Error::write(path, error))?;
    write_atomic(path, &bytes)
}

/// The sizes of the ensemble in a file, with the other settings of `config`.
///
/// # Errors
/// A file that cannot be read, or is no ensemble; sizes that [`EnsembleConfig::check`] refuses.
pub(super) fn sizes(path: &Path, config: &EnsembleConfig) -> Result<EnsembleConfig, Error> {
    let bytes = fs::read(path).map_err(|error| Error::read(path, error))?;
    let [_, u, ..] = views(path, &bytes)?;
    let &[members, _, hidden] = u.shape() else {
        return Err(Error::damaged(path, "u is not a tensor of rank 3"));
    };
    let config = EnsembleConfig {
        members,
        hidden,
        start: Some(path.into()),
        ..config.clone()
    };
    config.check()?;
    Ok(config)
}

/// Reads the weights.
///
/// # Errors
/// As [`sizes`]; other sizes than those of `config`; weights that are not finite.
pub(super) fn load(path: &Path, config: &EnsembleConfig, device: &Device) -> Result<Net, Error> {
    let bytes = fs::read(path).map_err(|error| Error::read(path, error))?;
    let (members, hidden) = (config.members, config.hidden);
    let shapes: [&[usize]; 4] = [
        &[members, 3 * hidden, FEATURES],
        &[members, 3 * hidden, hidden],
        &[members, 3 * hidden],
        &[HEADS, config.combined()],
    ];
    let mut numbers = [const { Vec::new() }; 4];
    for (i, view) in views(path, &bytes)?.into_iter().enumerate() {
        if view.shape() != shapes[i] || view.dtype() != Dtype::F32 {
            let (name, found, expected) = (NAMES[i], view.shape(), shapes[i]);
            let reason = format!(
                "{name} is {found:?} in {:?}, expected {expected:?} in f32",
                view.dtype()
            );
            return Err(Error::damaged(path, reason));
        }
        let read = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().expect("four bytes"));
        numbers[i] = view.data().chunks_exact(4).map(read).collect();
    }
    if !numbers.iter().flatten().all(|x| x.is_finite()) {
        return Err(Error::damaged(path, "a weight is not finite"));
    }
    Ok(Net::new(config, numbers, device))
}

fn views<'a>(path: &Path, bytes: &'a [u8]) -> Result<[TensorView<'a>; 4], Error> {
    let file = SafeTensors::deserialize(bytes).map_err(|error| Error::damaged(path, error))?;
    let mut found = Vec::with_capacity(NAMES.len());
    for name in NAMES {
        let view = file.tensor(name);
        found.push(view.map_err(|error| Error::damaged(path, error))?);
    }
    Ok(found.try_into().expect("one for each name"))
}
