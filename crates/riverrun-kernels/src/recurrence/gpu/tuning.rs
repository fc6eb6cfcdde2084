//! The numbers that shape a launch.

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

/// The numbers that shape a launch; [`Tuning::default_for`] holds the measured ones.
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
    /// The tuning for a problem.
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
            (Routine::LookBack, false) if lanes <= 4096 && narrow => (2, 32, 16),
            (Routine::LookBack, true) if lanes <= 4096 && narrow => (4, 16, 16),
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
        let cheap = problem.gate.cheap();
        // Raw inputs are the coefficients; look-back needs these twice, the sequential routine once.
        let registers = if raw || narrow && (cheap || routine == Routine::Sequential) {
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
                _ if raw && !backward && lanes <= 4096 && narrow => 1,
                _ => usize::from(lanes <= 512),
            },
            chunk: chunk.next_multiple_of(len),
            cube: SEQUENTIAL_CUBE,
        };
        if routine == Routine::LookBack {
            tuning.fit(problem, dtype, backward);
        }
        tuning
    }

    /// Makes the tile of a cube of 16 planes fit into its registers, of which a thread then has 128: spilling costs several
    /// times the tile's own memory traffic.
    fn fit(&mut self, problem: &Problem, dtype: Dtype, backward: bool) {
        let inputs = problem.gate.inputs();
        // For a step and channel: the inputs that the gradients need, `∂L/∂h` and `h`; or the values that forward keeps.
        let needed = problem.gate.backward_reads();
        let bytes = match (backward, self.registers) {
            (true, _) => dtype.size() * (needed + 2),
            (false, Registers::Inputs) => dtype.size() * inputs,
            (false, Registers::Coefficients) => 8,
        };
        while self.planes >= 16 && self.vector * self.len * bytes > 4 * KEPT {
            // As many steps as possible, since each tile has a hand-over; but whole lines of memory.
            if self.vector * dtype.size() > 4 {
                self.vector /= 2;
            } else {
                self.len /= 2;
            }
        }
    }
}

/// Registers of 128 that a tile may take; the rest is for addresses, the state and temporaries.
const KEPT: usize = 96;

/// Threads of a cube, for the routines other than look-back.
pub(super) const SEQUENTIAL_CUBE: u32 = 64;
