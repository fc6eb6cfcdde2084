//! `B = 0` and `T = 0`, forward and backward.

use burn::tensor::{Device, Int, Tensor};
use riverrun::Sequence;
use riverrun::ops::{
    Candidate, Cell, CellOptions, CellWeights, Gate, LinearSpec, ScanOptions, add_rms_norm,
    block_diagonal_scan, cell_layer, cross_entropy, gated_scan, gelu, layer_norm, linear,
    linear_scan, mlp, swiglu,
};

use crate::common::{devices, numbers};
use crate::random;

const EMPTY: [[usize; 2]; 3] = [[0, 3], [2, 0], [0, 0]];

/// The gradient of every leaf is there, of the leaf's shape, and all zeros.
fn no_gradient<const D: usize>(name: &str, leaf: &Tensor<D>, loss: &Tensor<1>) {
    let grads = loss.clone().backward();
    let gradient = leaf.grad(&grads).expect("a gradient");
    assert_eq!(gradient.dims(), leaf.dims(), "{name}");
    assert!(numbers(gradient).iter().all(|&x| x == 0.0), "{name}");
}

fn each(run: impl Fn(&str, [usize; 2], &Device)) {
    for (name, device) in devices() {
        for shape in EMPTY {
            run(
                &format!("{name} {shape:?}"),
                shape,
                &device.clone().autodiff(),
            );
        }
    }
}

#[test]
fn scans() {
    each(|name, [b, t], device| {
        let x: Tensor<3> = random([b, t, 4], device).require_grad();
        let run =
            |x: Tensor<3>| linear_scan(x.clone(), x, Sequence::new(), ScanOptions::new()).unwrap();
        let (h, last) = run(x.clone());
        assert_eq!((h.dims(), last.dims()), ([b, t, 4], [b, 4]), "{name}");
        no_gradient(name, &x, &h.sum());
        let (_, last) = run(x.clone());
        no_gradient(name, &x, &(last.sum() + x.clone().sum() * 0.0));
        let gate = Gate::MinGru {
            candidate: Candidate::Identity,
        };
        let options = ScanOptions::new().with_reverse(true);
        let (h, last) = gated_scan(x.clone(), gate, Sequence::new(), options).unwrap();
        assert_eq!((h.dims(), last.dims()), ([b, t, 2], [b, 2]), "{name}");
        no_gradient(name, &x, &h.sum());
    });
}

#[test]
fn block_diagonal() {
    each(|name, [b, t], device| {
        let a: Tensor<5> = random([b, t, 2, 3, 3], device).require_grad();
        let x: Tensor<3> = random([b, t, 6], device);
        let (h, last) =
            block_diagonal_scan(a.clone(), x, Sequence::new(), ScanOptions::new()).unwrap();
        assert_eq!((h.dims(), last.dims()), ([b, t, 6], [b, 6]), "{name}");
        no_gradient(name, &a, &h.sum());
    });
}

#[test]
fn cells() {
    each(|name, [b, t], device| {
        for cell in Cell::all() {
            for heads in [1, 2] {
                let rows = cell.gates() * 4;
                let x: Tensor<3> = random([b, t, 3], device).require_grad();
                let u: Tensor<2> = random([rows, 4 / heads], device).require_grad();
                let bias: Tensor<1> = random([rows], device).require_grad();
                let weights = CellWeights::new(random([rows, 3], device), u.clone())
                    .with_biases(Some(bias.clone()), Some(bias.clone()))
                    .with_heads(heads);
                let (h, last) = cell_layer(
                    x.clone(),
                    weights,
                    cell,
                    Sequence::new(),
                    CellOptions::new(),
                )
                .unwrap();
                let name = format!("{name} {} heads {heads}", cell.name());
                assert_eq!((h.dims(), last.h.dims()), ([b, t, 4], [b, 4]), "{name}");
                let loss = h.sum();
                no_gradient(&name, &u, &loss);
            }
        }
    });
}

#[test]
fn an_input_without_features() {
    for (name, device) in devices() {
        let device = device.autodiff();
        let x = Tensor::<3>::zeros([2, 3, 0], &device);
        let u: Tensor<2> = random([12, 4], &device).require_grad();
        let bias: Tensor<1> = random([12], &device);
        let weights = CellWeights::new(Tensor::zeros([12, 0], &device), u.clone())
            .with_biases(Some(bias), None);
        let cell = Cell::Gru {
            reset: Default::default(),
        };
        let sequence = Sequence::new().with_lengths(&[3, 1]);
        let (h, _) = cell_layer(x, weights, cell, sequence, CellOptions::new()).unwrap();
        assert!(numbers(h.clone())[0] != 0.0, "{name}: the bias is left");
        assert!(u.grad(&h.sum().backward()).is_some(), "{name}");
    }
}

#[test]
fn products_norms_and_activations() {
    each(|name, [b, t], device| {
        let x: Tensor<3> = random([b, t, 4], device).require_grad();
        let w: Tensor<2> = random([4, 6], device).require_grad();
        let v: Tensor<2> = random([6, 4], device);
        let bias: Tensor<1> = random([6], device);
        let y = linear(
            x.clone(),
            w.clone(),
            Some(bias.clone()),
            LinearSpec::default().with_gelu(),
        )
        .unwrap();
        assert_eq!(y.dims(), [b, t, 6], "{name}");
        no_gradient(name, &w, &y.sum());
        let y = mlp(
            x.clone(),
            (w.clone(), Some(bias)),
            (v, None),
            LinearSpec::default(),
        )
        .unwrap();
        assert_eq!(y.dims(), [b, t, 4], "{name}");
        no_gradient(name, &w, &y.sum());
        let gamma: Tensor<1> = random([4], device).require_grad();
        let y = layer_norm(x.clone(), gamma.clone(), None, 1e-5).unwrap();
        no_gradient(name, &gamma, &y.sum());
        let (y, sum) = add_rms_norm(x.clone(), x.clone(), gamma.clone(), 1e-5).unwrap();
        no_gradient(name, &gamma, &(y.sum() + sum.sum()));
        no_gradient(name, &x, &gelu(x.clone()).unwrap().sum());
        no_gradient(name, &x, &swiglu(x.clone(), x.clone()).unwrap().sum());
    });
}

#[test]
fn a_loss_of_no_rows_is_one_number() {
    for (name, device) in devices() {
        let logits: Tensor<2> = random([0, 5], &device);
        let targets = Tensor::<1, Int>::zeros([0], &device);
        assert_eq!(
            cross_entropy(logits, targets).unwrap().dims(),
            [1],
            "{name}"
        );
    }
}
