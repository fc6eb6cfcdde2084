//! Which parts of a buffer come from the previous rank and go to the next, for every collective of the ring.
//!
//! A link carries its parts in one order, on which both sides agree: first all partial sums, then all results, each by their
//! places in the buffer. Each side may cut them into smaller parts as it likes.

use crate::pump::{Incoming, Plan};
use std::ops::Range;

/// A rank, and how its buffers are cut.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cut {
    pub(super) rank: usize,
    pub(super) size: usize,
    /// Floats of a buffer, or of one rank's part of it.
    pub(super) length: usize,
    pub(super) chunk: usize,
}

impl Cut {
    /// The plan of a message from one rank to another, which is one segment.
    pub(super) fn pair(length: usize, chunk: usize) -> Self {
        Self {
            rank: 0,
            size: 1,
            length,
            chunk,
        }
    }
}

impl Plan {
    fn take(mut self, parts: impl Iterator<Item = Range<usize>>, add: bool, release: bool) -> Self {
        self.incoming.extend(parts.map(|range| Incoming {
            range,
            add,
            release,
        }));
        self
    }

    fn give(mut self, parts: impl Iterator<Item = Range<usize>>) -> Self {
        self.outgoing.extend(parts);
        self
    }

    /// All that goes out so far waits for nothing.
    fn free(mut self) -> Self {
        self.free = self.outgoing.len();
        self
    }
}

impl Cut {
    fn is_last(&self) -> bool {
        self.rank + 1 == self.size
    }

    /// The parts of segment `j`.
    fn segment(&self, j: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let (start, end, chunk) = (j * self.length, (j + 1) * self.length, self.chunk);
        (start..end)
            .step_by(chunk)
            .map(move |at| at..end.min(at.saturating_add(chunk)))
    }

    /// The parts of several segments.
    fn segments(&self, which: Range<usize>) -> impl Iterator<Item = Range<usize>> + use<> {
        let cut = *self;
        which.flat_map(move |j| cut.segment(j))
    }

    pub(super) fn receive(&self) -> Plan {
        Plan::default().take(self.segment(0), false, false)
    }

    pub(super) fn send(&self) -> Plan {
        Plan::default().give(self.segment(0)).free()
    }

    /// The partial sums of `segments` segments come from the rank before and go to the one behind; the first rank begins,
    /// and the sums of the last are the results, of which it gives the first `results` segments to the first rank.
    fn sums(&self, segments: usize, results: usize) -> Plan {
        let all = || self.segments(0..segments);
        match (self.rank == 0, self.is_last()) {
            (true, true) => Plan::default(),
            (true, false) => Plan::default().give(all()).free(),
            (false, false) => Plan::default().take(all(), true, true).give(all()),
            (false, true) => Plan::default()
                .take(self.segments(0..results), true, true)
                .take(self.segments(results..segments), true, false)
                .give(self.segments(0..results)),
        }
    }

    pub(super) fn all_reduce(&self) -> Plan {
        let plan = self.sums(1, 1);
        if self.is_last() {
            return plan;
        }
        // The result goes round, up to the rank before the last.
        let onwards = self.rank + 2 < self.size;
        plan.take(self.segment(0), false, onwards)
            .give(self.segments(0..usize::from(onwards)))
    }

    pub(super) fn reduce_scatter(&self) -> Plan {
        let last = self.size - 1;
        let plan = self.sums(self.size, last);
        if self.is_last() {
            return plan;
        }
        // The last rank keeps its own result; the others' pass those before them.
        let others = self.rank + 1..last;
        plan.take(self.segment(self.rank), false, false)
            .take(self.segments(others.clone()), false, true)
            .give(self.segments(others))
    }

    pub(super) fn all_gather(&self) -> Plan {
        let before = |steps: usize| (self.rank + self.size - steps) % self.size;
        let mut plan = Plan::default();
        for step in 0..self.size - 1 {
            plan = plan.give(self.segment(before(step)));
            if step == 0 {
                plan = plan.free();
            }
            plan = plan.take(self.segment(before(step + 1)), false, step + 2 < self.size);
        }
        plan
    }

    pub(super) fn broadcast(&self, root: usize) -> Plan {
        let onwards = (self.rank + 1) % self.size != root;
        let parts = || self.segments(0..usize::from(onwards));
        if self.rank == root {
            return Plan::default().give(parts()).free();
        }
        Plan::default()
            .take(self.segment(0), false, onwards)
            .give(parts())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the plans of all ranks against each other, a float at a time, in whatever order `turn` says.
    fn simulate(
        size: usize,
        plan: impl Fn(usize) -> Plan,
        buffers: &mut [Vec<f32>],
        turn: impl Fn(usize) -> usize,
    ) {
        let plans: Vec<Plan> = (0..size).map(plan).collect();
        let flat = |range: &Range<usize>| range.clone().collect::<Vec<_>>();
        let mut links: Vec<std::collections::VecDeque<f32>> = vec![Default::default(); size];
        let mut sent = vec![0; size];
        let mut got = vec![0; size];
        let mut idle = 0;
        for step in 0.. {
            let r = turn(step) % size;
            idle += 1;
            let released = plans[r].incoming[..got[r]]
                .iter()
                .filter(|p| p.release)
                .count();
            if sent[r] < plans[r].outgoing.len().min(plans[r].free + released) {
                links[(r + 1) % size].extend(
                    flat(&plans[r].outgoing[sent[r]])
                        .into_iter()
                        .map(|i| buffers[r][i]),
                );
                sent[r] += 1;
                idle = 0;
            }
            if let Some(part) = plans[r].incoming.get(got[r])
                && links[r].len() >= part.range.len()
            {
                for i in part.range.clone() {
                    let came = links[r].pop_front().unwrap();
                    buffers[r][i] = if part.add { came + buffers[r][i] } else { came };
                }
                got[r] += 1;
                idle = 0;
            }
            if idle > 4 * size {
                break;
            }
        }
        assert!(
            (0..size)
                .all(|r| sent[r] == plans[r].outgoing.len() && got[r] == plans[r].incoming.len())
        );
        assert!(links.iter().all(|link| link.is_empty()));
    }

    /// Numbers whose sums depend on the order of their addition.
    fn value(rank: usize, i: usize) -> f32 {
        [1e8, 1.0, -1e8, 0.3][(rank + i) % 4] + (rank * 31 + i) as f32 * 0.7
    }

    fn sum(size: usize, i: usize) -> f32 {
        (1..size).fold(value(0, i), |sum, r| sum + value(r, i))
    }

    #[test]
    fn plans_fit_together() {
        for size in 2..6 {
            for (length, turn) in (0..8).flat_map(|l| [(l, 1), (l, size - 1)]) {
                // The ranks cut differently.
                let cut = |rank| Cut {
                    rank,
                    size,
                    length,
                    chunk: 1 + (rank + length) % 4,
                };
                let fill = |floats: usize| -> Vec<Vec<f32>> {
                    (0..size)
                        .map(|r| (0..floats).map(|i| value(r, i)).collect())
                        .collect()
                };
                let turn = |step: usize| step * turn;
                let mut buffers = fill(length);
                simulate(size, |r| cut(r).all_reduce(), &mut buffers, turn);
                for r in 0..size {
                    assert!((0..length).all(|i| buffers[r][i].to_bits() == sum(size, i).to_bits()));
                }
                let mut buffers = fill(length * size);
                simulate(size, |r| cut(r).reduce_scatter(), &mut buffers, turn);
                for r in 0..size {
                    let mut own = r * length..(r + 1) * length;
                    assert!(own.all(|i| buffers[r][i].to_bits() == sum(size, i).to_bits()));
                }
                let mut buffers = fill(length * size);
                simulate(size, |r| cut(r).all_gather(), &mut buffers, turn);
                for r in 0..size {
                    assert!((0..length * size).all(|i| buffers[r][i] == value(i / length, i)));
                }
                for root in 0..size {
                    let mut buffers = fill(length);
                    simulate(size, |r| cut(r).broadcast(root), &mut buffers, turn);
                    for r in 0..size {
                        assert!((0..length).all(|i| buffers[r][i] == value(root, i)));
                    }
                }
            }
        }
    }
}
