//! How the cubes of a launch on a GPU get each other's states.

/// How the cubes of a launch for a whole sequence get each other's states, on NVIDIA GPUs.
///
/// The default is the form that was measured. The others have never run on a card; they take the sizes that an estimate says
/// are the fastest, which may be those of the default. The first two give the same results to the last bit, clusters the same up
/// to the order of sums in `f32`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum HandOver {
    /// Each cube reads the states of all, again and again until all of them are there.
    #[default]
    Whole,
    /// The same, but a thread may wait for one read of its part first, and then reads again only what was not there.
    Scouts,
    /// The cubes of a cluster may share the depth of the product: each reads its part of the states, and they exchange sums.
    /// Compute capability 9.0; otherwise as [`Self::Whole`].
    Clusters,
    /// Both; without clusters as [`Self::Scouts`].
    ScoutedClusters,
}

impl HandOver {
    /// All of them.
    pub const ALL: [HandOver; 4] = [
        HandOver::Whole,
        HandOver::Scouts,
        HandOver::Clusters,
        HandOver::ScoutedClusters,
    ];

    /// The name users know.
    pub fn name(self) -> &'static str {
        match self {
            HandOver::Whole => "whole",
            HandOver::Scouts => "scouts",
            HandOver::Clusters => "clusters",
            HandOver::ScoutedClusters => "scouted-clusters",
        }
    }

    /// The one of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.name() == name)
    }

    /// Whether cubes of a cluster may share a product.
    pub fn clusters(self) -> bool {
        matches!(self, HandOver::Clusters | HandOver::ScoutedClusters)
    }

    /// Whether threads look at one word first.
    pub fn scouts(self) -> bool {
        matches!(self, HandOver::Scouts | HandOver::ScoutedClusters)
    }
}
