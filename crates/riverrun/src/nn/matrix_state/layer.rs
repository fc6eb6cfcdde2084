//! What the layers have in common: checks, padding, and [`Recurrent`](crate::nn::Recurrent) by a [`MatrixLayer`].

use burn::nn::Linear;
use burn::tensor::Tensor;

use super::MatrixLayerState;
use crate::ops::matrix_state::state_dtype;
use crate::ops::support::checks;
use crate::ops::support::lengths::{fill, padding};
use crate::{Error, Sequence};

/// The state of a layer, for any batch.
#[derive(Debug, Clone, Copy)]
pub(super) struct StateSizes {
    /// Earlier inputs that the layer still sees, and their channels.
    pub inputs: [usize; 2],
    /// Heads, rows, columns.
    pub matrix: [usize; 3],
    /// Scales of the matrices, a divisor of the heads; 0 without.
    pub scales: usize,
    /// Whether positions are counted.
    pub positioned: bool,
}

impl StateSizes {
    /// Matrices alone.
    pub fn matrix(matrix: [usize; 3]) -> Self {
        Self {
            inputs: [0, 0],
            matrix,
            scales: 0,
            positioned: false,
        }
    }

    /// Beside earlier inputs.
    pub fn with_inputs(mut self, inputs: [usize; 2]) -> Self {
        self.inputs = inputs;
        self
    }

    /// The state before the first step of sequences like `x`.
    pub fn zeros(self, x: &Tensor<3>) -> MatrixLayerState {
        let ([batch, ..], device, dtype) = (x.dims(), x.device(), x.dtype());
        let ([kept, channels], [heads, rows, columns]) = (self.inputs, self.matrix);
        let wide = (&device, state_dtype(dtype));
        let mut state = MatrixLayerState::new(
            Tensor::zeros([batch, kept, channels], (&device, dtype)),
            Tensor::zeros([batch, heads, rows, columns], wide),
        );
        state.scale = (self.scales > 0).then(|| Tensor::zeros([batch, self.scales], wide));
        state.positions = vec![0; if self.positioned { batch } else { 0 }];
        state
    }

    /// Refuses a state that does not fit.
    fn check(self, x: &Tensor<3>, state: &MatrixLayerState) -> Result<(), Error> {
        let [batch, ..] = x.dims();
        let ([kept, channels], [heads, rows, columns]) = (self.inputs, self.matrix);
        if kept > 0 {
            let what = "the inputs of the state";
            checks::fits(what, x, &state.inputs, &[batch, kept, channels])?;
        }
        let wide = |what, tensor: (&[usize], _, _), expected: &[usize]| {
            let (shape, dtype, device) = tensor;
            checks::shape(what, expected, shape)?;
            checks::dtype(what, state_dtype(x.dtype()), dtype)?;
            checks::device(what, &x.device(), &device)
        };
        let matrix = &state.matrix;
        wide(
            "the matrix of the state",
            (&matrix.dims(), matrix.dtype(), matrix.device()),
            &[batch, heads, rows, columns],
        )?;
        match (&state.scale, self.scales) {
            (Some(scale), scales @ 1..) => wide(
                "the scale of the state",
                (&scale.dims(), scale.dtype(), scale.device()),
                &[batch, scales],
            )?,
            (None, 0) => {}
            (scale, scales) => {
                let expected: &[usize] = if scales > 0 { &[batch, scales] } else { &[] };
                let found = scale.as_ref().map_or(vec![], |scale| scale.dims().to_vec());
                checks::shape("the scale of the state", expected, &found)?;
            }
        }
        let positions = if self.positioned { batch } else { 0 };
        let what = "the positions of the state";
        checks::shape(what, &[positions], &[state.positions.len()])
    }
}

/// A layer on matrix states.
pub(super) trait MatrixLayer {
    /// A layer that reads the input, of shape `[d_model, ..]`.
    fn first(&self) -> &Linear;

    /// The sizes of its state.
    fn state(&self) -> StateSizes;

    /// The layer on an `x` that is not empty, with zeros at padded steps; at these, the result is not read.
    fn mix(
        &self,
        x: Tensor<3>,
        sequence: Sequence<MatrixLayerState>,
    ) -> Result<(Tensor<3>, MatrixLayerState), Error>;
}

/// [`Recurrent::checked_run`](crate::nn::Recurrent::checked_run).
pub(super) fn run<L: MatrixLayer>(
    layer: &L,
    x: Tensor<3>,
    sequence: Sequence<MatrixLayerState>,
) -> Result<(Tensor<3>, MatrixLayerState), Error> {
    let ([batch, steps, _], weight) = (x.dims(), &layer.first().weight);
    checks::supported("x", &x.device(), x.dtype())?;
    checks::fits("x", weight, &x, &[batch, steps, weight.dims()[0]])?;
    checks::reset(&x, sequence.reset.as_ref(), [batch, steps])?;
    checks::lengths(sequence.lengths.as_deref(), [batch, steps])?;
    sequence.check_piece(steps)?;
    let sizes = layer.state();
    if let Some(state) = &sequence.state {
        sizes.check(&x, state)?;
    }
    if batch * steps == 0 {
        let state = sequence.state.unwrap_or_else(|| sizes.zeros(&x));
        return Ok((x, state));
    }
    let Some(padding) = padding(sequence.lengths.as_deref(), steps, &x.device()) else {
        return layer.mix(x, sequence);
    };
    // The gradient of a weight is a sum over all steps, in which a padded NaN would count.
    let (y, state) = layer.mix(fill(x, &padding, 0.0), sequence)?;
    Ok((fill(y, &padding, 0.0), state))
}

/// The same run of the two parts of a state: of the inputs, and of the matrices.
pub(super) fn starts(
    sequence: &Sequence<MatrixLayerState>,
) -> (Sequence<Tensor<3>>, Sequence<Tensor<4>>) {
    let state = sequence.state.clone();
    let (inputs, matrix) = state.map(|state| (state.inputs, state.matrix)).unzip();
    (
        sequence.starting_from(inputs),
        sequence.starting_from(matrix),
    )
}

/// [`Recurrent`](crate::nn::Recurrent) of a [`MatrixLayer`].
macro_rules! matrix_layer {
    ($layer:ident) => {
        impl $crate::nn::Recurrent for $layer {
            type State = $crate::nn::MatrixLayerState;

            $crate::run_checked!();

            fn checked_run(
                &self,
                x: burn::tensor::Tensor<3>,
                sequence: $crate::Sequence<Self::State>,
            ) -> Result<(burn::tensor::Tensor<3>, Self::State), $crate::Error> {
                $crate::nn::matrix_state::layer::run(self, x, sequence)
            }
        }
    };
}
pub(super) use matrix_layer;
