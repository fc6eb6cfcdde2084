//! How a run over a sequence starts, restarts and ends.

use burn::tensor::{Bool, Tensor};

use crate::ops::hand_over;
use crate::{Error, Neighbours};

/// A run over a batch of sequences: the state before the first step, the steps that restart from the zero state, and the
/// lengths of the sequences. Scans, cells and layers take it; `S` is their state, `[B, D]` for a scan.
///
/// A state is a tensor in the dtype of the input. In `f16` and `bf16` it is therefore rounded once where it leaves a call, while
/// inside a call it is carried in `f32`: a sequence cut into chunks agrees with the whole within that rounding, and exactly in
/// `f32` and `f64` on the CPU.
///
/// ```
/// use burn::tensor::Tensor;
/// use riverrun::Sequence;
///
/// let from_zero: Sequence<Tensor<2>> = Sequence::new();
/// let ragged = from_zero.with_lengths(&[7, 3, 5]);
/// assert_eq!(ragged.lengths, Some(vec![7, 3, 5]));
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Sequence<S = Tensor<2>> {
    /// The state before the first step; zero when absent.
    pub state: Option<S>,
    /// `[B, T]`: true at a step that restarts, as if the state before it were zero.
    pub reset: Option<Tensor<2, Bool>>,
    /// The number of steps of each of the `B` sequences, each at most `T`; all of `T` when absent. Outputs past the end of a
    /// sequence are 0, its last state is the one at its own last step (the initial one if it has no steps), and inputs past
    /// its end are not read.
    pub lengths: Option<Vec<usize>>,
    /// The ranks with the steps before and after these, where sequences are divided along time; alone when absent.
    pub neighbours: Option<Neighbours>,
}

impl<S> Sequence<S> {
    /// From the zero state, without resets, every sequence `T` steps long.
    pub fn new() -> Self {
        Self {
            state: None,
            reset: None,
            lengths: None,
            neighbours: None,
        }
    }

    /// Starts from this state.
    pub fn with_state(mut self, state: S) -> Self {
        self.state = Some(state);
        self
    }

    /// Restarts from the zero state wherever the mask `[B, T]` is true: episode ends, packed documents.
    pub fn with_reset(mut self, reset: Tensor<2, Bool>) -> Self {
        self.reset = Some(reset);
        self
    }

    /// With sequences of these lengths, padded at the end to `T` steps.
    pub fn with_lengths(mut self, lengths: &[usize]) -> Self {
        self.lengths = Some(lengths.to_vec());
        self
    }

    /// The ranks with the steps before and after these: see [`Neighbours`].
    pub fn with_neighbours(mut self, neighbours: Neighbours) -> Self {
        self.neighbours = Some(neighbours);
        self
    }

    /// A run with the same resets, lengths and neighbours from another state, or from the zero state.
    pub fn starting_from<T>(&self, state: Option<T>) -> Sequence<T> {
        Sequence {
            state,
            reset: self.reset.clone(),
            lengths: self.lengths.clone(),
            neighbours: self.neighbours.clone(),
        }
    }

    /// The same run with another form of the state.
    pub fn map_state<T>(self, f: impl FnOnce(S) -> T) -> Sequence<T> {
        Sequence {
            state: self.state.map(f),
            reset: self.reset,
            lengths: self.lengths,
            neighbours: self.neighbours,
        }
    }

    /// Whether the first step is that of a sequence from the zero state.
    pub(crate) fn begins(&self) -> bool {
        let first = self.neighbours.as_ref().is_none_or(Neighbours::is_first);
        first && self.state.is_none()
    }

    /// Refuses a piece of `steps` steps that no state can be handed over, and a state where the rank before has it.
    pub(crate) fn check_piece(&self, steps: usize) -> Result<(), Error> {
        let Some(neighbours) = self.neighbours.as_ref().filter(|other| other.size() > 1) else {
            return Ok(());
        };
        let reason = match &self.state {
            Some(_) if !neighbours.is_first() => "the rank before has the initial state",
            _ if steps == 0 => "a piece of the sequences has one step at least",
            _ => return Ok(()),
        };
        let (rank, size) = (neighbours.rank(), neighbours.size());
        Err(Error::Unsupported(format!(
            "rank {rank} of {size} along time: {reason}"
        )))
    }

    /// Refuses sequences that are divided among ranks, for what needs all of their steps.
    pub(crate) fn check_undivided(&self, what: &str) -> Result<(), Error> {
        match &self.neighbours {
            Some(neighbours) if neighbours.size() > 1 => Err(hand_over::refusal(what)),
            _ => Ok(()),
        }
    }
}

impl<S> Default for Sequence<S> {
    fn default() -> Self {
        Self::new()
    }
}

impl<S> From<Option<S>> for Sequence<S> {
    fn from(state: Option<S>) -> Self {
        Self {
            state,
            ..Self::new()
        }
    }
}
