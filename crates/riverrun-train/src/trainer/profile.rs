//! Where the time of a step goes, on each rank.

use std::time::Instant;

use burn::tensor::Device;

use crate::spread::synced;
use crate::{Error, Part};

/// Parts of a step.
pub const PARTS: [&str; 4] = ["batch", "forward", "backward", "update"];

/// The medians of a rank's parts of a step, in seconds, in the order of [`PARTS`]. The last has the sums of gradients over the ranks
/// too, and so the time for which this rank waits for others.
pub type PartSeconds = [f64; PARTS.len()];

/// The parts of the steps so far. Between them the device is waited for, so that steps are slower than without.
#[derive(Debug, Default)]
pub(super) struct Profile(Vec<PartSeconds>);

impl Profile {
    /// Starts a step.
    pub fn step(&mut self) -> Stopwatch<'_> {
        Stopwatch {
            profile: self,
            last: Instant::now(),
            seconds: PartSeconds::default(),
            error: None,
        }
    }

    /// The medians.
    pub fn medians(&self) -> PartSeconds {
        std::array::from_fn(|part| {
            let mut seconds: Vec<f64> = self.0.iter().map(|step| step[part]).collect();
            seconds.sort_by(f64::total_cmp);
            seconds.get(seconds.len() / 2).copied().unwrap_or(0.0)
        })
    }
}

/// The times of a step in progress.
pub(super) struct Stopwatch<'a> {
    profile: &'a mut Profile,
    last: Instant,
    seconds: PartSeconds,
    error: Option<Error>,
}

impl Stopwatch<'_> {
    fn count(&mut self, part: usize) {
        self.seconds[part] += self.last.elapsed().as_secs_f64();
        self.last = Instant::now();
    }

    /// The batch has been made.
    pub fn batch(&mut self) {
        self.count(0);
    }

    /// A part has been given to the device.
    pub fn part(&mut self, part: Part, device: &Device) {
        // After the update others are waited for, which the learner does with a bound.
        if part == Part::Update {
            return;
        }
        if let Err(error) = synced(device) {
            self.error.get_or_insert(error);
        }
        self.count(if part == Part::Forward { 1 } else { 2 });
    }

    /// The step is done.
    ///
    /// # Errors
    /// The errors of the device.
    pub fn done(mut self) -> Result<(), Error> {
        self.count(3);
        self.profile.0.push(self.seconds);
        self.error.map_or(Ok(()), Err)
    }
}

/// The rank whose own work, up to the sums, takes longest, and by which factor longer than that of the rank in the middle.
pub fn slowest(ranks: &[PartSeconds]) -> Option<(usize, f64)> {
    let own = |parts: &PartSeconds| parts[..3].iter().sum::<f64>();
    let mut sorted: Vec<f64> = ranks.iter().map(own).collect();
    sorted.sort_by(f64::total_cmp);
    let middle = *sorted.get((sorted.len().max(1) - 1) / 2)?;
    let own = ranks.iter().map(own).enumerate();
    let (rank, longest) = own.max_by(|a, b| a.1.total_cmp(&b.1))?;
    Some((rank, longest / middle))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_rank_is_found_by_its_own_work() {
        // Who waits for it has the longest update.
        let ranks = [
            [0.1, 1.0, 2.0, 2.9],
            [0.1, 2.0, 3.0, 0.1],
            [0.1, 1.0, 1.9, 3.0],
        ];
        let (rank, factor) = slowest(&ranks).unwrap();
        assert_eq!(rank, 1);
        assert!((factor - 5.1 / 3.1).abs() < 1e-12, "{factor}");
        assert_eq!(slowest(&[]), None);
    }

    #[test]
    fn medians_are_those_of_the_steps() {
        let steps = [3.0, 1.0, 9.0].map(|x| [x, 2.0 * x, 0.0, 1.0]);
        let profile = Profile(steps.to_vec());
        assert_eq!(profile.medians(), [3.0, 6.0, 0.0, 1.0]);
        assert_eq!(Profile::default().medians(), [0.0; 4]);
    }
}
