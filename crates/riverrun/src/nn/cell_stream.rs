//! A stream through GRU, LSTM or Elman layers on the CPU: weights packed once, states held inside, slices in and out.

use burn::tensor::{FloatDType, Tensor};
use riverrun_kernels::cell::cpu::{PackedLayer, Routine, State};
use riverrun_kernels::cell::{Cell, Outputs};

use super::CellStack;
use crate::Error;

/// Sequences that continue step by step, in `f32` on the CPU, without tensors.
///
/// For control loops, audio and other streams: a step of a layer on tensors packs the weights each time, which for one sequence
/// takes most of the step. The results are those of the layer's own `step` on the CPU in `f32`, bit for bit. On a GPU the
/// layer's `step` is a launch, and its states stay on the device.
///
/// ```
/// # #[cfg(feature = "flex")] {
/// use burn::tensor::Device;
/// use riverrun::nn::LstmConfig;
///
/// let lstm = LstmConfig::new(3, 8).with_layers(2).init(&Device::flex());
/// let mut stream = lstm.stream(1)?;
/// let y = stream.step(&[0.1, 0.2, 0.3])?;
/// assert_eq!(y.len(), 8);
/// stream.restart(0);
/// # }
/// # Ok::<(), riverrun::Error>(())
/// ```
#[derive(Debug)]
pub struct CellStream {
    layers: Vec<Level>,
    batch: usize,
}

/// A layer with its states, and buffers for the next ones.
#[derive(Debug)]
struct Level {
    packed: PackedLayer,
    cell: Cell,
    hidden: usize,
    h: Vec<f32>,
    c: Vec<f32>,
    next_h: Vec<f32>,
    next_c: Vec<f32>,
    /// `[B, 1, H]`.
    y: Vec<f32>,
}

impl CellStack {
    /// A stream of `batch` sequences from the zero state: see the layers' own `stream`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for two directions, and for several heads.
    pub fn stream(&self, batch: usize) -> Result<CellStream, Error> {
        if self.bidirectional {
            return Err(Error::Unsupported(
                "a bidirectional stack needs the whole sequence: it has no stream".into(),
            ));
        }
        let layers = self.layers.iter().map(|layer| {
            let weights = layer.weights();
            if layer.heads() > 1 {
                return Err(Error::Unsupported(
                    "a stream packs the weights of one head; use the layer's own `step`".into(),
                ));
            }
            let ([_, width], [_, hidden]) = (weights.weight_ih.dims(), weights.weight_hh.dims());
            let (w, u) = (numbers(weights.weight_ih), numbers(weights.weight_hh));
            let biases = [weights.bias_ih, weights.bias_hh].map(|bias| bias.map(numbers));
            let packed = PackedLayer::new(
                layer.cell,
                [batch, width, hidden],
                [&w, &u],
                [biases[0].as_deref(), biases[1].as_deref()],
                Routine::default(),
            )?;
            let state = || vec![0.0; batch * hidden];
            let cell_state = || match layer.cell {
                Cell::Lstm => state(),
                _ => Vec::new(),
            };
            Ok(Level {
                packed,
                cell: layer.cell,
                hidden,
                h: state(),
                c: cell_state(),
                next_h: state(),
                next_c: cell_state(),
                y: state(),
            })
        });
        Ok(CellStream {
            layers: layers.collect::<Result<_, Error>>()?,
            batch,
        })
    }
}

fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor
        .cast(FloatDType::F32)
        .into_data()
        .iter::<f32>()
        .collect()
}

impl CellStream {
    /// One step of every sequence: `x`, `[B, I]`, to the top layer's states, `[B, H]`.
    ///
    /// # Errors
    /// An `x` of the wrong length; the states are unchanged then.
    pub fn step(&mut self, x: &[f32]) -> Result<&[f32], Error> {
        for index in 0..self.layers.len() {
            let (below, rest) = self.layers.split_at_mut(index);
            let level = &mut rest[0];
            let x = below.last().map_or(x, |below| &below.y);
            let lstm = level.cell == Cell::Lstm;
            let state = State {
                h0: Some(&level.h),
                c0: lstm.then_some(&level.c[..]),
                reset: None,
                lengths: None,
            };
            let outputs = Outputs {
                h: &mut level.y,
                h_last: &mut level.next_h,
                c_last: lstm.then_some(&mut level.next_c[..]),
                saved: None,
            };
            level.packed.forward([self.batch, 1], x, state, outputs)?;
            std::mem::swap(&mut level.h, &mut level.next_h);
            std::mem::swap(&mut level.c, &mut level.next_c);
        }
        Ok(self.layers.last().map_or(&[], |level| &level.y))
    }

    /// Restarts one sequence from the zero state.
    ///
    /// # Panics
    /// If there is no such sequence.
    pub fn restart(&mut self, sequence: usize) {
        assert!(
            sequence < self.batch,
            "sequence {sequence} of {}",
            self.batch
        );
        for level in &mut self.layers {
            let units = sequence * level.hidden..(sequence + 1) * level.hidden;
            level.h[units.clone()].fill(0.0);
            if level.cell == Cell::Lstm {
                level.c[units].fill(0.0);
            }
        }
    }

    /// The states of a layer, `[B, H]`; `None` where there is no such layer.
    pub fn h(&self, layer: usize) -> Option<&[f32]> {
        Some(&self.layers.get(layer)?.h)
    }

    /// The cell states of an LSTM's layer, `[B, H]`.
    pub fn c(&self, layer: usize) -> Option<&[f32]> {
        let level = self.layers.get(layer)?;
        (level.cell == Cell::Lstm).then_some(&level.c)
    }
}
