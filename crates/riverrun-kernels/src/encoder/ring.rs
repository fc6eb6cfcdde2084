//! The last values of a series, with statistics that are updated by each push.
//!
//! Values are grouped in blocks by their number. A full block keeps its sum, its squared deviations and its extremes, so the
//! statistics of the ring are computed from blocks, not values; nothing is ever subtracted, so a spike that has left the ring
//! leaves no error behind.

use super::WINDOW;

/// Values of a block.
const BLOCK: usize = 16;

/// Mean, variance of the population, minimum and maximum; zero without values.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Statistics {
    pub mean: f64,
    pub variance: f64,
    pub min: f64,
    pub max: f64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Block {
    count: f64,
    sum: f64,
    /// The sum of squared deviations.
    squares: f64,
    min: f64,
    max: f64,
}

/// The sum, eight at a time.
pub(super) fn sum(x: &[f64]) -> f64 {
    let mut lanes = [0.0; 8];
    let chunks = x.chunks_exact(8);
    let rest: f64 = chunks.remainder().iter().sum();
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane += x;
        }
    }
    lanes.iter().sum::<f64>() + rest
}

impl Block {
    fn new(x: &[f64]) -> Self {
        let count = x.len() as f64;
        let all = sum(x);
        let mean = all / count;
        let (mut squares, mut min, mut max) = (0.0, x[0], x[0]);
        for x in x {
            squares += (x - mean) * (x - mean);
            min = x.min(min);
            max = x.max(max);
        }
        Self {
            count,
            sum: all,
            squares,
            min,
            max,
        }
    }
}

/// Statistics of the given values.
pub(super) fn statistics(x: &[f64]) -> Statistics {
    join(x.chunks(BLOCK).map(Block::new))
}

fn join(blocks: impl Iterator<Item = Block> + Clone) -> Statistics {
    let (mut count, mut sum) = (0.0, 0.0);
    let (mut min, mut max) = (f64::INFINITY, f64::NEG_INFINITY);
    for block in blocks.clone() {
        count += block.count;
        sum += block.sum;
        min = block.min.min(min);
        max = block.max.max(max);
    }
    if count == 0.0 {
        return Statistics::default();
    }
    let mean = sum / count;
    let squares: f64 = blocks
        .map(|block| {
            let apart = block.sum - block.count * mean;
            block.squares + apart * apart / block.count
        })
        .sum();
    Statistics {
        mean,
        variance: squares / count,
        min,
        max,
    }
}

/// The ring.
#[derive(Debug, Clone)]
pub(super) struct Ring {
    size: usize,
    /// Value `n` is at `n % values.len()`, a multiple of [`BLOCK`] that leaves room for a block that is begun.
    values: Vec<f64>,
    blocks: Vec<Block>,
    pushed: usize,
}

impl Ring {
    pub(super) fn new(size: usize) -> Self {
        let blocks = size.div_ceil(BLOCK) + 2;
        Self {
            size,
            values: vec![0.0; blocks * BLOCK],
            blocks: vec![Block::default(); blocks],
            pushed: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.pushed.min(self.size)
    }

    pub(super) fn push(&mut self, x: f64) {
        let at = self.pushed % self.values.len();
        self.values[at] = x;
        self.pushed += 1;
        if self.pushed.is_multiple_of(BLOCK) {
            let block = at / BLOCK;
            self.blocks[block] = Block::new(&self.values[block * BLOCK..(block + 1) * BLOCK]);
        }
    }

    pub(super) fn statistics(&self) -> Statistics {
        let start = self.pushed - self.len();
        // The blocks at both ends are partial.
        let first_whole = start.div_ceil(BLOCK);
        let end_whole = (self.pushed / BLOCK).max(first_whole);
        let cut = |from: usize, to: usize| {
            (from < to).then(|| {
                let at = from % self.values.len();
                Block::new(&self.values[at..at + (to - from)])
            })
        };
        let before = cut(start, (first_whole * BLOCK).min(self.pushed));
        let after = cut(end_whole * BLOCK, self.pushed);
        let whole = (first_whole..end_whole).map(|block| self.blocks[block % self.blocks.len()]);
        join(before.into_iter().chain(whole).chain(after))
    }

    /// The last values, the newest at the end; false if there are fewer.
    pub(super) fn last(&self, out: &mut [f64; WINDOW]) -> bool {
        if self.len() < WINDOW {
            return false;
        }
        let end = self.pushed % self.values.len();
        if end >= WINDOW {
            out.copy_from_slice(&self.values[end - WINDOW..end]);
        } else {
            let (older, newer) = out.split_at_mut(WINDOW - end);
            older.copy_from_slice(&self.values[self.values.len() - (WINDOW - end)..]);
            newer.copy_from_slice(&self.values[..end]);
        }
        true
    }

    /// The value `pushes` pushes ago, 0 for the last.
    pub(super) fn ago(&self, pushes: usize) -> Option<f64> {
        (pushes < self.len()).then(|| self.values[(self.pushed - 1 - pushes) % self.values.len()])
    }

    /// All values, the oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = f64> + '_ {
        (self.pushed - self.len()..self.pushed).map(|n| self.values[n % self.values.len()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_are_those_of_the_values() {
        for size in [32, 33, 47, 48, 256] {
            let mut ring = Ring::new(size);
            for n in 0..700_usize {
                // A spike now and then.
                let x = match n % 97 {
                    13 => 1e30,
                    _ => ((n * 7919) % 1000) as f64 / 100.0,
                };
                ring.push(x);
                let values: Vec<f64> = ring.iter().collect();
                assert_eq!(values.len(), (n + 1).min(size));
                assert_eq!(*values.last().unwrap(), x);
                assert_eq!(ring.ago(values.len() - 1), Some(values[0]));
                let (found, expected) = (ring.statistics(), statistics(&values));
                let close = |a: f64, b: f64| (a - b).abs() <= 1e-9 * b.abs().max(1.0);
                assert!(close(found.mean, expected.mean), "{size} {n}");
                assert!(close(found.variance, expected.variance), "{size} {n}");
                assert_eq!((found.min, found.max), (expected.min, expected.max));
                let mut last = [0.0; WINDOW];
                assert_eq!(ring.last(&mut last), values.len() >= WINDOW);
                if values.len() >= WINDOW {
                    assert_eq!(last[..], values[values.len() - WINDOW..]);
                }
            }
        }
    }
}
