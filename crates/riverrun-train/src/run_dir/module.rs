//! A module in a file of a run.

use std::path::Path;

use burn::module::{Module, ParamGroup};
use burn::store::ModuleRecord;
use riverrun_models::adapted;

use crate::Error;

/// Writes a module; of one with [LoRA's factors](adapted) these alone.
pub(crate) fn save_module<M: Module>(module: M, path: &Path) -> Result<(), Error> {
    let record = match adapted(&module) {
        None => module.into_record(),
        Some(factors) => {
            module.into_record_group(ParamGroup::from_ids(factors.into_iter().collect()))
        }
    };
    record.save(path).map_err(|error| Error::write(path, error))
}

/// Reads what [`save_module`] wrote into a module of its shape.
pub(crate) fn load_module<M: Module>(module: M, path: &Path) -> Result<M, Error> {
    if !path.is_file() {
        let missing = std::io::Error::from(std::io::ErrorKind::NotFound);
        return Err(Error::read(path, missing));
    }
    let record = ModuleRecord::load(path).map_err(|error| Error::damaged(path, error))?;
    let factors = adapted(&module).map(|factors| factors.len());
    if factors.is_some_and(|factors| factors != record.len()) {
        return Err(Error::damaged(path, "it has not all factors"));
    }
    module
        .try_load_record(record.allow_partial(factors.is_some()))
        .map_err(|error| Error::damaged(path, error))
}
