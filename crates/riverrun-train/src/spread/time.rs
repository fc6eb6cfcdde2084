//! Sequences divided along time among the ranks of a group.
//!
//! With groups of `n` ranks, ranks `0` to `n - 1` are the first group, and so on: each group takes the rows that a rank would
//! take alone, and in it rank `r` the `r`-th of `n` pieces of every sequence. The model's states go from piece to piece by
//! [`Neighbours`]. The loss of a rank is its part of the mean over all scored steps, so that the sum of all gradients is that of
//! the whole sequences.

use riverrun::Neighbours;

use super::Spread;
use crate::Error;

impl Spread {
    /// Divides the sequences among the ranks of groups.
    ///
    /// # Errors
    /// Ranks that do not make whole groups; ranks with groups of other sizes.
    pub fn divide_time(&mut self, neighbours: Neighbours) -> Result<(), Error> {
        let (rank, ranks, group) = (self.rank(), self.size(), neighbours.size());
        let numbers = group.to_string();
        self.agree("the number of ranks along time", numbers.as_bytes())?;
        if group == 0 || !ranks.is_multiple_of(group) || rank % group != neighbours.rank() {
            let reason = format!("{ranks} ranks are not groups of {group}");
            return Err(Error::value("context_parallel", group, reason));
        }
        self.neighbours = Some(neighbours).filter(|neighbours| neighbours.size() > 1);
        Ok(())
    }

    /// The number of this rank's group, and of all: each has its rows of every batch.
    pub fn rows(&self) -> (usize, usize) {
        let group = self.neighbours.as_ref().map_or(1, Neighbours::size);
        (self.rank() / group, self.size() / group)
    }

    /// The ranks with the steps before and after those of this one, where sequences are divided.
    pub fn neighbours(&self) -> Option<&Neighbours> {
        self.neighbours.as_ref()
    }
}

/// Fails where a state was not handed over.
pub(crate) fn check(neighbours: Option<&Neighbours>) -> Result<(), Error> {
    let handed_over = neighbours.map_or(Ok(()), Neighbours::check);
    handed_over.map_err(|error| match error {
        riverrun::Error::HandOver(cause) => Error::World(cause),
        error => error.into(),
    })
}
