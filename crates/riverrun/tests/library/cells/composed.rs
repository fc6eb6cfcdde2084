//! The composed loop against the CPU kernels.

use burn::backend::Dispatch;
use burn::tensor::{Tensor, TensorData};
use riverrun::check::backend::{
    CellInputs, CellOps, CellOutputGrads, CellSpec, Maybe, MaybeInt, StepInputs,
};
use riverrun::ops::Cell;

use super::net::TOLERANCE;
use crate::common::{assert_close, devices, numbers};
use crate::normal;

#[test]
fn composed_steps_agree_with_the_kernels() {
    let (b, t, i, h) = (3, 7, 4, 6);
    for (name, device) in devices() {
        for cell in Cell::all() {
            for reverse in [false, true] {
                let gates = cell.gates() * h;
                let lstm = cell == Cell::Lstm;
                let x = normal([b, t, i], &device);
                let (w, u) = (normal([gates, i], &device), normal([gates, h], &device));
                let (bias_ih, bias_hh) = (normal([gates], &device), normal([gates], &device));
                let (h0, c0) = (normal([b, h], &device), normal([b, h], &device));
                let marks: Vec<f32> = (0..b * t)
                    .map(|n| f32::from(u8::from(n % 5 == 3)))
                    .collect();
                let reset = Tensor::<2>::from_data(TensorData::new(marks, [b, t]), &device);
                let give2 = |tensor: &Tensor<2>| tensor.clone().into_dispatch();
                let give1 = |tensor: &Tensor<1>| tensor.clone().into_dispatch();
                let maybe_c = |tensor: &Tensor<2>| match lstm {
                    true => Maybe::Some(give2(tensor)),
                    false => Maybe::None,
                };
                let mut spec = CellSpec::new(cell);
                spec.reverse = reverse;
                let layer = || CellInputs::<Dispatch> {
                    x: x.clone().into_dispatch(),
                    w: give2(&w),
                    u: give2(&u),
                    bias_ih: Maybe::Some(give1(&bias_ih)),
                    bias_hh: Maybe::Some(give1(&bias_hh)),
                    h0: Maybe::Some(give2(&h0)),
                    c0: maybe_c(&c0),
                    reset: Maybe::Some(give2(&reset)),
                    lengths: MaybeInt::None,
                };
                let xg = x
                    .clone()
                    .reshape([b * t, i])
                    .matmul(w.clone().transpose())
                    .reshape([b, t, gates])
                    + bias_ih.clone().reshape([1, 1, gates]);
                let steps = || StepInputs::<Dispatch> {
                    xg: xg.clone().into_dispatch(),
                    u: give2(&u),
                    bias: Maybe::Some(give1(&bias_hh)),
                    h0: Maybe::Some(give2(&h0)),
                    c0: maybe_c(&c0),
                    reset: Maybe::Some(give2(&reset)),
                    lengths: MaybeInt::None,
                };
                let check = |what: &str, found: Vec<f64>, expected: Vec<f64>| {
                    let what = format!("{name} {} reverse {reverse} {what}", cell.name());
                    assert_close(&what, &found, &expected, TOLERANCE);
                };
                let of = |tensor| numbers::<3>(Tensor::from_dispatch(tensor));
                let of2 = |tensor| numbers::<2>(Tensor::from_dispatch(tensor));
                let kernel = Dispatch::cell_layer_forward(layer(), spec, true);
                let composed = Dispatch::cell_steps_forward(steps(), spec, true);
                let kept = match (&kernel.saved, &composed.saved) {
                    (Maybe::Some(kernel), Maybe::Some(composed)) => {
                        check("saved", of(composed.clone()), of(kernel.clone()));
                        true
                    }
                    (Maybe::None, Maybe::None) => false,
                    _ => panic!("{}: one saves and the other does not", cell.name()),
                };
                assert_eq!(kept, !matches!(cell, Cell::Elman { .. }));
                check("h", of(composed.h.clone()), of(kernel.h.clone()));
                check("h_last", of2(composed.h_last), of2(kernel.h_last));
                if let (Maybe::Some(kernel), Maybe::Some(composed)) =
                    (kernel.c_last, composed.c_last)
                {
                    check("c_last", of2(composed), of2(kernel));
                }
                let d_h: Tensor<3> = normal([b, t, h], &device);
                let (d_last, d_c): (Tensor<2>, Tensor<2>) =
                    (normal([b, h], &device), normal([b, h], &device));
                let grads = || CellOutputGrads::<Dispatch> {
                    h: kernel.h.clone(),
                    saved: kernel.saved.clone(),
                    d_h: d_h.clone().into_dispatch(),
                    d_h_last: Maybe::Some(give2(&d_last)),
                    d_c_last: maybe_c(&d_c),
                };
                let kernel = Dispatch::cell_layer_backward(layer(), grads(), spec, true);
                let composed = Dispatch::cell_steps_backward(steps(), grads(), spec);
                let d_xg: Tensor<3> = Tensor::from_dispatch(composed.xg);
                let d_x = d_xg.reshape([b * t, gates]);
                let d_w = d_x
                    .clone()
                    .transpose()
                    .matmul(x.clone().reshape([b * t, i]));
                let d_bias = d_x.clone().sum_dim(0);
                let d_x = d_x.matmul(w.clone());
                let there = |tensor: Maybe<Dispatch>| match tensor {
                    Maybe::Some(tensor) => tensor,
                    Maybe::None => panic!("a gradient is missing"),
                };
                let of1 = |tensor| numbers::<1>(Tensor::from_dispatch(tensor));
                check("d_x", numbers(d_x), of(there(kernel.x)));
                check("d_w", numbers(d_w), of2(kernel.w));
                check("d_u", of2(composed.u), of2(kernel.u));
                check("d_bias_ih", numbers(d_bias), of1(there(kernel.bias_ih)));
                check("d_bias_hh", of1(composed.bias), of1(there(kernel.bias_hh)));
                check("d_h0", of2(composed.h0), of2(there(kernel.h0)));
                if lstm {
                    check("d_c0", of2(there(composed.c0)), of2(there(kernel.c0)));
                }
            }
        }
    }
}
