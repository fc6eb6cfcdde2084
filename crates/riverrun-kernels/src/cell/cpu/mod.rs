//! The cells on the CPU: packed recurrent weights, vectors, threads.
//!
//! A step is a product `[rows, H] · [H, G·H]` with weights packed once per call, then one elementwise pass. With at least as
//! many sequences as threads each thread runs its own sequences without waiting; with fewer, threads share the hidden
//! units, with a barrier after each step. The gradients of the weights are products over many steps at a time, after the loop.
//!
//! [`forward`] and [`backward`] are the contract; a [`PackedLayer`] keeps its packed weights from call to call.
//! [`forward_layer`] and [`backward_layer`] include the input product: `xg`, the largest tensor of a layer, is then computed a
//! few steps at a time and stays in the cache.
//!
//! `f16` and `bf16` are widened once on the way in and rounded once on the way out; the state between steps stays `f32`.

mod backward;
mod backward_gates;
mod backward_part;
pub(crate) mod barrier;
mod blocks;
mod convert;
mod exchange;
mod forward;
mod forward_gates;
mod forward_part;
mod gradients;
mod layer;
mod routine;
mod spin;
mod split;
pub(super) mod stage;
mod sync;
mod weights;

use pulp::{Simd, WithSimd};

use blocks::Saved;
use convert::{Target, widen};
pub use layer::{PackedLayer, State};
pub use routine::Routine;
pub use split::Split;

use super::arguments::length;
use super::{InputGrads, Inputs, Layer, LayerGrads, OutputGrads, Outputs, Problem};
use crate::element::compiled_here;
pub use crate::simd::level::Level;
use crate::simd::real::Real;
use crate::{Element, Error};

/// Runs the cell over every sequence.
///
/// `E` is `f32`, `f16`, `bf16` or `f64`. Every output element is overwritten.
///
/// # Errors
/// [`Error::Length`] for a slice of the wrong length, [`Error::NoChannels`] for `H = 0`, [`Error::Routine`] for instructions
/// that the machine does not have. Nothing is written then.
pub fn forward<E: Kernels<E>>(
    problem: &Problem,
    inputs: &Inputs<E>,
    outputs: Outputs<E, E::Acc>,
    routine: Routine,
) -> Result<(), Error> {
    inputs.check(problem)?;
    run_forward(problem, inputs, None, outputs, routine)
}

/// [`forward`] with the input product included, `xg = x Wᵀ + b_ih`, a block of steps at a time, so that `xg` never goes through
/// memory. `inputs.xg` is empty. Backward is that of [`forward`], which does not read `xg`; it returns `∂L/∂xg`.
///
/// # Errors
/// As for [`forward`].
pub fn forward_layer<E: Kernels<E>>(
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

fn run_forward<E: Kernels<E>>(
    problem: &Problem,
    inputs: &Inputs<E>,
    layer: Option<&Layer<E>>,
    outputs: Outputs<E, E::Acc>,
    routine: Routine,
) -> Result<(), Error> {
    outputs.check(problem)?;
    let level = routine.level()?;
    E::run_cell(problem, inputs, layer, outputs, routine, level);
    Ok(())
}

/// The gradients of every input, from `h` and `saved` as [`forward`] wrote them for the same problem and inputs.
///
/// Does not read `inputs.xg`, which may be empty. Every element of the requested gradients is overwritten.
///
/// # Errors
/// As for [`forward`].
pub fn backward<E: Kernels<E>>(
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

/// [`backward`] through to the layer's input, weights and bias.
///
/// # Errors
/// As for [`forward`].
pub fn backward_layer<E: Kernels<E>>(
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

fn run_backward<E: Kernels<E>>(
    problem: &Problem,
    inputs: &Inputs<E>,
    layer: Option<(&Layer<E>, LayerGrads<E>)>,
    h: &[E],
    saved: &[E::Acc],
    grads: &OutputGrads<E>,
    into: InputGrads<E>,
    routine: Routine,
) -> Result<(), Error> {
    inputs.check_with_xg(
        problem,
        if inputs.xg.is_empty() {
            0
        } else {
            problem.pre_activations()
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
            problem.pre_activations()
        },
    )?;
    let level = routine.level()?;
    E::run_cell_back(
        problem, inputs, layer, h, saved, grads, into, routine, level,
    );
    Ok(())
}

compiled_here! {
    Kernels<E> {
        fn run_cell(
            problem: &Problem,
            inputs: &Inputs<E>,
            layer: Option<&Layer<E>>,
            outputs: Outputs<E, <E as Element>::Acc>,
            routine: Routine,
            level: Level,
        ) -> () = forward_in;
        fn run_cell_back(
            problem: &Problem,
            inputs: &Inputs<E>,
            layer: Option<(&Layer<E>, LayerGrads<E>)>,
            h: &[E],
            saved: &[<E as Element>::Acc],
            grads: &OutputGrads<E>,
            into: InputGrads<E>,
            routine: Routine,
            level: Level,
        ) -> () = backward_in;
    }
}

/// The inputs in the arithmetic type.
macro_rules! widened {
    ($inputs:expr => $wide:ident) => {
        let (xg, u) = (widen($inputs.xg), widen($inputs.u));
        let [bias, h0, c0] =
            [$inputs.bias, $inputs.h0, $inputs.c0].map(|slice| slice.map(widen::<E>));
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

fn forward_in<E: Element>(
    problem: &Problem,
    inputs: &Inputs<E>,
    layer: Option<&Layer<E>>,
    outputs: Outputs<E, E::Acc>,
    routine: Routine,
    level: Level,
) {
    widened!(inputs => wide);
    let slices = layer.map(|layer| (widen(layer.x), widen(layer.w), layer.bias.map(widen::<E>)));
    let layer = layer
        .zip(slices.as_ref())
        .map(|(layer, (x, w, bias))| Layer {
            x,
            width: layer.width,
            w,
            bias: bias.as_deref(),
        });
    let mut h = Target::<E>::new(outputs.h);
    let mut h_last = Target::<E>::new(outputs.h_last);
    let mut c_last = outputs.c_last.map(Target::<E>::new);
    let targets = Outputs {
        h: h.as_mut(),
        h_last: h_last.as_mut(),
        c_last: c_last.as_mut().map(Target::as_mut),
        saved: outputs.saved,
    };
    level.with_token(ForwardAt {
        problem,
        inputs: &wide,
        layer,
        outputs: targets,
        routine,
    });
    h.finish();
    h_last.finish();
    c_last.into_iter().for_each(Target::finish);
}

/// The forward pass, for the instructions of a level.
struct ForwardAt<'a, R> {
    problem: &'a Problem,
    inputs: &'a Inputs<'a, R>,
    layer: Option<Layer<'a, R>>,
    outputs: Outputs<'a, R, R>,
    routine: Routine,
}

impl<R: Real> WithSimd for ForwardAt<'_, R> {
    type Output = ();

    fn with_simd<S: Simd>(self, simd: S) {
        let plan = self.routine.plan::<S, R>(self.problem);
        forward::run(
            simd,
            self.problem,
            self.inputs,
            self.layer,
            self.outputs,
            plan,
            None,
        );
    }
}

fn backward_in<E: Element>(
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
    let h = widen(h);
    let [d_h, d_h_last, d_c_last] =
        [grads.d_h, grads.d_h_last, grads.d_c_last].map(|slice| slice.map(widen::<E>));
    let grads = OutputGrads {
        d_h: d_h.as_deref(),
        d_h_last: d_h_last.as_deref(),
        d_c_last: d_c_last.as_deref(),
    };
    let target = |slice: Option<_>| slice.map(Target::<E>::new);
    let mut d_xg = Target::<E>::new(into.d_xg);
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
    let slices = layer.map(|layer| (widen(layer.x), widen(layer.w)));
    let layer = layer.zip(slices.as_ref()).map(|(layer, (x, w))| Layer {
        x,
        width: layer.width,
        w,
        bias: None,
    });
    let mut layer_grads = into_layer.map(|into| [into.d_x, into.d_w, into.d_bias].map(target));
    let layer_targets = layer_grads.as_mut().map(|layer_grads| {
        let [d_x, d_w, d_bias] = layer_grads
            .each_mut()
            .map(|target| target.as_mut().map(Target::as_mut));
        LayerGrads { d_x, d_w, d_bias }
    });
    level.with_token(BackwardAt {
        problem,
        inputs: &wide,
        layer: layer.zip(layer_targets),
        saved: Saved { h: &h, saved },
        grads: &grads,
        into: targets,
        routine,
    });
    d_xg.finish();
    others
        .into_iter()
        .chain(layer_grads.into_iter().flatten())
        .flatten()
        .for_each(Target::finish);
}

/// The backward pass, for the instructions of a level.
struct BackwardAt<'a, R> {
    problem: &'a Problem,
    inputs: &'a Inputs<'a, R>,
    layer: Option<(Layer<'a, R>, LayerGrads<'a, R>)>,
    saved: Saved<'a, R>,
    grads: &'a OutputGrads<'a, R>,
    into: InputGrads<'a, R>,
    routine: Routine,
}

impl<R: Real> WithSimd for BackwardAt<'_, R> {
    type Output = ();

    fn with_simd<S: Simd>(mut self, simd: S) {
        let Self {
            problem,
            inputs,
            saved,
            ..
        } = self;
        let mut by_sequence =
            vec![R::ZERO; problem.batch * (problem.gate_width() + problem.hidden)];
        let plan = self.routine.plan::<S, R>(problem);
        let d_bias = self.into.d_bias.take();
        let d_input_bias = self
            .layer
            .as_mut()
            .and_then(|(_, grads)| grads.d_bias.take());
        let sums = gradients::Gradients::new::<S>(
            problem,
            inputs,
            saved,
            self.into.d_u.take(),
            self.layer,
            self.routine.threads(),
        );
        backward::run(
            simd,
            problem,
            inputs,
            saved,
            self.grads,
            self.into,
            &mut by_sequence,
            plan,
            sums,
        );
        gradients::d_bias(problem, &by_sequence, d_bias, d_input_bias);
    }
}
