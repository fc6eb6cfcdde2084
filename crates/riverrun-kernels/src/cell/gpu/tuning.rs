//! The sizes of the persistent routine.

/// Sizes of a persistent launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tuning {
    /// Hidden units that a cube owns: 16 or 32. More mean fewer cubes that read the state, and more weights a cube.
    pub units: usize,
    /// Sequences that a cube takes: 8, 16 or 32.
    pub rows: usize,
    /// Planes of a cube, up to 8.
    pub planes: usize,
}

impl Tuning {
    /// The sizes that the rule chooses from.
    pub fn candidates() -> Vec<Self> {
        let mut all = Vec::new();
        for units in [16, 32] {
            for rows in [8, 16, 32] {
                all.push(Self {
                    units,
                    rows,
                    planes: 8,
                });
            }
        }
        all
    }
}
