//! The tuning of a launch.

use cubecl::client::Client;

use super::handover::LANES;
use super::{Class, Tuning};
use crate::gpu::Dtype;
use crate::recurrence::{Problem, Routine};
use crate::tuned::Table;

/// The tuning for a problem on a card: of its table, else by rule.
pub(super) fn tuning(
    client: &Client,
    problem: &Problem,
    dtype: Dtype,
    backward: bool,
    routine: Routine,
) -> Tuning {
    let rule = Tuning::default_for(problem, dtype, backward, routine);
    match Table::of(client) {
        Some(table) if routine == Routine::LookBack => {
            measured(rule, table, problem, dtype, backward)
        }
        _ => rule,
    }
}

/// The tuning that a table has for a look-back problem, else the rule's.
fn measured(
    rule: Tuning,
    table: &Table,
    problem: &Problem,
    dtype: Dtype,
    backward: bool,
) -> Tuning {
    let class = Class::of(problem, dtype, backward);
    let Some(found) = class.and_then(|class| table.scan(class)) else {
        return rule;
    };
    let mut vector = found.vector;
    // Sequences may have fewer channels than the one that was measured: a plane keeps its lanes.
    while vector > rule.vector && problem.shape.dim < LANES * vector {
        vector /= 2;
    }
    Tuning {
        vector,
        chunk: rule.chunk.next_multiple_of(found.len),
        cube: rule.cube,
        ..found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recurrence::{Gate, Shape};

    #[test]
    fn a_table_changes_the_tuning_of_its_class_alone() {
        let tuned = |dim, gate, backward| {
            let problem = Problem::new(Shape::new(1, 4096, dim), gate);
            let text = "riverrun tuning 1\ndevice card\nscan raw f32 forward 512 4:16:4:1:1";
            let table: Table = text.parse().unwrap();
            let rule = Tuning::default_for(&problem, Dtype::F32, backward, Routine::LookBack);
            let tuning = measured(rule, &table, &problem, Dtype::F32, backward);
            (tuning != rule).then(|| tuning.to_string())
        };
        assert_eq!(tuned(256, Gate::Raw, false).as_deref(), Some("4:16:4:1:1"));
        // A plane has 32 lanes, and the rule's vectors have one channel.
        assert_eq!(tuned(64, Gate::Raw, false).as_deref(), Some("2:16:4:1:1"));
        assert_eq!(tuned(1024, Gate::Raw, false), None);
        assert_eq!(tuned(256, Gate::Raw, true), None);
        assert_eq!(tuned(256, Gate::RgLru, false), None);
    }
}
