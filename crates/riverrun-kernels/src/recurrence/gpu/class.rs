//! The classes of problems that take one tuning of the look-back, as the rules of [`Tuning`](super::Tuning) have them.

use std::fmt;
use std::str::FromStr;

use crate::gpu::Dtype;
use crate::recurrence::{Gate, Problem, Shape};

/// Lanes of a problem: channels of all its sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Lanes {
    /// More than 4096.
    Many,
    /// 513 to 4096.
    Some,
    /// Up to 512.
    Few,
    /// More than 512, of sequences with an odd number of channels: one channel a thread.
    Odd,
}

impl Lanes {
    /// Every band, the usual ones first.
    pub const ALL: [Self; 4] = [Self::Some, Self::Many, Self::Few, Self::Odd];

    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Many => "more",
            Self::Some => "4096",
            Self::Few => "512",
            Self::Odd => "odd",
        }
    }

    /// The sizes of the problem that is measured for all. Its indices have 32 bits, as those of a small one have.
    fn shape(self) -> Shape {
        match self {
            Self::Many => Shape::new(4, 8192, 5120),
            Self::Some => Shape::new(1, 65_536, 2048),
            Self::Few => Shape::new(1, 65_536, 256),
            Self::Odd => Shape::new(4, 4096, 5119),
        }
    }
}

/// A class of problems for the look-back; its text is that of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Class {
    /// The gate.
    pub gate: Gate,
    /// The storage type.
    pub dtype: Dtype,
    /// The pass.
    pub backward: bool,
    /// The lanes.
    pub lanes: Lanes,
}

impl Class {
    /// The class of a problem; `None` for a few lanes of an odd width, which no class stands for.
    pub fn of(problem: &Problem, dtype: Dtype, backward: bool) -> Option<Self> {
        let odd = problem.shape.dim % 2 == 1;
        let lanes = match problem.shape.state() {
            ..=512 if odd => return None,
            _ if odd => Lanes::Odd,
            ..=512 => Lanes::Few,
            513..=4096 => Lanes::Some,
            _ => Lanes::Many,
        };
        Some(Self {
            gate: problem.gate,
            dtype,
            backward,
            lanes,
        })
    }

    /// The problem that is measured for the class.
    pub fn problem(self) -> Problem {
        Problem::new(self.lanes.shape(), self.gate)
    }

    /// The class of the other storage type of 16 bits, whose kernels differ in conversions alone.
    pub(crate) fn other_half(self) -> Option<Self> {
        let dtype = match self.dtype {
            Dtype::F16 => Dtype::Bf16,
            Dtype::Bf16 => Dtype::F16,
            Dtype::F32 => return None,
        };
        Some(Self { dtype, ..self })
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pass = if self.backward { "backward" } else { "forward" };
        let (gate, dtype) = (self.gate.name(), self.dtype.name());
        write!(f, "{gate} {dtype} {pass} {}", self.lanes.name())
    }
}

impl FromStr for Class {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let class = || {
            let [gate, dtype, pass, lanes] = text.split(' ').collect::<Vec<_>>().try_into().ok()?;
            Some(Self {
                gate: Gate::from_name(gate)?,
                dtype: Dtype::ALL.into_iter().find(|known| known.name() == dtype)?,
                backward: match pass {
                    "forward" => false,
                    "backward" => true,
                    _ => return None,
                },
                lanes: Lanes::ALL.into_iter().find(|known| known.name() == lanes)?,
            })
        };
        class().ok_or_else(|| format!("`{text}` is no class of scans"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_hold_the_problem_that_is_measured_and_are_read_as_written() {
        for gate in Gate::all() {
            for (lanes, backward) in Lanes::ALL.into_iter().zip([true, false].repeat(2)) {
                let dtype = Dtype::Bf16;
                let class = Class {
                    gate,
                    dtype,
                    backward,
                    lanes,
                };
                assert_eq!(Class::of(&class.problem(), dtype, backward), Some(class));
                assert_eq!(class.to_string().parse(), Ok(class));
            }
        }
        for wrong in [
            "",
            "raw f32 forward",
            "raw f64 forward 512",
            "raw f32 up 512",
        ] {
            assert!(wrong.parse::<Class>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn bands_end_where_those_of_the_rules_do() {
        let lanes = |batch, dim| {
            let problem = Problem::new(Shape::new(batch, 100, dim), Gate::Raw);
            Class::of(&problem, Dtype::F32, false).map(|class| class.lanes)
        };
        assert_eq!(lanes(2, 256), Some(Lanes::Few));
        assert_eq!(lanes(2, 258), Some(Lanes::Some));
        assert_eq!(lanes(1, 4096), Some(Lanes::Some));
        assert_eq!(lanes(1, 4098), Some(Lanes::Many));
        assert_eq!(lanes(1, 513), Some(Lanes::Odd));
        assert_eq!(lanes(1, 511), None);
    }
}
