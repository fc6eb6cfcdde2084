//! The situation from which a change is predicted.
//!
//! Weights are not seen by predictors. The device keeps copies of them, one every [`window`](Observation::window) steps;
//! the change between two copies is a window's update `U`. For each layer group, a predictor sees the inner products
//! of the last updates, and answers with a linear combination of those updates.

use serde::{Deserialize, Serialize};

/// Window updates that a predictor sees, the oldest first.
pub const WINDOWS: usize = 4;
/// Window updates that are kept: one more, so that what was said of the last can be compared with it.
pub(crate) const KEPT: usize = WINDOWS + 1;

/// Inner products `⟨U_i, U_j⟩` of one layer group's window updates.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Gram(pub [[f64; WINDOWS]; WINDOWS]);

/// The measurements at the end of a window of real steps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Observation {
    /// Steps done.
    pub step: u64,
    /// Steps in a window.
    pub window: u64,
    /// The 64 features of the training state.
    pub features: Vec<f32>,
    /// Mean loss of the last window.
    pub loss: f64,
    /// The mean learning rate of the steps to come over that of the last window.
    pub lr_ratio: f64,
    /// One for each layer group.
    pub groups: Vec<Gram>,
}

/// Inner products of one layer group's last [`KEPT`] window updates; 0 for those that are not there yet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Products([[f64; KEPT]; KEPT]);

impl Products {
    /// Takes in the newest update's products with those before it and, last, with itself.
    pub fn push(&mut self, newest: &[f64; KEPT]) {
        let before = self.0;
        self.0 = std::array::from_fn(|i| {
            std::array::from_fn(|j| match (i, j) {
                (WINDOWS, j) => newest[j],
                (i, WINDOWS) => newest[i],
                (i, j) => before[i + 1][j + 1],
            })
        });
    }

    /// Those of the last updates, which a predictor sees.
    pub fn recent(&self) -> Gram {
        Gram(std::array::from_fn(|i| {
            std::array::from_fn(|j| self.0[i + 1][j + 1])
        }))
    }

    /// Compares the newest update `U` with the prediction `P = Σ weights_i U_i` made from the updates before it. Returns
    /// `⟨P, P⟩`, `⟨P, U⟩` and `⟨U, U⟩`.
    pub fn compare(&self, weights: &[f64; WINDOWS]) -> (f64, f64, f64) {
        let earlier = Gram(std::array::from_fn(|i| {
            std::array::from_fn(|j| self.0[i][j])
        }));
        let both = (0..WINDOWS).map(|i| weights[i] * self.0[i][WINDOWS]).sum();
        (
            earlier.inner(weights, weights),
            both,
            self.0[WINDOWS][WINDOWS],
        )
    }

    /// `⟨V, V⟩`, `⟨V, U⟩` and `⟨U, U⟩` of the newest update `U` and the one before it, `V`.
    pub fn last_two(&self) -> (f64, f64, f64) {
        let last = WINDOWS - 1;
        (
            self.0[last][last],
            self.0[last][WINDOWS],
            self.0[WINDOWS][WINDOWS],
        )
    }
}

impl Gram {
    /// `⟨Σ a_i U_i, Σ b_j U_j⟩`.
    pub fn inner(&self, a: &[f64; WINDOWS], b: &[f64; WINDOWS]) -> f64 {
        let row = |i: usize| -> f64 { (0..WINDOWS).map(|j| self.0[i][j] * b[j]).sum() };
        (0..WINDOWS).map(|i| a[i] * row(i)).sum()
    }

    /// The length of the last update along the mean of the three before it, in lengths of that mean: what a predictor
    /// that continues the mean would have had to say one window ago. 0 where there is no mean to speak of.
    pub fn continued(&self) -> f64 {
        let mean = BEFORE;
        let last = LAST;
        let square = self.inner(&mean, &mean);
        if square > 0.0 {
            (self.inner(&last, &mean) / square).clamp(-2.0, 2.0)
        } else {
            0.0
        }
    }

    /// Whether all products are finite and some update has a length.
    pub fn usable(&self) -> bool {
        let finite = self.0.iter().flatten().all(|value| value.is_finite());
        finite && (0..WINDOWS).any(|i| self.0[i][i] > 0.0)
    }

    /// The direction of most length among the updates: its weights on them, of length 1, and its share of the squared
    /// lengths. By power iteration, which always starts from the sum of the updates.
    pub fn principal(&self) -> ([f64; WINDOWS], f64) {
        let trace: f64 = (0..WINDOWS).map(|i| self.0[i][i]).sum();
        if !self.usable() {
            return ([0.0; WINDOWS], 0.0);
        }
        let mut v = [1.0 / (WINDOWS as f64).sqrt(); WINDOWS];
        let mut value = 0.0;
        for _ in 0..100 {
            let next: [f64; WINDOWS] =
                std::array::from_fn(|i| (0..WINDOWS).map(|j| self.0[i][j] * v[j]).sum());
            let length = next.iter().map(|x| x * x).sum::<f64>().sqrt();
            if length <= trace * 1e-12 {
                return ([0.0; WINDOWS], 0.0);
            }
            v = next.map(|x| x / length);
            value = length;
        }
        (v, (value / trace).min(1.0))
    }
}

/// The last update alone.
pub(crate) const LAST: [f64; WINDOWS] = [0.0, 0.0, 0.0, 1.0];
/// The mean of all updates but the last.
const BEFORE: [f64; WINDOWS] = [1.0 / 3.0, 1.0 / 3.0, 1.0 / 3.0, 0.0];
/// The mean of all updates but the first: the direction that a learned predictor continues.
pub(crate) const RECENT: [f64; WINDOWS] = [0.0, 1.0 / 3.0, 1.0 / 3.0, 1.0 / 3.0];

impl Observation {
    /// The length of the last update of each group along the mean of the three before it: see [`Gram::continued`].
    pub fn continued(&self) -> Vec<f64> {
        self.groups.iter().map(Gram::continued).collect()
    }

    /// The mean over the groups of a value between 0 and 1, weighted by the lengths of their last updates.
    pub fn weighted(&self, value: impl Fn(&Gram) -> f64) -> f64 {
        let length = |gram: &Gram| gram.0[WINDOWS - 1][WINDOWS - 1].max(0.0).sqrt();
        let total: f64 = self.groups.iter().map(length).sum();
        if !(total > 0.0 && total.is_finite()) {
            return 0.0;
        }
        self.groups
            .iter()
            .map(|gram| length(gram) * value(gram))
            .sum::<f64>()
            / total
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The Gram matrix of updates that lie in a plane.
    pub(crate) fn gram(updates: [[f64; 2]; WINDOWS]) -> Gram {
        Gram(std::array::from_fn(|i| {
            std::array::from_fn(|j| (0..2).map(|k| updates[i][k] * updates[j][k]).sum())
        }))
    }

    /// The same of one more.
    pub(crate) fn products(updates: [[f64; 2]; KEPT]) -> Products {
        let mut products = Products::default();
        for (n, newest) in updates.iter().enumerate() {
            let mut row = [0.0; KEPT];
            for back in 0..=n {
                let other = updates[n - back];
                row[WINDOWS - back] = newest[0] * other[0] + newest[1] * other[1];
            }
            products.push(&row);
        }
        products
    }

    #[test]
    fn products_move_on() {
        let updates = [[1.0, 0.0], [0.0, 2.0], [1.0, 1.0], [3.0, 0.0], [0.5, 4.0]];
        let found = products(updates);
        assert_eq!(found.recent(), gram(*updates.last_chunk().unwrap()));
        assert_eq!(found.compare(&[0.0, 0.0, 1.0, 1.0]), (17.0, 6.0, 16.25));
        assert_eq!(found.last_two(), (9.0, 1.5, 16.25));
    }

    /// An observation with one group.
    pub(crate) fn observation(updates: [[f64; 2]; WINDOWS]) -> Observation {
        Observation {
            step: 100,
            window: 5,
            features: vec![0.1; super::super::FEATURES],
            loss: 2.0,
            lr_ratio: 1.0,
            groups: vec![gram(updates)],
        }
    }

    #[test]
    fn steady_updates() {
        let steady = gram([[1.0, 0.0]; WINDOWS]);
        assert!((steady.continued() - 1.0).abs() < 1e-12);
        let (v, share) = steady.principal();
        assert!(v.iter().all(|x| (x - 0.5).abs() < 1e-12));
        assert!((share - 1.0).abs() < 1e-12);
    }

    #[test]
    fn a_turn_and_a_stop() {
        let turn = gram([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]);
        assert_eq!(turn.continued(), 0.0);
        assert!((turn.principal().1 - 0.75).abs() < 1e-9);
        let still = gram([[0.0, 0.0]; WINDOWS]);
        assert_eq!(still.continued(), 0.0);
        assert_eq!(still.principal(), ([0.0; WINDOWS], 0.0));
        assert!(!Gram([[f64::NAN; WINDOWS]; WINDOWS]).usable());
    }

    #[test]
    fn weights_follow_the_lengths() {
        let mut observation = observation([[1.0, 0.0]; WINDOWS]);
        observation.groups.push(gram([[0.0, 3.0]; WINDOWS]));
        let found = observation.weighted(|gram| f64::from(u8::from(gram.0[0][0] > 1.0)));
        assert!((found - 0.75).abs() < 1e-12);
    }
}
