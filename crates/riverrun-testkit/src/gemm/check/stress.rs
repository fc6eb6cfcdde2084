//! Random interleavings of the vendor's products with launches, reads and allocations of CubeCL, from several threads,
//! against a mirror in `f64`.
//!
//! Every matrix holds small whole numbers, so that every product and every map is exact, and one read out of order is a wrong
//! number, not a small error. Some of the launches take long, so that work that is not ordered after them comes too early.
//! Threads hand matrices to each other: those belong to another stream and are only read.

use std::sync::{Mutex, PoisonError};

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;

use crate::gemm::Epilogue;
use crate::gemm::oracle::product;
use crate::gemm::vendor::{Buffers, Problem, Vendor};
use crate::gpu::Dtype;
use crate::recurrence::check::Random;
use crate::transfer::{bytes, numbers};

/// Numbers are kept within this many values around 0.
const VALUES: f64 = 5.0;

/// Counts of the operations done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Interleavings {
    /// Products by the library.
    pub products: usize,
    /// Launches through CubeCL.
    pub launches: usize,
    /// Matrices read back and compared.
    pub reads: usize,
    /// Matrices handed to another thread.
    pub handed: usize,
}

/// `x ← map(map(.. x))`, `times` times, each element by itself: `map(x)` is `3x + 1`, brought back to -2..2.
#[cube(launch_unchecked)]
fn churn(x: &mut [f32], times: u32) {
    if ABSOLUTE_POS < x.len() {
        let mut y = x[ABSOLUTE_POS];
        for _ in 0..times {
            let u = y * 3.0 + 1.0;
            y = u - 5.0 * ((u + 0.5) / 5.0).floor() - 2.0;
        }
        x[ABSOLUTE_POS] = y;
    }
}

fn map(x: f64) -> f64 {
    (3.0 * x + 1.0).rem_euclid(VALUES) - 2.0
}

/// A square matrix on the device, and its expected content.
struct Matrix {
    handle: Handle,
    mirror: Vec<f64>,
    size: usize,
    /// Created by another thread, so on another stream.
    foreign: bool,
}

const SIZES: [usize; 4] = [16, 40, 64, 96];

struct Player<'a> {
    client: Client,
    random: Random,
    matrices: Vec<Matrix>,
    between: &'a Mutex<Vec<Matrix>>,
    done: Interleavings,
}

impl Player<'_> {
    fn below(&mut self, n: usize) -> usize {
        (self.random.bits() >> 16) as usize % n
    }

    fn fresh(&mut self) -> Matrix {
        let size = SIZES[self.below(SIZES.len())];
        let mirror: Vec<f64> = (0..size * size)
            .map(|_| (self.random.bits() % 5) as f64 - 2.0)
            .collect();
        Matrix {
            handle: self.client.create_from_slice(&bytes(Dtype::F32, &mirror)),
            mirror,
            size,
            foreign: false,
        }
    }

    /// Changes a matrix in place; most take microseconds, some a fraction of a millisecond.
    fn churn(&mut self, which: usize) {
        let times = [1, 2, 300, 6000][self.below(4)];
        let matrix = &mut self.matrices[which];
        if matrix.foreign {
            return;
        }
        let elements = matrix.mirror.len();
        // SAFETY: the kernel stays within the buffer's length.
        unsafe {
            churn::launch_unchecked(
                &self.client,
                CubeCount::Static(elements.div_ceil(128) as u32, 1, 1),
                CubeDim::new_1d(128),
                BufferArg::from_raw_parts(matrix.handle.clone(), elements),
                times,
            );
        }
        for x in &mut matrix.mirror {
            // The map of five values has a short period, which divides 60.
            let steps = if times > 60 { times % 60 + 60 } else { times };
            *x = (0..steps).fold(*x, |x, _| map(x));
        }
        self.done.launches += 1;
    }

    /// Multiplies two matrices of one size, by the library, into a new buffer, and brings the result back to small numbers.
    fn multiply(&mut self, vendor: &std::sync::Arc<Vendor>) -> Result<(), String> {
        let count = self.matrices.len();
        let a = self.below(count);
        let size = self.matrices[a].size;
        let mut b = self.below(count);
        while self.matrices[b].size != size {
            b = (b + 1) % count;
        }
        let problem = Problem::new([size; 3], Dtype::F32, Epilogue::Plain);
        let d = self.client.empty(size * size * 4);
        let buffers = Buffers {
            a: self.matrices[a].handle.clone(),
            b: self.matrices[b].handle.clone(),
            d: d.clone(),
            vector: None,
            pre: None,
        };
        vendor.launch(&self.client, &problem, buffers)?;
        self.done.products += 1;
        let (a, b) = (&self.matrices[a].mirror, &self.matrices[b].mirror);
        self.matrices.push(Matrix {
            handle: d,
            mirror: product(a, b, [size; 3]),
            size,
            foreign: false,
        });
        self.churn(count);
        // Drops the oldest, in flight or not: its memory returns to the pool.
        if count > 12 {
            self.matrices.remove(0);
        }
        Ok(())
    }

    fn read(&mut self, which: usize) -> Result<(), String> {
        let matrix = &self.matrices[which];
        let found = self.client.read_one(matrix.handle.clone());
        let found = numbers(Dtype::F32, &found.map_err(|error| error.to_string())?);
        self.done.reads += 1;
        match (0..found.len()).find(|&i| found[i] != matrix.mirror[i]) {
            None => Ok(()),
            Some(i) => Err(format!(
                "after {:?}: element {i} of a matrix of width {}: expected {}, found {}",
                self.done, matrix.size, matrix.mirror[i], found[i]
            )),
        }
    }

    fn exchange(&mut self, which: usize) {
        let lock = || self.between.lock().unwrap_or_else(PoisonError::into_inner);
        if self.matrices[which].foreign || self.matrices.len() < 4 {
            return;
        }
        let mut given = self.matrices.swap_remove(which);
        given.foreign = true;
        let mut between = lock();
        between.push(given);
        self.done.handed += 1;
        if between.len() > 3 {
            let taken = between.remove(0);
            drop(between);
            self.matrices.push(taken);
        }
    }

    fn play(&mut self, vendor: &std::sync::Arc<Vendor>, rounds: usize) -> Result<(), String> {
        for _ in 0..3 {
            let matrix = self.fresh();
            self.matrices.push(matrix);
        }
        for _ in 0..rounds {
            let which = self.below(self.matrices.len());
            match self.below(16) {
                0..=6 => self.multiply(vendor)?,
                7..=9 => self.churn(which),
                10 | 11 => {
                    let matrix = self.fresh();
                    self.matrices.push(matrix);
                }
                12 if self.matrices.len() > 3 => drop(self.matrices.swap_remove(which)),
                13 => self.exchange(which),
                14 => self.client.flush().map_err(|error| error.to_string())?,
                15 => self.read(which)?,
                _ => {}
            }
        }
        (0..self.matrices.len()).try_for_each(|which| self.read(which))
    }
}

/// Runs `rounds` random steps on each of `threads` threads.
///
/// # Errors
/// The first wrong number, or the device's error.
pub fn stress(
    client: &Client,
    threads: usize,
    rounds: usize,
    seed: u64,
) -> Result<Interleavings, String> {
    let vendor = Vendor::of(client)?;
    let between = Mutex::new(Vec::new());
    let results: Vec<Result<Interleavings, String>> = std::thread::scope(|scope| {
        let player = |thread: usize| {
            let (client, vendor, between) = (client.clone(), vendor.clone(), &between);
            scope.spawn(move || {
                let mut player = Player {
                    client,
                    random: Random::new(seed + thread as u64),
                    matrices: Vec::new(),
                    between,
                    done: Interleavings::default(),
                };
                player.play(&vendor, rounds).map(|()| player.done)
            })
        };
        let players: Vec<_> = (0..threads).map(player).collect();
        let join = |player: std::thread::ScopedJoinHandle<_>| player.join();
        players
            .into_iter()
            .map(|player| join(player).unwrap_or_else(|_| Err("a thread panicked".into())))
            .collect()
    });
    results
        .into_iter()
        .try_fold(Interleavings::default(), |sum, done| {
            let done = done?;
            Ok(Interleavings {
                products: sum.products + done.products,
                launches: sum.launches + done.launches,
                reads: sum.reads + done.reads,
                handed: sum.handed + done.handed,
            })
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_period_of_the_map_divides_sixty() {
        for start in -2..=2 {
            let start = f64::from(start);
            // From any start, 60 more steps change nothing once a value of the cycle is reached.
            let near = (0..60).fold(start, |x, _| map(x));
            let far = (0..120).fold(start, |x, _| map(x));
            assert_eq!(near, far);
            assert!(near.abs() <= 2.0);
        }
        // A product's elements come back to small numbers at once.
        assert!((-400..=400).all(|x| map(f64::from(x)).abs() <= 2.0));
    }
}
