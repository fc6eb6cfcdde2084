//! The ways to run the recurrence on a GPU; what each needs is in `gpu/mod.rs`.

/// A way to run the recurrence on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Routine {
    /// One unit a channel vector, looping over time.
    Unit,
    /// A single pass over tiles that hand the state on.
    Chained,
    /// Three launches: reduce chunks, carry, apply.
    Chunked,
}

impl Routine {
    /// Every routine.
    pub const ALL: [Routine; 3] = [Routine::Unit, Routine::Chained, Routine::Chunked];

    /// The name used in the API, tables and the command line.
    pub fn name(self) -> &'static str {
        match self {
            Routine::Unit => "unit",
            Routine::Chained => "chained",
            Routine::Chunked => "chunked",
        }
    }

    /// The routine of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|routine| routine.name() == name)
    }
}
