//! The tensors of a state, for checks of any layer.

use burn::tensor::Tensor;
use riverrun::nn::{MatrixLayerState, SLstmState};

/// A tensor of a state.
pub struct Part {
    pub name: &'static str,
    pub tensor: Tensor<4>,
    /// Whether it is in f32 beside inputs of 16 bits.
    pub wide: bool,
    /// Whether gradients pass through it.
    pub differentiable: bool,
}

/// A state as its tensors.
pub trait Parts: Clone {
    /// What a tensor that does not fit is refused by, if not by its name.
    const REFUSAL: Option<&'static str> = None;

    fn parts(&self) -> Vec<Part>;

    /// The state with other tensors.
    fn with(&self, tensors: Vec<Tensor<4>>) -> Self;

    /// A state that steps can start from, of waves.
    fn started(self) -> Self {
        self
    }

    /// The state without the scale of its own that no gradient passes through: what the rest of a sequence depends on.
    fn unscaled(&self) -> Self {
        self.clone()
    }

    fn positions(&self) -> &[usize] {
        &[]
    }

    /// The state as that of another position, where it has one.
    fn at_position(self, _position: usize) -> Self {
        self
    }

    /// Zeros.
    fn zeroed(&self) -> Self {
        let parts = self.parts().into_iter();
        self.with(parts.map(|part| part.tensor.zeros_like()).collect())
    }

    /// The state of one sequence.
    fn row(&self, b: usize) -> Self {
        let parts = self.parts().into_iter();
        self.with(parts.map(|part| part.tensor.narrow(0, b, 1)).collect())
    }
}

impl Parts for MatrixLayerState {
    fn parts(&self) -> Vec<Part> {
        let part = |name, tensor, wide, differentiable| Part {
            name,
            tensor,
            wide,
            differentiable,
        };
        let mut parts = vec![part("matrix", self.matrix.clone(), true, true)];
        // Not those of a layer that has none: a reduction of nothing fails on some devices.
        if self.inputs.dims()[1] > 0 {
            let inputs = self.inputs.clone().unsqueeze_dim(3);
            parts.push(part("inputs", inputs, false, true));
        }
        if let Some(scale) = &self.scale {
            let [batch, heads] = scale.dims();
            let scale = scale.clone().reshape([batch, heads, 1, 1]);
            parts.push(part("scale", scale, true, false));
        }
        parts
    }

    fn with(&self, tensors: Vec<Tensor<4>>) -> Self {
        let mut tensors = tensors.into_iter();
        let matrix = tensors.next().expect("matrices");
        let inputs = match self.inputs.dims()[1] {
            0 => self.inputs.clone(),
            _ => tensors.next().expect("inputs").squeeze_dim(3),
        };
        let state = Self::new(inputs, matrix).with_positions(self.positions.clone());
        match tensors.next() {
            Some(scale) => {
                let [batch, heads, ..] = scale.dims();
                state.with_scale(scale.reshape([batch, heads]))
            }
            None => state,
        }
    }

    fn started(self) -> Self {
        let positions = (0..self.positions.len()).map(|b| 3 + 4 * b);
        let positions = positions.collect();
        self.with_positions(positions)
    }

    fn unscaled(&self) -> Self {
        let mut state = self.clone();
        if let Some(scale) = &self.scale {
            // Several matrices of a head are in a row.
            let ([batch, matrices, rows, columns], [_, heads]) =
                (state.matrix.dims(), scale.dims());
            let by_head = [batch, heads, matrices / heads * rows, columns];
            let matrix =
                state.matrix.reshape(by_head) * scale.clone().exp().unsqueeze_dims(&[2, 3]);
            state.matrix = matrix.reshape([batch, matrices, rows, columns]);
        }
        state
    }

    fn positions(&self) -> &[usize] {
        &self.positions
    }

    fn at_position(mut self, position: usize) -> Self {
        self.positions.fill(position);
        self
    }

    fn row(&self, b: usize) -> Self {
        let parts = self.parts().into_iter();
        let row = self.with(parts.map(|part| part.tensor.narrow(0, b, 1)).collect());
        let position = self.positions.get(b).copied();
        row.with_positions(position.into_iter().collect())
    }
}

impl Parts for SLstmState {
    const REFUSAL: Option<&'static str> = Some("the state");

    fn parts(&self) -> Vec<Part> {
        let [h, c, n, m] = self.clone().into_tensors();
        let parts = [
            ("h", h, true),
            ("c", c, true),
            ("n", n, true),
            ("m", m, false),
        ];
        let parts = parts.into_iter().map(|(name, tensor, differentiable)| {
            let [batch, units] = tensor.dims();
            Part {
                name,
                tensor: tensor.reshape([batch, units, 1, 1]),
                wide: true,
                differentiable,
            }
        });
        parts.collect()
    }

    fn with(&self, tensors: Vec<Tensor<4>>) -> Self {
        let flat = |tensor: Tensor<4>| {
            let [batch, units, ..] = tensor.dims();
            tensor.reshape([batch, units])
        };
        let tensors: Vec<Tensor<2>> = tensors.into_iter().map(flat).collect();
        Self::new(tensors.try_into().expect("four tensors"))
    }

    fn unscaled(&self) -> Self {
        let mut state = self.clone();
        state.c = state.c * self.m.clone().exp();
        state.n = state.n * self.m.clone().exp();
        state
    }

    fn started(mut self) -> Self {
        // A sum of positive numbers.
        self.n = self.n + 2.0;
        self
    }
}
