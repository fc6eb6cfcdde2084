//! A gate's coefficients as nodes.

use riverrun::ops::{Candidate, Gate};

use crate::graph::{Graph, Value};

fn one(graph: &mut Graph, op: &str, x: &Value) -> Value {
    graph.node(op, &[x], Vec::new())
}

fn two(graph: &mut Graph, op: &str, x: &Value, y: &Value) -> Value {
    graph.node(op, &[x, y], Vec::new())
}

/// `act(u)`.
fn candidate(graph: &mut Graph, candidate: Candidate, u: &Value) -> Value {
    match candidate {
        Candidate::Identity => u.clone(),
        Candidate::Tanh => one(graph, "Tanh", u),
        Candidate::G => {
            let (zero, half) = (graph.scalar(0.0), graph.scalar(0.5));
            let positive = two(graph, "GreaterOrEqual", u, &zero);
            let (above, below) = (two(graph, "Add", u, &half), one(graph, "Sigmoid", u));
            graph.node("Where", &[&positive, &above, &below], Vec::new())
        }
    }
}

/// `a` and `b` from a gate's inputs `[B, T, D]`.
pub fn coefficients(graph: &mut Graph, gate: Gate, inputs: &[Value]) -> [Value; 2] {
    match (gate, inputs) {
        (Gate::Raw, [a, b]) => [a.clone(), b.clone()],
        (Gate::Sigmoid, [k, b]) => [one(graph, "Sigmoid", k), b.clone()],
        (Gate::MinGru { candidate: act }, [k_z, k_h]) => {
            let z = one(graph, "Sigmoid", k_z);
            let minus = one(graph, "Neg", k_z);
            let a = one(graph, "Sigmoid", &minus);
            let h = candidate(graph, act, k_h);
            [a, two(graph, "Mul", &z, &h)]
        }
        (
            Gate::MinLstm {
                candidate: act,
                normalized,
            },
            [k_f, k_i, k_h],
        ) => {
            let (f, i) = match normalized {
                false => (one(graph, "Sigmoid", k_f), one(graph, "Sigmoid", k_i)),
                true => {
                    // ln(i / f) = ln σ(k_i) - ln σ(k_f).
                    let mut softplus = |k: &Value| {
                        let minus = one(graph, "Neg", k);
                        one(graph, "Softplus", &minus)
                    };
                    let (of_f, of_i) = (softplus(k_f), softplus(k_i));
                    let (odds_f, odds_i) = (
                        two(graph, "Sub", &of_i, &of_f),
                        two(graph, "Sub", &of_f, &of_i),
                    );
                    (
                        one(graph, "Sigmoid", &odds_f),
                        one(graph, "Sigmoid", &odds_i),
                    )
                }
            };
            let h = candidate(graph, act, k_h);
            let b = two(graph, "Mul", &i, &h);
            [f, b]
        }
        (Gate::RgLru, [s, u]) => {
            let s = one(graph, "Relu", s);
            let minus = one(graph, "Neg", &s);
            let a = one(graph, "Exp", &minus);
            // 1 - e^-2s = 2 tanh s / (1 + tanh s), which keeps its digits for small s.
            let (t, unit) = (one(graph, "Tanh", &s), graph.scalar(1.0));
            let (twice, more) = (two(graph, "Add", &t, &t), two(graph, "Add", &t, &unit));
            let rest = two(graph, "Div", &twice, &more);
            let root = one(graph, "Sqrt", &rest);
            [a, two(graph, "Mul", &root, u)]
        }
        _ => unreachable!("a gate has as many inputs as it says"),
    }
}
