//! Rotary positions.

use std::sync::{Mutex, PoisonError};
use std::thread::{self, ThreadId};

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use super::kept::Kept;
use crate::Error;
use crate::ops;

/// Rotary positions: of the first `dims` channels of a head, channels `i` and `i + dims / 2` are turned by the angle
/// `position · base^(-2i / dims)`, so that a product of query and key depends on their distance alone.
///
/// Source: Su et al., *RoFormer: Enhanced Transformer with Rotary Position Embedding* (2021), section 3.2.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Rotary {
    /// The wavelengths reach from `2π` to about `2π base` steps.
    pub base: f64,
    /// Channels that are turned, an even number; the others are left as they are.
    pub dims: usize,
}

impl Rotary {
    /// With a base of 10 000.
    pub fn new(dims: usize) -> Self {
        Self {
            base: 10_000.0,
            dims,
        }
    }

    /// With another base.
    pub fn with_base(mut self, base: f64) -> Self {
        self.base = base;
        self
    }

    /// The angles of the first positions, for [single steps](Turns::at).
    pub(super) fn turns(&self, positions: usize, device: &Device, dtype: DType) -> Turns {
        let table = |data| Tensor::from_data(data, (device, dtype));
        let [cos, sin] = self.numbers(0, positions).map(table);
        Turns { cos, sin }
    }

    /// `x`, `[B, T, H, D]`, its first heads turned by their positions, of which `first` is that of step 0; by `turn` where it is
    /// given.
    pub(in crate::nn) fn turned(
        &self,
        x: Tensor<4>,
        heads: usize,
        first: usize,
        turn: Option<&Turn>,
    ) -> Result<Tensor<4>, Error> {
        if self.dims < 2 {
            return Ok(x);
        }
        let angles = match turn {
            Some(turn) => [turn.cos.clone(), turn.sin.clone()],
            None => self.tables(first, x.dims()[1], &x.device(), x.dtype()),
        };
        ops::rotary(x, angles, heads)
    }

    /// `x`, `[B, T, H, dims]`, turned by the positions of sequences that are at different ones: those of their steps 0.
    pub(in crate::nn) fn turned_each(&self, x: Tensor<4>, firsts: &[usize]) -> Tensor<4> {
        let ([batch, steps, ..], half) = (x.dims(), self.dims / 2);
        let (device, dtype) = (x.device(), x.dtype());
        let tables = firsts.iter().map(|&first| self.numbers(first, steps));
        let [cos, sin] = tables.fold([vec![], vec![]], |[mut cos, mut sin], [c, s]| {
            cos.extend(c.iter::<f32>());
            sin.extend(s.iter::<f32>());
            [cos, sin]
        });
        let table = |numbers| {
            let data = TensorData::new(numbers, [batch, steps, 1, half]);
            Tensor::<4>::from_data(data, (&device, dtype))
        };
        let (cos, sin) = (table(cos), table(sin));
        let (a, b) = (x.clone().narrow(3, 0, half), x.narrow(3, half, half));
        let first = a.clone() * cos.clone() - b.clone() * sin.clone();
        Tensor::cat(vec![first, b * cos + a * sin], 3)
    }

    /// The cosines and sines of positions, `[T, dims / 2]`. Those of sequences from their start are kept: training asks
    /// for the same ones at each step, and a step that is recorded on a GPU takes no writes from the host.
    fn tables(&self, first: usize, steps: usize, device: &Device, dtype: DType) -> [Tensor<2>; 2] {
        static KEPT: Mutex<Kept<Key, [Tensor<2>; 2]>> = Mutex::new(Kept::new());
        let key = Key {
            rotary: *self,
            steps,
            device: device.clone(),
            dtype,
            thread: thread::current().id(),
        };
        if first > 0 || steps == 1 {
            return self.made(first, &key);
        }
        let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
        kept.get(key, records(device), |key| self.made(first, key))
    }

    fn made(&self, first: usize, key: &Key) -> [Tensor<2>; 2] {
        let tensor = |data| Tensor::from_data(data, (&key.device, key.dtype));
        self.numbers(first, key.steps).map(tensor)
    }

    /// The cosines and sines of positions, `[T, dims / 2]`.
    fn numbers(&self, first: usize, steps: usize) -> [TensorData; 2] {
        let half = self.dims / 2;
        let angle = |n: usize| {
            let (step, i) = (n / half, n % half);
            let rate = self.base.powf(-(2.0 * i as f64) / self.dims as f64);
            (first + step) as f64 * rate
        };
        [f64::cos, f64::sin].map(|f| {
            let numbers: Vec<f32> = (0..steps * half).map(|n| f(angle(n)) as f32).collect();
            TensorData::new(numbers, [steps, half])
        })
    }
}

/// The angles of many positions, in a GPU's memory.
#[derive(Debug)]
pub(super) struct Turns {
    /// `[positions, dims / 2]`.
    cos: Tensor<2>,
    /// `[positions, dims / 2]`.
    sin: Tensor<2>,
}

impl Turns {
    /// The angles of a position, `[1]`.
    pub fn at(&self, position: &Tensor<1, Int>) -> Turn {
        let row = |table: &Tensor<2>| table.clone().select(0, position.clone());
        Turn {
            cos: row(&self.cos),
            sin: row(&self.sin),
        }
    }
}

/// The angles of a step.
#[derive(Debug, Clone)]
pub(in crate::nn) struct Turn {
    /// `[1, dims / 2]`.
    cos: Tensor<2>,
    /// `[1, dims / 2]`.
    sin: Tensor<2>,
}

/// Whether the device records launches.
#[allow(unused_variables)]
fn records(device: &Device) -> bool {
    #[cfg(feature = "cube")]
    return crate::device::client(device).is_some_and(|client| client.is_capturing());
    #[cfg(not(feature = "cube"))]
    false
}

/// The key of a table. Threads do not share tables: on a GPU each thread has its own queue.
#[derive(PartialEq)]
struct Key {
    rotary: Rotary,
    steps: usize,
    device: Device,
    dtype: DType,
    thread: ThreadId,
}
