//! The fields of a model's `config.json`.

use std::fs;
use std::path::Path;

use riverrun::Error;
use serde_json::{Map, Value};

/// The fields of an object in a file.
pub(super) struct Fields {
    file: String,
    fields: Map<String, Value>,
}

impl Fields {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let file = path.display().to_string();
        let failed = |reason: String| Error::File {
            file: file.clone(),
            reason,
        };
        let text = fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
        // Python writes it so, and JSON has no such number.
        let text = text.replace("Infinity", "1e308");
        let value = serde_json::from_str(&text);
        match value.map_err(|error| failed(error.to_string()))? {
            Value::Object(fields) => Ok(Self { file, fields }),
            _ => Err(failed("expected an object".into())),
        }
    }

    /// The object in a field, or this one where it has none.
    pub fn part(&self, name: &str) -> Self {
        let fields = match self.fields.get(name) {
            Some(Value::Object(fields)) => fields,
            _ => &self.fields,
        };
        Self {
            file: self.file.clone(),
            fields: fields.clone(),
        }
    }

    fn refused(&self, name: &str, expected: &str) -> Error {
        let found = self.fields.get(name).unwrap_or(&Value::Null);
        Error::File {
            file: self.file.clone(),
            reason: format!("`{name}`: expected {expected}, found {found}"),
        }
    }

    /// What is there, but for null.
    fn get(&self, name: &str) -> Option<&Value> {
        self.fields.get(name).filter(|value| !value.is_null())
    }

    /// A whole number.
    pub fn whole(&self, name: &str) -> Result<usize, Error> {
        let number = self.get(name).and_then(Value::as_u64);
        let number = number.and_then(|number| usize::try_from(number).ok());
        number.ok_or_else(|| self.refused(name, "a whole number"))
    }

    /// A whole number, or this one where there is none.
    pub fn whole_or(&self, name: &str, absent: usize) -> Result<usize, Error> {
        match self.get(name) {
            Some(_) => self.whole(name),
            None => Ok(absent),
        }
    }

    /// A number, or this one where there is none.
    pub fn number_or(&self, name: &str, absent: f64) -> Result<f64, Error> {
        let Some(value) = self.get(name) else {
            return Ok(absent);
        };
        let number = value.as_f64().filter(|number| number.is_finite());
        number.ok_or_else(|| self.refused(name, "a number"))
    }

    /// True or false, or this one where it is neither.
    pub fn flag_or(&self, name: &str, absent: bool) -> Result<bool, Error> {
        match self.get(name) {
            Some(value) => value
                .as_bool()
                .ok_or_else(|| self.refused(name, "true or false")),
            None => Ok(absent),
        }
    }

    /// A text.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.get(name).and_then(Value::as_str)
    }

    /// Texts in order, if there are any.
    pub fn texts(&self, name: &str) -> Result<Option<Vec<&str>>, Error> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        let all = value
            .as_array()
            .and_then(|all| all.iter().map(Value::as_str).collect());
        all.map(Some)
            .ok_or_else(|| self.refused(name, "a list of texts"))
    }

    /// Whole numbers: one or a list of them; none where there is nothing.
    pub fn wholes(&self, name: &str) -> Result<Vec<usize>, Error> {
        let values = match self.get(name) {
            None => return Ok(vec![]),
            Some(Value::Array(all)) => all.clone(),
            Some(one) => vec![one.clone()],
        };
        let numbers = values
            .iter()
            .map(|value| value.as_u64().map(|number| number as usize));
        let numbers: Option<_> = numbers.collect();
        numbers.ok_or_else(|| self.refused(name, "whole numbers"))
    }

    /// Refuses another value than the one that the model here has; nothing is that one.
    pub fn only(&self, name: &str, value: impl Into<Value>) -> Result<(), Error> {
        let value = value.into();
        match self.get(name) {
            Some(found) if *found != value => Err(self.refused(name, &value.to_string())),
            _ => Ok(()),
        }
    }

    /// Refuses what a field says, of which the model here has nothing.
    pub fn none(&self, name: &str) -> Result<(), Error> {
        match self.get(name) {
            Some(_) => Err(self.refused(name, "null")),
            None => Ok(()),
        }
    }

    /// Refuses limits other than from 0 on.
    pub fn unlimited(&self, name: &str) -> Result<(), Error> {
        let Some(value) = self.get(name) else {
            return Ok(());
        };
        let limits = value.as_array().map(Vec::as_slice);
        match limits {
            Some([low, high])
                if low.as_f64() == Some(0.0) && high.as_f64().is_none_or(|high| high > 1e300) =>
            {
                Ok(())
            }
            _ => Err(self.refused(name, "no limits")),
        }
    }
}
