//! The launches of a recording that may overlap, one after another.

use std::ops::Range;

/// The last launches of a recording that may overlap.
#[derive(Debug, Default)]
pub(crate) struct Chain {
    /// The recording, which has a number of its own, and its nodes before the last launch.
    last: Option<(u64, usize)>,
    /// Addresses that launches write which may still run when the next one begins.
    writes: Vec<Range<u64>>,
}

impl Chain {
    /// Adds a launch to a recording that has so many nodes. Whether it may overlap the launch before it: if that one was added here,
    /// and nothing that may still run writes what this one reads early.
    pub fn add(
        &mut self,
        recording: u64,
        nodes: usize,
        early: &[Range<u64>],
        writes: Vec<Range<u64>>,
        let_first: bool,
    ) -> bool {
        let follows = nodes > 0 && self.last == Some((recording, nodes - 1));
        let apart = |read: &Range<u64>| {
            let mut written = self.writes.iter();
            written.all(|write| read.end <= write.start || write.end <= read.start)
        };
        let overlaps = follows && early.iter().all(apart);
        // Those before it have ended when it has waited, and when it may not overlap.
        if !(overlaps && let_first) {
            self.writes.clear();
        }
        self.writes.extend(writes);
        self.last = Some((recording, nodes));
        overlaps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(start: u64, end: u64) -> Range<u64> {
        Range { start, end }
    }

    #[test]
    fn a_launch_that_follows_another_overlaps_it() {
        let mut chain = Chain::default();
        assert!(!chain.add(1, 0, &[], vec![at(0, 4)], false));
        assert!(chain.add(1, 1, &[at(4, 8)], vec![at(8, 12)], false));
        // Another launch came between.
        assert!(!chain.add(1, 3, &[], vec![at(0, 4)], false));
        // Another recording.
        assert!(!chain.add(2, 4, &[], vec![at(0, 4)], false));
    }

    #[test]
    fn nothing_is_read_before_it_is_written() {
        let mut chain = Chain::default();
        chain.add(1, 0, &[], vec![at(0, 4)], false);
        assert!(!chain.add(1, 1, &[at(3, 5)], vec![], false));
        // That launch waited for all before it.
        assert!(chain.add(1, 2, &[at(3, 5)], vec![], false));
    }

    #[test]
    fn launches_that_let_the_next_one_first_may_all_still_run() {
        let mut chain = Chain::default();
        chain.add(1, 0, &[], vec![at(0, 4)], true);
        assert!(chain.add(1, 1, &[], vec![at(4, 8)], true));
        assert!(!chain.add(1, 2, &[at(0, 4)], vec![at(8, 12)], true));
        assert!(chain.add(1, 3, &[at(0, 4)], vec![at(12, 16)], true));
        // The one that waits first ends what was before the last.
        assert!(chain.add(1, 4, &[], vec![at(16, 20)], false));
        assert!(chain.add(1, 5, &[at(8, 16)], vec![at(20, 24)], true));
        assert!(!chain.add(1, 6, &[at(16, 20)], vec![], true));
    }
}
