//! One layer of a GRU, LSTM or Elman cell, in one direction.

use burn::module::{Initializer, Module, Param};
use burn::tensor::{Device, Tensor, TensorData};

use crate::Error;
use crate::ops::{Cell, CellOptions, CellState, CellWeights, cell_layer};
use crate::sequence::Sequence;

/// The parameters of one layer in one direction, in PyTorch's names, shapes and gate orders (r, z, n for the GRU; i, f, g, o for
/// the LSTM).
#[derive(Module, Debug)]
pub struct CellLayer {
    /// `[G·H, I]`: from the input.
    pub weight_ih: Param<Tensor<2>>,
    /// `[G·H, H]`: from the state; `[G·H, H/N]` with `N` heads.
    pub weight_hh: Param<Tensor<2>>,
    /// `[G·H]`: added to the input product.
    pub bias_ih: Option<Param<Tensor<1>>>,
    /// `[G·H]`: added to the recurrent product.
    pub bias_hh: Option<Param<Tensor<1>>>,
    /// The formula.
    #[module(skip)]
    pub cell: Cell,
    /// `N`: the blocks of the recurrent matrix.
    #[module(skip)]
    heads: usize,
}

impl CellLayer {
    /// Fresh weights: uniform in `±1/√(H/N)`, as PyTorch draws those of each head; then
    /// [`spread_memory`](Self::spread_memory).
    pub(super) fn init(
        cell: Cell,
        d_input: usize,
        d_hidden: usize,
        heads: usize,
        bias: bool,
        time_scale: usize,
        device: &Device,
    ) -> Self {
        assert!(d_hidden > 0, "d_hidden has to be at least 1");
        assert!(
            heads > 0 && d_hidden.is_multiple_of(heads),
            "d_hidden ({d_hidden}) has to be a multiple of the heads ({heads}), of which there is at least 1"
        );
        let own = d_hidden / heads;
        let bound = (own as f64).powf(-0.5);
        let uniform = Initializer::Uniform {
            min: -bound,
            max: bound,
        };
        let rows = cell.gates() * d_hidden;
        let mut layer = Self {
            weight_ih: uniform.init([rows, d_input], device),
            weight_hh: uniform.init([rows, own], device),
            bias_ih: bias.then(|| uniform.init([rows], device)),
            bias_hh: bias.then(|| uniform.init([rows], device)),
            cell,
            heads,
        };
        layer.spread_memory(d_hidden, time_scale);
        layer
    }

    /// Sets the biases of the gates that keep the state so that, for a zero input, the units remember from 1 to `time_scale`
    /// steps, spread evenly on a logarithmic scale: the GRU's `z`, the LSTM's `f`, with `i` opposite to it. No effect on an
    /// Elman cell, which has no such gate, or on a layer without biases.
    ///
    /// Source: Tallec & Ollivier, *Can Recurrent Neural Networks Warp Time?* (2018), section 3.
    fn spread_memory(&mut self, d_hidden: usize, time_scale: usize) {
        let gates: &[(usize, f64)] = match self.cell {
            Cell::Gru { .. } => &[(1, 1.0)],
            Cell::Lstm => &[(0, -1.0), (1, 1.0)],
            Cell::Elman { .. } => &[],
        };
        if time_scale <= 1 || gates.is_empty() {
            return;
        }
        let set = |bias: Param<Tensor<1>>, scale: f64| {
            bias.map(|old| {
                let mut values: Vec<f32> = old.to_data().iter::<f32>().collect();
                for &(gate, sign) in gates {
                    for (i, value) in values[gate * d_hidden..][..d_hidden].iter_mut().enumerate() {
                        let part = (i as f64 + 0.5) / d_hidden as f64;
                        *value = (sign * scale * part * (time_scale as f64).ln()) as f32;
                    }
                }
                like(&old, TensorData::new(values, old.dims()))
            })
        };
        self.bias_ih = self.bias_ih.take().map(|bias| set(bias, 1.0));
        self.bias_hh = self.bias_hh.take().map(|bias| set(bias, 0.0));
    }

    /// `H`.
    pub(crate) fn d_hidden(&self) -> usize {
        self.weight_hh.dims()[0] / self.cell.gates()
    }

    /// `N`.
    pub(crate) fn heads(&self) -> usize {
        self.heads
    }

    /// Runs over `[B, T, I]`; returns the states.
    pub(super) fn run(
        &self,
        x: Tensor<3>,
        sequence: Sequence<CellState>,
        reverse: bool,
    ) -> Result<(Tensor<3>, CellState), Error> {
        let options = CellOptions::new().with_reverse(reverse);
        cell_layer(x, self.weights(), self.cell, sequence, options)
    }

    /// The parameters as tensors.
    pub fn weights(&self) -> CellWeights {
        let bias = |bias: &Option<Param<Tensor<1>>>| bias.as_ref().map(Param::val);
        CellWeights::new(self.weight_ih.val(), self.weight_hh.val())
            .with_biases(bias(&self.bias_ih), bias(&self.bias_hh))
            .with_heads(self.heads)
    }
}

/// A leaf with other values, of the dtype, device and gradient setting of `old`.
pub(crate) fn like<const D: usize>(old: &Tensor<D>, data: TensorData) -> Tensor<D> {
    Tensor::from_data(data, (&old.device(), old.dtype())).set_require_grad(old.is_require_grad())
}
