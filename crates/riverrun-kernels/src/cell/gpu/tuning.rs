//! The sizes of the persistent routine, and the hand-over that is asked for.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::cell::HandOver;

/// Sizes of a persistent launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tuning {
    /// Hidden units that a cube multiplies for, a multiple of 16. More mean fewer cubes that read the state, and more weights a
    /// cube.
    pub units: usize,
    /// Sequences that a cube takes: 8, 16 or 32.
    pub rows: usize,
    /// Planes of a cube, up to 8.
    pub planes: usize,
    /// Cubes of a cluster that share the depth of their units' product, and the units: 1, 2, 4 or 8. Each has a multiple of 2
    /// units.
    pub cluster: usize,
    /// Whether a thread looks at one word first, and reads again only what was not there.
    pub scouts: bool,
}

impl Tuning {
    /// Sizes without clusters and scouts.
    pub fn new(units: usize, rows: usize, planes: usize) -> Self {
        Self {
            units,
            rows,
            planes,
            cluster: 1,
            scouts: false,
        }
    }

    /// The same with clusters of so many cubes.
    pub fn with_cluster(mut self, cubes: usize) -> Self {
        self.cluster = cubes;
        self
    }

    /// The same with or without scouts.
    pub fn with_scouts(mut self, scouts: bool) -> Self {
        self.scouts = scouts;
        self
    }

    /// The sizes that the rule chooses from.
    pub fn candidates() -> Vec<Self> {
        let mut all = Vec::new();
        for units in [16, 32] {
            for rows in [8, 16, 32] {
                all.push(Self::new(units, rows, 8));
            }
        }
        all
    }

    /// Those with clusters, of at least 16 units a cube.
    pub fn clusters() -> Vec<Self> {
        let mut all = Vec::new();
        for cluster in [2, 4, 8] {
            for units in [16, 32] {
                for rows in [8, 16, 32] {
                    all.push(Self::new(units * cluster, rows, 8).with_cluster(cluster));
                }
            }
        }
        all
    }
}

/// The place in [`HandOver::ALL`] of the form that is asked for.
static ASKED: AtomicUsize = AtomicUsize::new(0);

/// Asks for a form of the hand-over for all launches of this process from now on. Forms other than the default have not been
/// measured on a card yet.
pub fn set_hand_over(form: HandOver) {
    let at = HandOver::ALL.iter().position(|known| *known == form);
    ASKED.store(at.unwrap_or(0), Ordering::Relaxed);
}

/// The form that is asked for.
pub fn hand_over() -> HandOver {
    let at = ASKED.load(Ordering::Relaxed);
    HandOver::ALL.get(at).copied().unwrap_or_default()
}
