//! Tests that every instruction level computes the same.

use std::marker::PhantomData;

use super::backward::Backward;
use super::block::Block;
use super::forward::Forward;
use crate::recurrence::gates::{Coefficients, Visitor};
use crate::recurrence::{Gate, Problem, Rows, RowsMut, Shape};
use crate::simd::level::Level;

/// `h`, `d_inputs` and `d_h0` of one sequence, computed at a given level.
struct AtLevel(Level, Gate);

impl Visitor for AtLevel {
    type Output = Vec<Vec<f32>>;

    fn visit<C: Coefficients<N>, const N: usize>(self) -> Self::Output {
        let Self(level, gate) = self;
        let shape = Shape::new(1, 40, 37);
        let problem = Problem::new(shape, gate);
        let data = |seed: usize| -> Vec<f32> {
            (0..shape.elements())
                .map(|i| ((i * 31 + seed * 17) % 97) as f32 / 48.5 - 1.0)
                .collect()
        };
        let inputs: Vec<Vec<f32>> = (0..N).map(data).collect();
        let inputs: Vec<Rows<f32>> = inputs
            .iter()
            .map(|x| Rows::contiguous(x, shape).unwrap())
            .collect();
        let (h0, d_h) = (data(7), data(8));
        let block = || Block::<f32, C, N> {
            problem: &problem,
            inputs: std::array::from_fn(|k| &inputs[k]),
            h0: Some(&h0[..shape.dim]),
            reset: None,
            b: 0,
            channels: 0..shape.dim,
            streaming: false,
            gate: PhantomData,
        };
        let mut h = data(9);
        let out = RowsMut::contiguous(&mut h, shape).unwrap();
        level.dispatch(Forward {
            block: block(),
            h: &out,
        });

        let mut d: Vec<Vec<f32>> = (0..N).map(data).collect();
        let d_inputs: Vec<RowsMut<f32>> = d
            .iter_mut()
            .map(|d| RowsMut::contiguous(d, shape).unwrap())
            .collect();
        let mut d_h0 = h0.clone();
        d_h0.truncate(shape.dim);
        let state = RowsMut::contiguous(&mut d_h0, Shape::new(1, 1, shape.dim)).unwrap();
        level.dispatch(Backward {
            block: block(),
            h: &Rows::contiguous(&h, shape).unwrap(),
            d_h: &Rows::contiguous(&d_h, shape).unwrap(),
            d_h_last: None,
            d_inputs: std::array::from_fn(|k| &d_inputs[k]),
            d_h0: Some(&state),
        });
        [vec![h, d_h0], d].concat()
    }
}

/// Levels with a fused multiply-add agree bit for bit; without it results differ by roundings.
#[test]
fn levels_agree() {
    for gate in Gate::all() {
        let results = Level::available()
            .iter()
            .copied()
            .map(|level| gate.visit(AtLevel(level, gate)));
        let results: Vec<Vec<Vec<f32>>> = results.collect();
        let best = results[0].concat();
        for (level, result) in Level::available().iter().zip(&results) {
            for (i, (found, expected)) in result.concat().iter().zip(&best).enumerate() {
                let error = (found - expected).abs();
                let name = gate.name();
                assert!(
                    error <= 2e-6,
                    "{name} at {level:?}: element {i} is {found}, not {expected}"
                );
            }
        }
        if let [_, second, _] = &results[..] {
            assert_eq!(second.concat(), best, "{}", gate.name());
        }
    }
}
