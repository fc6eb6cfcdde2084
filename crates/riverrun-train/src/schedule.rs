//! The learning rate over a run.

/// Linear warm-up, then half a cosine down to a tenth of the peak.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Schedule {
    /// Learning rate at the end of the warm-up.
    pub peak: f64,
    /// Steps of warm-up.
    pub warmup: u64,
    /// Steps of the whole run.
    pub steps: u64,
}

impl Schedule {
    /// The part of the peak that is left at the end.
    pub const FLOOR: f64 = 0.1;

    /// Learning rate of a step; steps count from 0.
    pub fn at(&self, step: u64) -> f64 {
        if step < self.warmup {
            return self.peak * (step + 1) as f64 / self.warmup as f64;
        }
        let decay = self.steps.saturating_sub(self.warmup).max(1) as f64;
        let done = ((step - self.warmup) as f64 / decay).min(1.0);
        let cosine = 0.5 * (1.0 + (std::f64::consts::PI * done).cos());
        self.peak * (Self::FLOOR + (1.0 - Self::FLOOR) * cosine)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rises_then_falls_to_a_tenth() {
        let schedule = Schedule {
            peak: 1.0,
            warmup: 10,
            steps: 110,
        };
        assert_eq!(schedule.at(0), 0.1);
        assert_eq!(schedule.at(9), 1.0);
        assert_eq!(schedule.at(10), 1.0);
        assert!((schedule.at(60) - 0.55).abs() < 1e-12);
        assert!((schedule.at(110) - 0.1).abs() < 1e-12);
        assert!((10..109).all(|step| schedule.at(step) >= schedule.at(step + 1)));
    }

    #[test]
    fn no_warmup_and_one_step() {
        assert_eq!(
            Schedule {
                peak: 2.0,
                warmup: 0,
                steps: 1
            }
            .at(0),
            2.0
        );
    }
}
