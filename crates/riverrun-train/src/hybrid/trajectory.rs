//! The windows of a run, recorded, from which predictors of other runs learn.

use serde::{Deserialize, Serialize};

use super::observation::Observation;

/// A line of a run's `trajectory.jsonl`: what predictors saw at the end of a window of real steps.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Sighting<O = Observation> {
    /// Whether real steps alone lie between the line before and this one: no prediction, and nothing taken back.
    pub follows: bool,
    /// The measurements.
    #[serde(flatten)]
    pub observation: O,
}

/// The stretches of a trajectory between which something else than real steps changed the weights, each at least two long.
pub(super) fn stretches(sightings: Vec<Sighting>) -> Vec<Vec<Observation>> {
    let mut stretches: Vec<Vec<Observation>> = Vec::new();
    for Sighting {
        follows,
        observation,
    } in sightings
    {
        match stretches.last_mut().filter(|_| follows) {
            Some(stretch) => stretch.push(observation),
            None => stretches.push(vec![observation]),
        }
    }
    stretches.retain(|stretch| stretch.len() > 1);
    stretches
}

#[cfg(test)]
mod tests {
    use super::super::observation::tests::observation;
    use super::*;

    #[test]
    fn a_prediction_begins_a_new_stretch() {
        let seen = |follows: bool| Sighting {
            follows,
            observation: observation([[1.0, 0.0]; 4]),
        };
        let line = serde_json::to_string(&seen(true)).unwrap();
        assert_eq!(serde_json::from_str::<Sighting>(&line).unwrap(), seen(true));
        let lines = [false, true, true, false, false, true].map(seen);
        let lengths: Vec<usize> = stretches(lines.into()).iter().map(Vec::len).collect();
        assert_eq!(lengths, [3, 2]);
    }
}
