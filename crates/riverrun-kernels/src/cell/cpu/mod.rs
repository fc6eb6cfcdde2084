//! The cells on the CPU: packed recurrent weights, vectors, threads.
//!
//! A step is a product `[rows, H] · [H, G·H]` from weights packed once per call, then one elementwise pass. With at least as
//! many sequences as threads each thread runs sequences of its own and waits for nobody; with fewer, threads share the units
//! and meet once a step. The gradients of the weights are products over many steps at a time, after the loop.
//!
//! [`forward`] and [`backward`] are the contract; a [`PackedLayer`] keeps its packed weights from call to call. [`forward_layer`] and [`backward_layer`] include the input product: `xg`, the largest
//! tensor of a layer, is then made a few steps at a time and stays in the cache.
//!
//! `f16` and `bf16` are widened once on the way in and rounded once on the way out; the state between steps stays `f32`.

/// Calls the function for the vectors of a level.
macro_rules! at_level {
    ($level:expr, $real:ty, $function:ident($($argument:expr),* $(,)?)) => {
        match $level {
            #[cfg(target_arch = "x86_64")]
            $crate::cell::cpu::Level::Avx512 => $function::<<$real as $crate::cell::cpu::lanes::Number>::Avx512>($($argument),*),
            #[cfg(target_arch = "x86_64")]
            $crate::cell::cpu::Level::Avx2 => $function::<<$real as $crate::cell::cpu::lanes::Number>::Avx2>($($argument),*),
            _ => $function::<<$real as $crate::cell::cpu::lanes::Number>::Portable>($($argument),*),
        }
    };
}

mod backward;
mod backward_part;
mod backward_weights;
mod blocks;
mod buffer;
mod columns;
mod convert;
mod exchange;
mod forward;
mod forward_weights;
mod gates;
mod gates_backward;
mod lanes;
#[cfg(target_arch = "x86_64")]
mod lanes_x86;
mod packed;
mod packing;
mod product;
mod routine;
mod team;
mod weights;

use std::any::TypeId;

use convert::{Target, rename, rename_mut, widen};
use lanes::{Lanes, Number};
pub use packed::{PackedLayer, State};
pub use routine::{Level, Routine};
pub use team::Split;

use super::arguments::length;
use super::{InputGrads, Inputs, Layer, LayerGrads, OutputGrads, Outputs, Problem};
use crate::{Element, Error};

/// Runs the cell over every sequence.
///
/// `E` is `f32`, `f16`, `bf16` or `f64`. Every output element is overwritten.
///
/// # Errors
/// [`Error::Length`] for a slice of the wrong length, [`Error::NoChannels`] for `H = 0`, [`Error::Routine`] for instructions
/// that the machine does not have. Nothing is written then.
pub fn forward<E: Element>(
    problem: &Problem,
    inputs: &Inputs<E>,
    outputs: Outputs<E, E::Acc>,
    routine: Routine,
) -> Result<(), Error> {
    inputs.check(problem)?;
    run_forward(problem, inputs, None, outputs, routine)
}

/// [`forward`] that makes the input product too, `xg = x Wᵀ + b_ih`, a block of steps at a time, so that `xg` never goes through
/// memory. `inputs.xg` is empty. Backward is that of [`forward`], which does not read `xg`; it returns `∂L/∂xg`.
///
/// # Errors
/// As for [`forward`].
pub fn forward_layer<E: Element>(
    problem: &Problem,
    layer: &Layer<E>,
    inputs: &Inputs<E>,
    outputs: Outputs<E, E::Acc>,
    routine: Routine,
) -> Result<(), Error> {
    inputs.check_with_xg(problem, 0)?;
    layer.check(problem)?;
    run_forward(problem, inputs, Some(layer), outputs, routine)
}

fn run_forward<E: Element>(
    problem: &Problem,
    inputs: &Inputs<E>,
    layer: Option<&Layer<E>>,
    outputs: Outputs<E, E::Acc>,
    routine: Routine,
) -> Result<(), Error> {
    refuse_lengths(inputs)?;
    outputs.check(problem)?;
    let level = routine.level()?;
    if TypeId::of::<E::Acc>() == TypeId::of::<f64>() {
        forward_in::<E, f64>(problem, inputs, layer, outputs, routine, level);
    } else {
        forward_in::<E, f32>(problem, inputs, layer, outputs, routine, level);
    }
    Ok(())
}

/// The gradients of every input, from `h` and `saved` as [`forward`] wrote them for the same problem and inputs.
///
/// Does not read `inputs.xg`, which may be empty. Every element of the gradients that are asked for is overwritten.
///
/// # Errors
/// As for [`forward`].
pub fn backward<E: Element>(
    problem: &Problem,
    inputs: &Inputs<E>,
    h: &[E],
    saved: &[E::Acc],
    grads: &OutputGrads<E>,
    into: InputGrads<E>,
    routine: Routine,
) -> Result<(), Error> {
    run_backward(problem, inputs, None, h, saved, grads, into, routine)
}

/// [`backward`] that goes on to the layer's input, weights and bias.
///
/// # Errors
/// As for [`forward`].
pub fn backward_layer<E: Element>(
    problem: &Problem,
    layer: &Layer<E>,
    inputs: &Inputs<E>,
    h: &[E],
    saved: &[E::Acc],
    grads: &OutputGrads<E>,
    into: InputGrads<E>,
    into_layer: LayerGrads<E>,
    routine: Routine,
) -> Result<(), Error> {
    layer.check(problem)?;
    into_layer.check(problem, layer)?;
    run_backward(
        problem,
        inputs,
        Some((layer, into_layer)),
        h,
        saved,
        grads,
        into,
        routine,
    )
}

fn run_backward<E: Element>(
    problem: &Problem,
    inputs: &Inputs<E>,
    layer: Option<(&Layer<E>, LayerGrads<E>)>,
    h: &[E],
    saved: &[E::Acc],
    grads: &OutputGrads<E>,
    into: InputGrads<E>,
    routine: Routine,
) -> Result<(), Error> {
    let rows = problem.batch * problem.steps;
    inputs.check_with_xg(
        problem,
        if inputs.xg.is_empty() {
            0
        } else {
            rows * problem.gate_width()
        },
    )?;
    length("h", problem.outputs(), h.len())?;
    length("saved", problem.saved(), saved.len())?;
    grads.check(problem)?;
    into.check_with_d_xg(
        problem,
        if layer.is_some() && into.d_xg.is_empty() {
            0
        } else {
            rows * problem.gate_width()
        },
    )?;
    refuse_lengths(inputs)?;
    let level = routine.level()?;
    if TypeId::of::<E::Acc>() == TypeId::of::<f64>() {
        backward_in::<E, f64>(
            problem, inputs, layer, h, saved, grads, into, routine, level,
        );
    } else {
        backward_in::<E, f32>(
            problem, inputs, layer, h, saved, grads, into, routine, level,
        );
    }
    Ok(())
}

/// Lengths are for the portable and the GPU forms so far.
fn refuse_lengths<E>(inputs: &Inputs<E>) -> Result<(), Error> {
    match inputs.lengths {
        None => Ok(()),
        Some(_) => Err(Error::Routine {
            routine: "cpu",
            reason: "it takes no lengths".into(),
        }),
    }
}

/// The inputs in the arithmetic type.
macro_rules! widened {
    ($inputs:expr => $wide:ident) => {
        let (xg, u) = (widen($inputs.xg), widen($inputs.u));
        let [bias, h0, c0] =
            [$inputs.bias, $inputs.h0, $inputs.c0].map(|slice| slice.map(widen::<E, R>));
        let $wide = Inputs {
            xg: &xg,
            u: &u,
            bias: bias.as_deref(),
            h0: h0.as_deref(),
            c0: c0.as_deref(),
            reset: $inputs.reset,
            lengths: $inputs.lengths,
        };
    };
}

fn forward_in<E: Element, R: Number>(
    problem: &Problem,
    inputs: &Inputs<E>,
    layer: Option<&Layer<E>>,
    outputs: Outputs<E, E::Acc>,
    routine: Routine,
    level: Level,
) {
    widened!(inputs => wide);
    let slices = layer.map(|layer| {
        (
            widen::<E, R>(layer.x),
            widen::<E, R>(layer.w),
            layer.bias.map(widen::<E, R>),
        )
    });
    let layer = layer
        .zip(slices.as_ref())
        .map(|(layer, (x, w, bias))| Layer {
            x,
            width: layer.width,
            w,
            bias: bias.as_deref(),
        });
    let mut h = Target::<E, R>::new(outputs.h);
    let mut h_last = Target::<E, R>::new(outputs.h_last);
    let mut c_last = outputs.c_last.map(Target::<E, R>::new);
    let targets = Outputs {
        h: h.as_mut(),
        h_last: h_last.as_mut(),
        c_last: c_last.as_mut().map(Target::as_mut),
        saved: outputs.saved.map(rename_mut),
    };
    at_level!(
        level,
        R,
        forward_at(problem, &wide, layer, targets, routine)
    );
    h.finish();
    h_last.finish();
    c_last.into_iter().for_each(Target::finish);
}

fn forward_at<L: Lanes<Real: Number>>(
    problem: &Problem,
    inputs: &Inputs<L::Real>,
    layer: Option<Layer<L::Real>>,
    outputs: Outputs<L::Real, L::Real>,
    routine: Routine,
) {
    let plan = routine.plan::<L>(problem);
    forward::run::<L>(problem, inputs, layer, outputs, plan, None);
}

fn backward_in<E: Element, R: Number>(
    problem: &Problem,
    inputs: &Inputs<E>,
    layer: Option<(&Layer<E>, LayerGrads<E>)>,
    h: &[E],
    saved: &[E::Acc],
    grads: &OutputGrads<E>,
    into: InputGrads<E>,
    routine: Routine,
    level: Level,
) {
    widened!(Inputs { xg: &[], ..*inputs } => wide);
    let h = widen::<E, R>(h);
    let kept = blocks::Kept {
        h: &h,
        saved: rename(saved),
    };
    let [d_h, d_h_last, d_c_last] =
        [grads.d_h, grads.d_h_last, grads.d_c_last].map(|slice| slice.map(widen::<E, R>));
    let grads = OutputGrads {
        d_h: d_h.as_deref(),
        d_h_last: d_h_last.as_deref(),
        d_c_last: d_c_last.as_deref(),
    };
    let target = |slice: Option<_>| slice.map(Target::<E, R>::new);
    let mut d_xg = Target::<E, R>::new(into.d_xg);
    let mut others = [into.d_u, into.d_bias, into.d_h0, into.d_c0].map(target);
    let [d_u, d_bias, d_h0, d_c0] = others
        .each_mut()
        .map(|target| target.as_mut().map(Target::as_mut));
    let targets = InputGrads {
        d_xg: d_xg.as_mut(),
        d_u,
        d_bias,
        d_h0,
        d_c0,
    };
    let (layer, into_layer) = layer.unzip();
    let slices = layer.map(|layer| (widen::<E, R>(layer.x), widen::<E, R>(layer.w)));
    let layer = layer.zip(slices.as_ref()).map(|(layer, (x, w))| Layer {
        x,
        width: layer.width,
        w,
        bias: None,
    });
    let mut of_layer = into_layer.map(|into| [into.d_x, into.d_w, into.d_bias].map(target));
    let layer_targets = of_layer.as_mut().map(|of_layer| {
        let [d_x, d_w, d_bias] = of_layer
            .each_mut()
            .map(|target| target.as_mut().map(Target::as_mut));
        LayerGrads { d_x, d_w, d_bias }
    });
    at_level!(
        level,
        R,
        backward_at(
            problem,
            &wide,
            layer.zip(layer_targets),
            kept,
            &grads,
            targets,
            routine
        )
    );
    d_xg.finish();
    others
        .into_iter()
        .chain(of_layer.into_iter().flatten())
        .flatten()
        .for_each(Target::finish);
}

/// A layer and where its gradients go.
type WithGrads<'a, R> = (Layer<'a, R>, LayerGrads<'a, R>);

fn backward_at<'a, L: Lanes<Real: Number>>(
    problem: &Problem,
    inputs: &Inputs<'a, L::Real>,
    mut layer: Option<WithGrads<'a, L::Real>>,
    kept: blocks::Kept<'a, L::Real>,
    grads: &OutputGrads<L::Real>,
    mut into: InputGrads<'a, L::Real>,
    routine: Routine,
) {
    let mut by_sequence =
        vec![L::Real::default(); problem.batch * (problem.gate_width() + problem.hidden)];
    let plan = routine.plan::<L>(problem);
    let d_input_bias = layer.as_mut().and_then(|(_, grads)| grads.d_bias.take());
    let sums = weights::Sums::new::<L>(
        problem,
        inputs,
        kept,
        into.d_u.take(),
        layer,
        routine.threads(),
    );
    backward::run::<L>(
        problem,
        inputs,
        kept,
        grads,
        &mut into,
        &mut by_sequence,
        plan,
        sums,
    );
    weights::d_bias(problem, &by_sequence, into.d_bias, d_input_bias);
}
