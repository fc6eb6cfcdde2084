//! Low-rank adaptation: what an adapted model computes, and what of it learns.

use std::collections::HashMap;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{Device, Distribution, FloatDType, Gradients, Int, Tensor};
use riverrun::Sequence;
use riverrun_models::weights::Published;
use riverrun_models::{AnyLanguageModel, LoraConfig, adapted};

use crate::common::{assert_close, numbers};
use crate::published::{MODELS, TOLERANCE, copied};

/// The logits of two sequences, and the gradients of the sum of their squares.
fn run(model: &AnyLanguageModel, device: &Device) -> (Vec<f64>, Gradients) {
    let tokens: Tensor<2, Int> =
        Tensor::from_data([[1, 5, 3, 0, 2, 7], [4, 4, 1, 6, 3, 2]], device);
    let (logits, _) = model.forward(tokens, Sequence::new());
    let gradients = logits.clone().powi_scalar(2).sum().backward();
    (numbers(logits), gradients)
}

/// Gives every factor random numbers: fresh ones change nothing.
struct Fill;

impl ModuleMapper for Fill {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        match param.is_require_grad() {
            false => param,
            true => param.map(|factor| {
                let numbers = Distribution::Normal(0.0, 0.1);
                let filled = Tensor::random(factor.dims(), numbers, &factor.device().inner());
                Tensor::from_inner(filled).require_grad()
            }),
        }
    }
}

/// The gradients of parameters, and the factors beside them.
#[derive(Default)]
struct Take<'a> {
    gradients: Option<&'a Gradients>,
    inside: bool,
    beside: Option<ParamId>,
    /// By parameter; of factors by that of the weight beside them, `A` first.
    weights: HashMap<ParamId, Vec<f64>>,
    factors: HashMap<ParamId, Vec<(Vec<f64>, [usize; 2], Vec<f64>)>>,
}

impl ModuleVisitor for Take<'_> {
    fn enter_module(&mut self, _name: &str, container: &str) {
        self.inside |= container == "Reparameterization";
    }

    fn exit_module(&mut self, _name: &str, container: &str) {
        self.inside &= container != "Reparameterization";
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let gradient = param.val().grad(self.gradients.expect("gradients"));
        let gradient = gradient.map(numbers);
        if !self.inside {
            self.beside = Some(param.id);
            self.weights
                .extend(gradient.map(|numbers| (param.id, numbers)));
            return;
        }
        let weight = self.beside.expect("a weight comes first");
        let dims = [param.dims()[0], param.dims()[1]];
        let gradient = gradient.expect("factors learn");
        let all = self.factors.entry(weight).or_default();
        all.push((numbers(param.val()), dims, gradient));
    }
}

/// `A B` of row-major matrices, either of which may be transposed.
fn product(a: (&[f64], [usize; 2], bool), b: (&[f64], [usize; 2], bool)) -> Vec<f64> {
    let at = |(numbers, [_, columns], turned): (&[f64], [usize; 2], bool), i: usize, j: usize| {
        match turned {
            false => numbers[i * columns + j],
            true => numbers[j * columns + i],
        }
    };
    let size = |(_, [rows, columns], turned): (&[f64], [usize; 2], bool)| match turned {
        false => (rows, columns),
        true => (columns, rows),
    };
    let ((rows, inner), (_, columns)) = (size(a), size(b));
    let mut all = Vec::with_capacity(rows * columns);
    for i in 0..rows {
        for j in 0..columns {
            all.push((0..inner).map(|k| at(a, i, k) * at(b, k, j)).sum());
        }
    }
    all
}

#[test]
fn factors_change_a_model_as_their_product_does_and_learn_alone() {
    let device = Device::flex().autodiff();
    let config = LoraConfig::new(3, 6.0);
    for kind in MODELS {
        let folder = copied(kind, "model.safetensors");
        let published = Published::open(folder.path()).expect("a model");
        let plain = published.load(&device, FloatDType::F32).expect("weights");
        assert_eq!(adapted(&plain), None, "{kind}");
        let (before, _) = run(&plain, &device);
        let (factors, _) = config.numbers(&plain);
        let parameters = Module::num_params(&plain);
        device.seed(3);
        let model = config.adapt(plain);
        assert_eq!(Module::num_params(&model), parameters + factors as usize);
        assert_eq!(run(&model, &device).0, before, "{kind}: fresh factors");

        let model = model.map(&mut Fill);
        let merged = model
            .clone()
            .valid()
            .materialize()
            .train()
            .set_require_grad(true);
        assert_eq!(adapted(&merged), None, "{kind}");
        let (found, gradients) = run(&model, &device);
        let (expected, by_weight) = run(&merged, &device);
        assert_close(kind, &found, &expected, TOLERANCE);
        assert_ne!(found, before, "{kind}");

        let mut take = Take {
            gradients: Some(&gradients),
            ..Take::default()
        };
        model.visit(&mut take);
        assert!(take.weights.is_empty(), "{kind}: weights stay as they are");
        let ids = adapted(&model).expect("factors");
        assert_eq!(ids.len(), 2 * take.factors.len(), "{kind}");
        let mut all = Take {
            gradients: Some(&by_weight),
            ..Take::default()
        };
        merged.visit(&mut all);
        for (weight, factors) in take.factors {
            let [(a, a_dims, d_a), (b, b_dims, d_b)] = &factors[..] else {
                panic!("{kind}: two factors");
            };
            let d_weight = &all.weights[&weight];
            let dims = [a_dims[0], b_dims[1]];
            let scaled =
                |numbers: Vec<f64>| -> Vec<f64> { numbers.iter().map(|x| 2.0 * x).collect() };
            let expected = scaled(product((d_weight, dims, false), (b, *b_dims, true)));
            assert_close(&format!("{kind}: dA"), d_a, &expected, TOLERANCE);
            let expected = scaled(product((a, *a_dims, true), (d_weight, dims, false)));
            assert_close(&format!("{kind}: dB"), d_b, &expected, TOLERANCE);
        }
    }
}

#[test]
fn numbers_that_make_no_sense_are_refused() {
    for (rank, alpha, reason) in [(0, 1.0, "rank"), (2, 0.0, "alpha"), (2, f64::NAN, "alpha")] {
        let error = LoraConfig::new(rank, alpha)
            .check()
            .unwrap_err()
            .to_string();
        assert!(error.contains(reason), "{error}");
    }
}
