//! The uniform numbers of draws.

use std::collections::VecDeque;

use rand::Rng;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

/// A uniform number in `[0, 1)` for each draw of each sample, whoever draws.
pub(super) struct Uniforms {
    /// The generator of each sample.
    samples: Vec<ChaCha8Rng>,
    /// Numbers that are generated but not used yet: a row for each draw, a number for each sample.
    ahead: VecDeque<Vec<f32>>,
}

impl Uniforms {
    /// The generators of a seed. Each sample has a stream of its own, the first one the same for any number of samples.
    pub fn new(seed: u64, samples: usize) -> Self {
        let sample = |sample: usize| {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            rng.set_stream(sample as u64);
            rng
        };
        Self {
            samples: (0..samples).map(sample).collect(),
            ahead: VecDeque::new(),
        }
    }

    /// The numbers of the next `draws`, without using them.
    pub fn next(&mut self, draws: usize) -> impl Iterator<Item = &Vec<f32>> {
        while self.ahead.len() < draws {
            let row = self.samples.iter_mut().map(|rng| rng.random()).collect();
            self.ahead.push_back(row);
        }
        self.ahead.iter().take(draws)
    }

    /// Uses the numbers of the next draw.
    pub fn take(&mut self) -> Vec<f32> {
        self.next(1).for_each(drop);
        self.ahead.pop_front().expect("one is ahead")
    }

    /// Marks the numbers of the next `draws` as used.
    pub fn made(&mut self, draws: usize) {
        self.ahead.drain(..draws);
    }
}
