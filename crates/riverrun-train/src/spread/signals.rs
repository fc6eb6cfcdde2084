//! What ranks tell each other beside their gradients: whether one is asked to stop, and when they look at that next.
//!
//! Both are summed with the gradients of every step, on the device. To look at them is to wait for the step, so ranks do it
//! about twice a second: after how many steps is a number of rank 0, by its clock, which all ranks get with the sum and so
//! look at the same step.

use std::time::{Duration, Instant};

use burn::tensor::{Device, Tensor, TensorData};
use riverrun::training::refill;

use super::tensor;
use crate::Error;

/// From one look to the next.
const PACE: Duration = Duration::from_millis(500);
/// The most steps between.
const MOST: f64 = 4096.0;

/// The signals of a rank.
pub(crate) struct Signals {
    /// Whether this rank is asked to stop.
    pub asked: bool,
    /// Whether any rank was asked to stop, as of the last look.
    pub stopping: bool,
    /// Whether this rank's clock counts.
    leads: bool,
    /// Those of the next step, where recorded steps find them.
    sent: Option<Tensor<1>>,
    /// The sums of the last step.
    received: Option<Tensor<1>>,
    /// Steps up to the next look, and since the last.
    next: usize,
    steps: usize,
    last: Instant,
    pace: f32,
}

impl Signals {
    pub fn new(leads: bool) -> Self {
        Self {
            asked: false,
            stopping: false,
            leads,
            sent: None,
            received: None,
            next: 1,
            steps: 0,
            last: Instant::now(),
            pace: 1.0,
        }
    }

    /// Before a step: puts the signals where it finds them, in the memory where they were if steps are recorded.
    pub fn announce(&mut self, device: &Device, kept: bool) -> Result<(), Error> {
        let pace = if self.leads { self.pace } else { 0.0 };
        let numbers = vec![f32::from(u8::from(self.asked)), pace];
        self.sent = Some(match self.sent.take().filter(|_| kept) {
            Some(place) => refill(place, TensorData::new(numbers, [2]))?,
            None => tensor(numbers, [2], device),
        });
        Ok(())
    }

    /// The signals in memory of their own, to be summed.
    pub(super) fn sent(&self, device: &Device) -> Tensor<1> {
        match &self.sent {
            Some(sent) => sent.clone().mul_scalar(1.0),
            None => Tensor::zeros([2], device),
        }
    }

    pub(super) fn received(&mut self, sums: Tensor<1>) {
        self.received = Some(sums);
    }

    /// Counts a step. The sums to look at, if it is time to.
    pub(super) fn due(&mut self) -> Option<Tensor<1>> {
        self.steps += 1;
        match self.steps < self.next {
            true => None,
            false => self.received.clone(),
        }
    }

    pub(super) fn hear(&mut self, sums: &[f32]) {
        let seconds = self.last.elapsed().as_secs_f64() / self.steps.max(1) as f64;
        self.pace = (PACE.as_secs_f64() / seconds).clamp(1.0, MOST).floor() as f32;
        (self.last, self.steps) = (Instant::now(), 0);
        self.stopping = sums[0] > 0.0;
        self.next = (sums[1] as usize).max(1);
    }
}
