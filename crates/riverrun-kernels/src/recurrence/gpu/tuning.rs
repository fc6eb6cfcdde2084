//! The numbers that shape a launch.

use std::fmt;
use std::str::FromStr;

use super::Class;
use crate::gpu::Dtype;
use crate::recurrence::{Gate, Problem, Routine};

/// The values of a step that a thread of the forward pass keeps in registers, between reducing its steps and applying them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Registers {
    /// The inputs in the storage type, the fewest registers; the coefficients are computed twice.
    Inputs,
    /// The coefficients.
    Coefficients,
}

/// The numbers that shape a launch; [`Tuning::default_for`] holds those that were measured on an H200, and the
/// [`Table`](crate::tuned::Table) of a card those that were measured there. As text, `vector:len:planes:lookback[:registers[:chunk[:cube]]]`, where registers is 0 for the
/// coefficients and 1 for the inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuning {
    /// Channels a thread works on (a vector), at most; the largest that divides the layout is taken.
    pub vector: usize,
    /// Steps a thread keeps in registers.
    pub len: usize,
    /// Forward: the values it keeps of a step.
    pub registers: Registers,
    /// Look-back: planes of 32 threads in a cube.
    pub planes: usize,
    /// Look-back: tiles that each plane folds; 0 to wait for the previous tile only.
    pub lookback: usize,
    /// Chunked: steps a chunk (a multiple of `len`).
    pub chunk: usize,
    /// Threads of a cube, for the other routines.
    pub cube: u32,
}

impl Tuning {
    /// Whether the look-back can run a class with it: its tile stays in registers, and has no more steps than by the rules, nor a
    /// group of tiles: the factors of all of them are multiplied up.
    pub fn fits(&self, class: Class) -> bool {
        let power = |size: usize, least: usize, most: usize| {
            size.is_power_of_two() && (least..=most).contains(&size)
        };
        let bytes = || self.vector * self.step_bytes(class.gate, class.dtype, class.backward);
        // Of 8 planes a thread has all 255 registers.
        let kept = if self.planes >= 16 { KEPT } else { 2 * KEPT };
        power(self.vector, 1, 8)
            && power(self.len, 4, 128)
            && power(self.planes, 2, 16)
            && self.lookback <= 2
            && self.len * self.planes <= 512
            && self.planes * self.lookback <= 16
            && self.len * bytes() <= 4 * kept
    }

    /// The tuning for a problem by rule.
    pub fn default_for(problem: &Problem, dtype: Dtype, backward: bool, routine: Routine) -> Self {
        let lanes = problem.shape.state();
        // Enough chunks that 256 k threads have work, but none so short that its map costs more than it.
        let chunk = (lanes * problem.shape.steps)
            .div_ceil(1 << 18)
            .clamp(32, 256);
        let narrow = dtype.size() == 2;
        let inputs = problem.gate.inputs();
        let raw = problem.gate == Gate::Raw;
        let odd = problem.shape.dim % 2 == 1;
        let cheap = problem.gate.cheap();
        let (vector, len, planes) = match (routine, backward) {
            // One channel a thread: rows of an odd width.
            (Routine::LookBack, _) if odd && !narrow => (1, 16, 16),
            (Routine::LookBack, false) if lanes <= 512 && raw && !narrow => (1, 64, 4),
            (Routine::LookBack, true) if lanes <= 512 && raw && !narrow => (1, 32, 8),
            (Routine::LookBack, false) if lanes <= 512 && raw => (2, 32, 8),
            // Vectors of four where a plane has all its lanes with them.
            (Routine::LookBack, true) if lanes <= 512 && raw && problem.shape.dim >= 256 => {
                (4, 32, 8)
            }
            (Routine::LookBack, true) if lanes <= 512 && narrow => (2, 32, 16),
            (Routine::LookBack, false) if lanes <= 512 && !narrow => (1, 32, 8),
            (Routine::LookBack, _) if lanes <= 512 => (2, 16, 16),
            (Routine::LookBack, false) if lanes <= 4096 && narrow && raw => (2, 64, 4),
            (Routine::LookBack, true) if lanes <= 4096 && narrow && raw => (4, 32, 8),
            (Routine::LookBack, false) if lanes <= 4096 && narrow && inputs == 3 => (2, 8, 16),
            (Routine::LookBack, false) if lanes <= 4096 && narrow && cheap => (2, 32, 8),
            (Routine::LookBack, true) if lanes <= 4096 && narrow && cheap => (2, 8, 16),
            (Routine::LookBack, false) if lanes <= 4096 && narrow => (2, 16, 16),
            (Routine::LookBack, true) if lanes <= 4096 && narrow => (2, 16, 8),
            (Routine::LookBack, true) if lanes <= 4096 && cheap && !raw => (1, 8, 16),
            (Routine::LookBack, true) if lanes <= 4096 && !raw => (1, 16, 8),
            (Routine::LookBack, _) if lanes <= 4096 => (2, 16, 16),
            (Routine::LookBack, true) if !narrow && !raw => (2, 8, 8),
            (Routine::LookBack, false) if !narrow && inputs == 3 => (2, 8, 8),
            (Routine::LookBack, _) if !narrow => (2, 16, 8),
            (Routine::LookBack, false) if raw => (4, 16, 8),
            // It keeps coefficients, which take twice the registers of inputs.
            (Routine::LookBack, false) if inputs == 2 && !problem.gate.cheap() => (4, 8, 8),
            (Routine::LookBack, false) if inputs == 2 => (4, 16, 4),
            (Routine::LookBack, false) => (2, 8, 8),
            (Routine::LookBack, true) if raw => (2, 16, 8),
            (Routine::LookBack, true) if inputs == 2 => (4, 8, 8),
            (Routine::LookBack, true) => (2, 8, 4),
            (Routine::Sequential, false) if narrow && inputs == 2 && !raw => (2, 32, 8),
            (Routine::Sequential, _) if narrow && !raw => (2, 16, 8),
            (_, false) => (1, 8, 8),
            (_, true) => (2, 16, 8),
        };
        // Of two inputs the coefficients of few lanes are computed twice, since fewer registers let more of them work at a time.
        let few = routine == Routine::LookBack && (513..=4096).contains(&lanes) && inputs == 2;
        // Raw inputs are the coefficients; look-back needs these twice, the sequential routine once.
        let registers = if raw || narrow && (cheap || few || routine == Routine::Sequential) {
            Registers::Inputs
        } else {
            Registers::Coefficients
        };
        let mut tuning = Self {
            vector,
            len,
            registers,
            planes,
            lookback: match lanes {
                _ if raw && !backward && lanes <= 512 && !narrow => 2,
                _ if raw && !backward && lanes <= 128 => 2,
                _ if raw && !backward && lanes <= 1024 && narrow => 1,
                _ => usize::from(lanes <= 512),
            },
            chunk: chunk.next_multiple_of(len),
            cube: SEQUENTIAL_CUBE,
        };
        if routine == Routine::LookBack {
            tuning.fit(problem.gate, dtype, backward);
        }
        tuning
    }

    /// Makes the tile of a cube of 16 planes fit into its registers, of which a thread then has 128: spilling costs several
    /// times the tile's own memory traffic.
    fn fit(&mut self, gate: Gate, dtype: Dtype, backward: bool) {
        let bytes = self.step_bytes(gate, dtype, backward);
        while self.planes >= 16 && self.vector * self.len * bytes > 4 * KEPT {
            // As many steps as possible, since each tile has a hand-over; but whole lines of memory.
            if self.vector * dtype.size() > 4 {
                self.vector /= 2;
            } else {
                self.len /= 2;
            }
        }
    }

    /// Bytes that a thread keeps of a step of a channel: the inputs that the gradients need, `∂L/∂h` and `h`; or the values that
    /// forward keeps.
    fn step_bytes(&self, gate: Gate, dtype: Dtype, backward: bool) -> usize {
        match (backward, self.registers) {
            (true, _) => dtype.size() * (gate.backward_reads() + 2),
            (false, Registers::Inputs) => dtype.size() * gate.inputs(),
            (false, Registers::Coefficients) => 8,
        }
    }
}

impl fmt::Display for Tuning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            vector,
            len,
            planes,
            lookback,
            ..
        } = self;
        let registers = u8::from(self.registers == Registers::Inputs);
        write!(f, "{vector}:{len}:{planes}:{lookback}:{registers}")
    }
}

impl FromStr for Tuning {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts: Result<Vec<u32>, _> = text.split(':').map(str::parse).collect();
        let parts = parts.unwrap_or_default();
        let part = |index: usize| parts.get(index).map(|&part| part as usize);
        match (&parts[..], part(1)) {
            (&[vector, _, planes, lookback, ref rest @ ..], Some(len @ 1..)) if rest.len() <= 3 => {
                Ok(Self {
                    vector: vector as usize,
                    len,
                    planes: planes as usize,
                    lookback: lookback as usize,
                    registers: match part(4) {
                        Some(1) => Registers::Inputs,
                        _ => Registers::Coefficients,
                    },
                    chunk: part(5).unwrap_or(64).next_multiple_of(len),
                    cube: part(6).map_or(SEQUENTIAL_CUBE, |cube| cube as u32),
                })
            }
            _ => Err(format!(
                "`{text}` is not vector:len:planes:lookback[:registers[:chunk[:cube]]]"
            )),
        }
    }
}

/// Registers of 128 that a tile may take; the rest is for addresses, the state and temporaries.
const KEPT: usize = 96;

/// Threads of a cube, for the routines other than look-back.
pub(super) const SEQUENTIAL_CUBE: u32 = 64;

#[cfg(test)]
mod tests {
    use super::super::Lanes;
    use super::*;

    #[test]
    fn the_rules_fit_their_classes() {
        for gate in Gate::all() {
            for (dtype, backward) in Dtype::ALL.into_iter().flat_map(|d| [(d, false), (d, true)]) {
                for lanes in Lanes::ALL {
                    let class = Class {
                        gate,
                        dtype,
                        backward,
                        lanes,
                    };
                    let problem = class.problem();
                    let rule = Tuning::default_for(&problem, dtype, backward, Routine::LookBack);
                    assert!(rule.fits(class), "{class}: {rule}");
                    let read: Tuning = rule.to_string().parse().unwrap();
                    assert_eq!(read.to_string(), rule.to_string());
                }
            }
        }
    }
}
