//! The oracle against values computed by PyTorch in `float64`, see `tests/golden/make_recurrence.py`.

use riverrun_testkit::recurrence::check::Case;
use riverrun_testkit::recurrence::{Gate, Problem, Shape};
use serde_json::Value;

const GOLDEN: &str = include_str!("../golden/recurrence.json");

fn numbers(value: &Value) -> Vec<f64> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|x| x.as_f64().unwrap())
        .collect()
}

fn tensors(value: &Value) -> Vec<Vec<f64>> {
    value.as_array().unwrap().iter().map(numbers).collect()
}

fn optional(value: &Value) -> Option<Vec<f64>> {
    (!value.is_null()).then(|| numbers(value))
}

#[test]
fn the_oracle_agrees_with_pytorch() {
    let golden: Value = serde_json::from_str(GOLDEN).unwrap();
    let sizes = |name: &str| golden[name].as_u64().unwrap() as usize;
    let shape = Shape::new(sizes("batch"), sizes("steps"), sizes("dim"));
    let cases = golden["cases"].as_array().unwrap();
    for gate in Gate::all() {
        let name = gate.name();
        assert!(
            cases.iter().any(|case| case["gate"] == name),
            "no golden values for {name}"
        );
    }
    for values in cases {
        let name = values["gate"].as_str().unwrap();
        let gate = Gate::all()
            .into_iter()
            .find(|gate| gate.name() == name)
            .unwrap();
        let reset = values["reset"].as_array();
        let case = Case {
            problem: Problem::new(shape, gate).reversed(values["reverse"].as_bool().unwrap()),
            inputs: tensors(&values["inputs"]),
            h0: optional(&values["h0"]),
            reset: reset.map(|r| r.iter().map(|x| x.as_bool().unwrap()).collect()),
            d_h: numbers(&values["d_h"]),
            d_h_last: optional(&values["d_h_last"]),
        };
        let outcome = case.oracle();
        let check = |what: &str, found: &[f64], expected: &[f64]| {
            assert_eq!(found.len(), expected.len());
            for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
                let error = (found - expected).abs();
                assert!(
                    error <= 1e-14 * (1.0 + expected.abs()),
                    "{name} {what}[{i}]: {found}, PyTorch has {expected}"
                );
            }
        };
        check("h", &outcome.h, &numbers(&values["h"]));
        check("h_last", &outcome.h_last, &numbers(&values["h_last"]));
        check("d_h0", &outcome.d_h0, &numbers(&values["d_h0"]));
        for (found, expected) in outcome.d_inputs.iter().zip(tensors(&values["d_inputs"])) {
            check("d_input", found, &expected);
        }
    }
}
