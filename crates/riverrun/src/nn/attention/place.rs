//! Steps that are recorded on a GPU: their place in the stream, and keys and values that stay where they are.

use burn::tensor::{DType, Device, Int, Tensor};

use super::rotary::{Turn, Turns};
use super::{AttentionState, Rotary};

/// The place of a step in its stream, read from a GPU's memory: a step that is recorded takes no writes. With it a layer takes its
/// keys and values for a [ring](AttentionState::into_ring).
#[derive(Debug, Clone)]
pub struct Place {
    /// `[1]`: the steps before.
    pub position: Tensor<1, Int>,
    pub(super) turn: Option<Turn>,
}

/// The places of the first positions, for layers with the same rotary positions.
#[derive(Debug)]
pub struct Places(Option<Turns>);

impl Places {
    /// The first `positions` places, for layers of this dtype.
    pub fn new(rotary: Option<Rotary>, positions: usize, device: &Device, dtype: DType) -> Self {
        Self(rotary.map(|rotary| rotary.turns(positions, device, dtype)))
    }

    /// The place after the steps that `position` has, `[1]`.
    pub fn at(&self, position: Tensor<1, Int>) -> Place {
        Place {
            turn: self.0.as_ref().map(|turns| turns.at(&position)),
            position,
        }
    }
}

/// The steps of `of`, `[B, n, Hk, D]`, from one on.
fn some(of: &Tensor<4>, from: usize, count: usize) -> Option<Tensor<4>> {
    (count > 0).then(|| of.clone().narrow(1, from, count))
}

fn joined(parts: [Option<Tensor<4>>; 3]) -> Tensor<4> {
    Tensor::cat(parts.into_iter().flatten().collect(), 1)
}

impl AttentionState {
    /// The state with its keys and values in rings of `room` places, no fewer than it has: those of position `p` in place
    /// `p mod room`, and zeros where there are none yet.
    pub fn into_ring(mut self, room: usize) -> Self {
        let [batch, kept, heads, dim] = self.keys.dims();
        let first = (self.position - kept) % room;
        let tail = kept.min(room - first);
        let ring = |of: Tensor<4>| {
            let zeros = |count| {
                let shape = [batch, count, heads, dim];
                (count > 0).then(|| Tensor::zeros(shape, (&of.device(), of.dtype())))
            };
            let (before, after) = (some(&of, tail, kept - tail), some(&of, 0, tail));
            match before {
                Some(_) => joined([before, zeros(room - kept), after]),
                None => joined([zeros(first), after, zeros(room - first - tail)]),
            }
        };
        (self.keys, self.values) = (ring(self.keys), ring(self.values));
        self
    }

    /// The state of a ring after `position` steps, of which `kept` are wanted, no more than there are: with its keys and values in
    /// the order of their steps.
    pub fn from_ring(mut self, position: usize, kept: usize) -> Self {
        let [batch, room, heads, dim] = self.keys.dims();
        let first = (position - kept) % room;
        let tail = kept.min(room - first);
        let line = |of: Tensor<4>| match kept {
            0 => Tensor::zeros([batch, 0, heads, dim], (&of.device(), of.dtype())),
            _ => joined([some(&of, first, tail), some(&of, 0, kept - tail), None]),
        };
        (self.keys, self.values) = (line(self.keys), line(self.values));
        self.position = position;
        self
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use burn::tensor::TensorData;

    use super::*;

    /// Two heads of three channels that tell sequence, step, head and channel.
    fn state(position: usize, kept: usize) -> AttentionState {
        let number = |i: usize| (i + position * 1000) as f32;
        let numbers: Vec<f32> = (0..2 * kept * 6).map(number).collect();
        let data = TensorData::new(numbers, [2, kept, 2, 3]);
        let keys = Tensor::from_data(data, &Device::flex());
        AttentionState {
            values: keys.clone() * -1.0,
            keys,
            reset: None,
            position,
            place: None,
        }
    }

    #[test]
    fn a_ring_has_each_step_in_its_place() {
        for (position, kept, room) in [
            (0, 0, 3),
            (2, 2, 3),
            (3, 3, 3),
            (7, 3, 3),
            (7, 3, 5),
            (9, 4, 5),
            (14, 5, 7),
        ] {
            let before = state(position, kept);
            let ring = before.clone().into_ring(room);
            assert_eq!(ring.keys.dims(), [2, room, 2, 3]);
            for i in 0..kept {
                let place = (position - kept + i) % room;
                let step = |of: &AttentionState, i| of.keys.clone().narrow(1, i, 1).into_data();
                step(&ring, place).assert_eq(&step(&before, i), true);
            }
            let after = ring.from_ring(position, kept);
            after
                .keys
                .into_data()
                .assert_eq(&before.keys.into_data(), true);
            let (found, expected) = (after.values.into_data(), before.values.into_data());
            found.assert_eq(&expected, true);
        }
    }
}
