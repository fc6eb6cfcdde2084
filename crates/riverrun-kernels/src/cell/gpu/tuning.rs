//! The sizes of the persistent routine.

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

    /// Those of cubes that each read the states of all: the whole depth of their product.
    pub fn whole() -> Vec<Self> {
        Self::each(1).collect()
    }

    /// Those of cubes that may share the depth, and may have scouts.
    pub fn shared() -> Vec<Self> {
        let mut all = Vec::new();
        for scouts in [false, true] {
            for cluster in [1, 2, 4, 8] {
                all.extend(Self::each(cluster).map(|one| one.with_scouts(scouts)));
            }
        }
        all
    }

    /// Clusters of so many cubes, 16 or 32 units a cube.
    fn each(cluster: usize) -> impl Iterator<Item = Self> {
        [16, 32].into_iter().flat_map(move |units| {
            [8, 16, 32]
                .into_iter()
                .map(move |rows| Self::new(units * cluster, rows, 8).with_cluster(cluster))
        })
    }
}
