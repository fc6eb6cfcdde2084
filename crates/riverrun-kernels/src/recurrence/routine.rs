//! The ways to run the recurrence on a GPU; what each needs is in `gpu/mod.rs`.

/// A way to run the recurrence on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Routine {
    /// One thread for each vector of channels, looping over time.
    Sequential,
    /// A single pass over tiles with decoupled look-back.
    LookBack,
    /// Three launches: reduce the chunks, carry the state across them, apply it.
    Chunked,
}

impl Routine {
    /// Every routine.
    pub const ALL: [Routine; 3] = [Routine::Sequential, Routine::LookBack, Routine::Chunked];

    /// The name used in the API, tables and the command line.
    pub fn name(self) -> &'static str {
        match self {
            Routine::Sequential => "sequential",
            Routine::LookBack => "look-back",
            Routine::Chunked => "chunked",
        }
    }

    /// The routine of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|routine| routine.name() == name)
    }
}
