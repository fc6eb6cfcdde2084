//! The sizes of the persistent routine.

/// Sizes of a persistent launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tuning {
    /// Units of the network that a cube owns: 16 or 32. More mean fewer cubes that read the state, and more weights a
    /// cube.
    pub units: usize,
    /// Sequences that a cube takes: 8, 16 or 32.
    pub rows: usize,
    /// Planes of a cube, up to 8.
    pub planes: usize,
    /// Wait on one sequence first, and read the others when it is there.
    pub peek: bool,
}

impl Tuning {
    /// What the rule chooses from.
    pub fn candidates() -> Vec<Self> {
        let mut all = Vec::new();
        for units in [16, 32] {
            for rows in [8, 16, 32] {
                all.push(Self {
                    units,
                    rows,
                    planes: 8,
                    peek: false,
                });
            }
        }
        all
    }
}
