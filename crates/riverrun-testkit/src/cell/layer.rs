//! A layer as users call it.

use burn::tensor::{Device, Tensor, TensorData};
use riverrun::Sequence;
use riverrun::ops::{CellOptions, CellState, CellWeights, cell_layer};

use crate::cell::check::{Case, Results};
use crate::{CpuElement, Storage};

/// Runs the layer's operation and its backward pass on this device. The input weights are the identity, so that the input is
/// `xg` and its gradient that of `xg`.
pub fn layer<E: CpuElement>(case: &Case<E>, device: &Device, storage: Storage) -> Results<E> {
    let problem = case.problem;
    let (batch, steps, hidden) = (problem.batch, problem.steps, problem.hidden);
    let width = problem.gate_width();
    let device = device.clone().autodiff();
    let dtype = storage.dtype();
    let tensor = |numbers: Vec<f64>| {
        let numbers: Vec<f32> = numbers.into_iter().map(|x| x as f32).collect();
        let length = numbers.len();
        Tensor::<1>::from_data(TensorData::new(numbers, [length]), &device).cast(dtype)
    };
    let wide = |x: &[E]| tensor(x.iter().map(|x| x.to_f64()).collect());
    let state = |x: &Option<Vec<E>>| {
        x.as_ref()
            .map(|x| wide(x).reshape([batch, hidden]).require_grad())
    };
    let identity = (0..width * width).map(|i| f64::from(u8::from(i % (width + 1) == 0)));
    let x = wide(&case.xg).reshape([batch, steps, width]).require_grad();
    let bias = case.bias.as_ref().map(|bias| wide(bias).require_grad());
    let u = wide(&case.u).reshape([width, problem.depth()]);
    let identity = tensor(identity.collect()).reshape([width, width]);
    let weights = CellWeights::new(identity, u.require_grad())
        .with_biases(None, bias)
        .with_heads(problem.heads);
    let (u, bias) = (weights.weight_hh.clone(), weights.bias_hh.clone());
    let (h0, c0) = (state(&case.h0), state(&case.c0));
    // A cell state comes with a state.
    let h = h0.clone().or_else(|| {
        let zeros = vec![0.0; batch * hidden];
        c0.is_some().then(|| tensor(zeros).reshape([batch, hidden]))
    });
    let mut sequence = Sequence::from(h.map(|h| match &c0 {
        Some(c) => CellState::new(h).with_c(c.clone()),
        None => CellState::new(h),
    }));
    sequence.reset = case.reset.as_ref().map(|reset| {
        let numbers = reset.iter().map(|&x| f64::from(u8::from(x))).collect();
        tensor(numbers).reshape([batch, steps]).greater_elem(0.5)
    });
    let options = CellOptions::new().with_reverse(problem.reverse);
    let (h, last) = cell_layer(x.clone(), weights, problem.cell, sequence, options)
        .unwrap_or_else(riverrun::Error::raise);
    let mut loss = h.clone().sum() * 0.0;
    if let Some(d) = &case.d_h {
        loss = loss + (h.clone() * wide(d).reshape([batch, steps, hidden])).sum();
    }
    if let Some(d) = &case.d_h_last {
        loss = loss + (last.h.clone() * wide(d).reshape([batch, hidden])).sum();
    }
    if let (Some(d), Some(c)) = (&case.d_c_last, &last.c) {
        loss = loss + (c.clone() * wide(d).reshape([batch, hidden])).sum();
    }
    let gradients = loss.backward();
    let numbers = |data: TensorData| data.iter::<f64>().map(E::from_f64).collect::<Vec<E>>();
    let truth = case.to::<f64>().oracle().expect("a problem that fits");
    // An absent input has no gradient to compare; a lost gradient is compared as NaN.
    macro_rules! gradient {
        ($tensor:expr, $truth:expr) => {
            match &$tensor {
                None => $truth.into_iter().map(E::from_f64).collect::<Vec<E>>(),
                Some(tensor) => match tensor.grad(&gradients) {
                    Some(gradient) => numbers(gradient.into_data()),
                    None => vec![E::from_f64(f64::NAN); $truth.len()],
                },
            }
        };
    }
    Results {
        h: numbers(h.into_data()),
        h_last: numbers(last.h.into_data()),
        c_last: last.c.map_or(Vec::new(), |c| numbers(c.into_data())),
        d_xg: gradient!(Some(&x), truth.d_xg),
        d_u: gradient!(Some(&u), truth.d_u),
        d_bias: gradient!(bias, truth.d_bias),
        d_h0: gradient!(h0, truth.d_h0),
        d_c0: gradient!(c0, truth.d_c0),
    }
}
