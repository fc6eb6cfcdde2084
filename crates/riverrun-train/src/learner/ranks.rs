//! A learner as one of several ranks.

use riverrun::Neighbours;

use super::Learner;
use crate::spread::{Ranks, Spread, synced};
use crate::{Error, Objective};

impl<O: Objective> Learner<O> {
    /// Before a checkpoint: puts the ranks' moments together, where each has a part of them. All ranks call it, and
    /// [`forget_moments`](Self::forget_moments) after it.
    pub(crate) fn gather_moments(&mut self) -> Result<(), Error> {
        let device = self.core.plain_device();
        match &mut self.spread {
            Some(spread) => self.core.gather_moments(spread.ranks(), &device),
            None => Ok(()),
        }
    }

    pub(crate) fn forget_moments(&mut self) {
        self.core.optimizer.forget_moments();
    }

    /// The seconds of a step's sums among ranks by themselves, 0 where there is one rank. All ranks call it.
    ///
    /// # Errors
    /// [`Error::World`] once a rank has failed.
    pub fn time_sums(&mut self) -> Result<f64, Error> {
        let (device, dtype) = (self.core.plain_device(), self.core.precision.dtype());
        match &mut self.spread {
            Some(spread) => spread.time_sums(self.core.model(), dtype, &device),
            None => Ok(0.0),
        }
    }

    /// The ranks, where there are several, for another learner.
    pub fn into_ranks(self) -> Option<Box<dyn Ranks>> {
        let Self {
            recorder, spread, ..
        } = self;
        // Recorded sums know the way among the ranks.
        drop(recorder);
        spread.map(Spread::into_ranks)
    }

    /// The number of this rank, and of all.
    pub(crate) fn place(&self) -> (usize, usize) {
        let spread = self.spread.as_ref();
        spread.map_or((0, 1), |spread| (spread.rank(), spread.size()))
    }

    /// The number of all ranks, and of those of a group that divides sequences along time.
    pub(crate) fn layout(&self) -> [usize; 2] {
        [
            self.place().1,
            self.neighbours().map_or(1, Neighbours::size),
        ]
    }

    /// The number of this rank's group, and of all: a group has its rows of every batch.
    pub(crate) fn rows(&self) -> (usize, usize) {
        self.spread.as_ref().map_or((0, 1), Spread::rows)
    }

    /// The ranks with the steps before and after those of this one, where sequences are divided along time.
    pub(crate) fn neighbours(&self) -> Option<&Neighbours> {
        self.spread.as_ref().and_then(Spread::neighbours)
    }

    /// Tells the other ranks in the next step whether this one is asked to stop.
    pub(crate) fn ask_to_stop(&mut self, asked: bool) {
        if let Some(spread) = &mut self.spread {
            spread.signals.asked = asked;
        }
    }

    /// Whether to stop now: as this process is asked to, or with several ranks once all have been told, after one step.
    pub(crate) fn stopping(&self, asked: bool) -> bool {
        let spread = self.spread.as_ref();
        spread.map_or(asked, |spread| spread.signals.stopping)
    }

    /// Waits for the steps so far, where other ranks have a part in them: for a bounded time, and with the first cause if one has
    /// failed, whatever that has left in the numbers.
    pub(crate) fn wait_for_ranks(&mut self) -> Result<(), Error> {
        match &mut self.spread {
            Some(spread) => spread.wait(&self.core.plain_device()),
            None => Ok(()),
        }
    }

    /// Waits for the device, and so for what other ranks have a part in.
    pub(crate) fn wait(&mut self) -> Result<(), Error> {
        let device = self.core.plain_device();
        match &mut self.spread {
            Some(spread) => spread.wait(&device),
            None => synced(&device),
        }
    }

    /// Numbers of this rank on all ranks, in their order.
    pub(crate) fn of_all_ranks<const N: usize>(
        &mut self,
        own: [f64; N],
    ) -> Result<Vec<[f64; N]>, Error> {
        let device = self.core.plain_device();
        let Some(spread) = &mut self.spread else {
            return Ok(vec![own]);
        };
        let mut all = vec![[0.0; N]; spread.size()];
        all[spread.rank()] = own;
        spread.total(all.as_flattened_mut(), &device)?;
        Ok(all)
    }

    /// Refuses to go on where the ranks' weights are not the same bits.
    pub(crate) fn agree_on_weights(&mut self) -> Result<(), Error> {
        match &mut self.spread {
            Some(spread) => spread.agree_on(self.core.model(), self.step),
            None => Ok(()),
        }
    }
}
