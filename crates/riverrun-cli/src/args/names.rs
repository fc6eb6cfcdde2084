//! Values of options that several commands take by name.

use std::str::FromStr;

use clap::builder::{PossibleValuesParser, RangedU64ValueParser, TypedValueParser};
use riverrun_kernels::cell::Cell;
use riverrun_kernels::recurrence::{Gate, Routine};
use riverrun_train::Precision;

/// Parses the name of a gate.
pub fn gate() -> impl TypedValueParser<Value = Gate> {
    let known = |name: String| Gate::all().into_iter().find(|gate| gate.name() == name);
    PossibleValuesParser::new(Gate::all().into_iter().map(Gate::name))
        .try_map(move |name| known(name).ok_or("unknown gate"))
}

/// Parses the name of a routine of the linear recurrence.
pub fn routine() -> impl TypedValueParser<Value = Routine> {
    PossibleValuesParser::new(Routine::ALL.map(Routine::name))
        .try_map(|name| Routine::from_name(&name).ok_or("unknown routine"))
}

/// Parses the name of a cell.
pub fn cell() -> impl TypedValueParser<Value = Cell> {
    let known = |name: String| Cell::all().into_iter().find(|cell| cell.name() == name);
    PossibleValuesParser::new(Cell::all().into_iter().map(Cell::name))
        .try_map(move |name| known(name).ok_or("unknown cell"))
}

/// Parses a size of a model.
pub fn positive() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=1 << 20)
}

/// Parses a positive number of seconds.
pub fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= 86_400.0 => Ok(seconds),
        _ => Err("expected a number of seconds above 0 and at most 86400".into()),
    }
}

/// Parses a positive number of passes over data.
pub fn epochs(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(epochs) if epochs > 0.0 && epochs <= 1e6 => Ok(epochs),
        _ => Err("expected a number above 0 and at most 1000000".into()),
    }
}

/// Parses a number of bytes with its unit.
pub fn bytes(text: &str) -> Result<u64, String> {
    let units = [
        ("KiB", 1024.0),
        ("MiB", 1048576.0),
        ("GiB", 1073741824.0),
        ("kB", 1e3),
        ("MB", 1e6),
        ("GB", 1e9),
    ];
    let known = units.into_iter().find_map(|(unit, size)| {
        let number: f64 = text.strip_suffix(unit)?.trim().parse().ok()?;
        let bytes = number * size;
        (1.0..1e18).contains(&bytes).then_some(bytes as u64)
    });
    known.ok_or("expected a size such as 6GB, 512MB or 8GiB".into())
}

/// `N` positive sizes with an `x` between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes<const N: usize>(pub [usize; N]);

impl<const N: usize> FromStr for Sizes<N> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts: Result<Vec<usize>, _> = text.split('x').map(str::parse).collect();
        let sizes: Option<[usize; N]> = parts.ok().and_then(|parts| parts.try_into().ok());
        let sizes = sizes
            .filter(|sizes| sizes.iter().all(|&size| size > 0))
            .ok_or_else(|| format!("expected {N} positive sizes with an x between them"))?;
        let elements = sizes
            .iter()
            .try_fold(1usize, |product, &size| product.checked_mul(size));
        match elements {
            Some(elements) if elements <= 1 << 40 => Ok(Self(sizes)),
            _ => Err("these are more than 2^40 elements".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_positive_and_bounded() {
        assert_eq!("4x32x5120".parse(), Ok(Sizes([4, 32, 5120])));
        for wrong in ["", "4", "4x0x2", "4x-1x2", "4x32", "4x32x1x1", "axbxc"] {
            assert!(wrong.parse::<Sizes<3>>().is_err(), "{wrong}");
        }
        let beyond = "18446744073709551615x2x2".parse::<Sizes<3>>();
        assert!(beyond.unwrap_err().contains("2^40"));
    }

    #[test]
    fn sizes_of_memory_have_units() {
        assert_eq!(bytes("6GB"), Ok(6_000_000_000));
        assert_eq!(bytes("1.5 MiB"), Ok(1_572_864));
        for wrong in ["6", "GB", "-1GB", "1e30GB", "nanGB", "6gb"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn seconds_are_finite_and_positive() {
        assert_eq!(seconds("0.5"), Ok(0.5));
        for wrong in ["nan", "inf", "-1", "0", "1e9", "soon"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}

/// A format of arithmetic on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// That of [`Precision::of`] the device.
    Auto,
    /// This one.
    Of(Precision),
}

impl FromStr for Format {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "auto" => Ok(Self::Auto),
            _ => match name.parse() {
                Ok(precision) => Ok(Self::Of(precision)),
                Err(_) => Err("one of auto, f32, f16, bf16".into()),
            },
        }
    }
}
