//! AdamW with its moments shared out among ranks: each keeps and updates a part of all parameters.
//!
//! Gradients are added up so that every rank gets the sums of its part; the parts' updated parameters are put together on all
//! ranks. That sends as much as sums of all gradients everywhere do, and a rank keeps `12 / N` bytes a parameter for its part in
//! place of 8 for moments.
//!
//! Source: Rajbhandari et al., *ZeRO: Memory Optimizations Toward Training Trillion Parameter Models* (2020), section 5.1.

mod layout;

use std::ops::Range;

use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::{DType, Device, Tensor};
use riverrun::training::{AdamwTensors, FlatTensor, adamw, adamw_numbers, from_flat, square_sum};

use super::Optimizer;
use crate::spread::Ranks;
use crate::{Error, LossScale, Precision};
use layout::Layout;

/// A piece of a vector, in memory of its own.
fn copied(vector: &Tensor<1>, place: Range<usize>) -> Result<Tensor<1>, Error> {
    let empty = Tensor::<1>::empty([place.len()], (&vector.device(), DType::F32));
    let piece = FlatTensor::new(empty, place.start, 0)?;
    let mut pieces = from_flat(vec![piece], vector)?;
    Ok(pieces.pop().expect("it was one").into_tensor())
}

/// This rank's part of a model.
pub(super) struct Shard {
    layout: Layout,
    /// Parameters and moments of the elements that decay, and of those that do not, where there are any.
    pieces: [Option<[Tensor<1>; 3]>; 2],
}

/// This rank's part on its way through a step: its pieces with the gradients, summed over the ranks.
pub(crate) struct PartGradients([Option<AdamwTensors>; 2]);

impl Shard {
    /// The part of a model, with moments in its shape or none.
    fn new<M: Module>(
        layout: Layout,
        model: &M,
        moments: Option<[M; 2]>,
        ranks: &dyn Ranks,
        device: &Device,
    ) -> Result<Self, Error> {
        let (size, before) = (ranks.size(), ranks.rank() * layout.part());
        let [first, second] = match &moments {
            Some([first, second]) => [first, second].map(Some),
            None => [None, None],
        };
        let whole = |module: &M| layout.parameters(module, size, device);
        let sources = [
            Some(whole(model)?),
            first.map(whole).transpose()?,
            second.map(whole).transpose()?,
        ];
        let mut pieces = [None, None];
        for (piece, place) in pieces.iter_mut().zip(layout.own()) {
            let (start, len) = (before + place.start, place.len());
            let of = |source: &Option<Tensor<1>>| match source {
                Some(whole) => copied(whole, start..start + len),
                None => Ok(Tensor::zeros([len], device)),
            };
            let [parameter, first, second] = sources.each_ref().map(of);
            if len > 0 {
                *piece = Some([parameter?, first?, second?]);
            }
        }
        Ok(Self { layout, pieces })
    }
}

impl Optimizer {
    /// Adds up the ranks' gradients, of which this rank gets its part, rounded to the format of the arithmetic, and the sum of its
    /// squares, `[1]`.
    pub(crate) fn part_gradients<M: Module>(
        &mut self,
        model: &M,
        gradients: GradientsParams,
        precision: Precision,
        ranks: &mut dyn Ranks,
        device: &Device,
    ) -> Result<(PartGradients, Tensor<1>), Error> {
        let (rank, size) = (ranks.rank(), ranks.size());
        let layout = match &self.shard {
            Some(shard) => shard.layout.clone(),
            None => Layout::of(model, &gradients, rank, size),
        };
        let whole = layout.gradients(model, gradients, size, device)?;
        let part = ranks.scatter(whole)?;
        if self.shard.is_none() {
            self.take_part(layout.clone(), model, ranks, device)?;
        }
        let shard = self.shard.as_mut().expect("it was made above");
        let mut pieces = [None, None];
        for (i, place) in layout.own().into_iter().enumerate() {
            let Some([parameter, first, second]) = shard.pieces[i].take() else {
                continue;
            };
            let gradient = copied(&part, place)?.cast(precision.dtype());
            let moments = [first, second];
            pieces[i] = Some(AdamwTensors::new(parameter, gradient, moments, i == 0)?);
        }
        // The sum of whole models: Burn's own takes another way on GPUs, in no fixed order.
        let all: Vec<AdamwTensors> = pieces.iter().flatten().cloned().collect();
        let square = square_sum(&all).unwrap_or_else(|| Tensor::zeros([1], device));
        Ok((PartGradients(pieces), square))
    }

    /// Keeps this rank's part of the moments, and no others.
    fn take_part<M: Module>(
        &mut self,
        layout: Layout,
        model: &M,
        ranks: &dyn Ranks,
        device: &Device,
    ) -> Result<(), Error> {
        let moments = match self.states.is_empty() {
            true => None,
            false => Some(self.take_moments(model)),
        };
        self.shard = Some(Shard::new(layout, model, moments, ranks, device)?);
        Ok(())
    }

    /// Moves this rank's part, and gives all ranks the model with all parts. `square` is that of all gradients.
    pub(crate) fn step_part<M: Module>(
        &mut self,
        lr: f64,
        model: M,
        gradients: PartGradients,
        square: Tensor<1>,
        scale: &mut LossScale,
        ranks: &mut dyn Ranks,
    ) -> Result<M, Error> {
        let device = square.device();
        let time = self.steps + std::mem::take(&mut self.replayed) + 1;
        self.steps = time;
        let numbers = match &self.announced {
            Some((numbers, next)) if *next == time => numbers.clone(),
            _ => adamw_numbers(self.numbers(lr, time), &device),
        };
        let factor = scale.unscale(square, self.config.clip);
        let shard = self.shard.as_mut().expect("gradients have made it");
        let there = gradients.0.each_ref().map(Option::is_some);
        let tensors = gradients.0.into_iter().flatten().collect();
        let mut updated = adamw(tensors, factor, numbers)?.into_iter();
        shard.pieces = there.map(|there| {
            let piece = there.then(|| updated.next()).flatten()?;
            let (parameter, [first, second], _) = piece.into_tensors::<1>();
            Some([parameter, first, second])
        });
        let whole = shard.gathered(0, ranks, &device)?;
        shard.layout.put(model, &whole)
    }

    /// Puts the ranks' moments together on all of them, for [`moments`](Self::moments). All ranks call it.
    pub(crate) fn gather_moments<M: Module>(
        &mut self,
        model: &M,
        ranks: &mut dyn Ranks,
        device: &Device,
    ) -> Result<(), Error> {
        let Some(shard) = &self.shard else {
            return Ok(());
        };
        let mut gather = |i| -> Result<M, Error> {
            let whole = shard.gathered(i, ranks, device)?;
            let (zeros, _, _) = Optimizer::new(&self.config).moments(model);
            shard.layout.put(zeros, &whole)
        };
        let (first, second) = (gather(1)?, gather(2)?);
        let (steps, replayed) = (self.steps, self.replayed);
        self.keep_moments(&first, &second, steps);
        self.replayed = replayed;
        Ok(())
    }

    /// Forgets the moments of other ranks.
    pub(crate) fn forget_moments(&mut self) {
        if self.shard.is_some() {
            self.states.clear();
        }
    }
}

impl Shard {
    /// The parameters, or the first or second moments, of all ranks.
    fn gathered(
        &self,
        which: usize,
        ranks: &mut dyn Ranks,
        device: &Device,
    ) -> Result<Tensor<1>, Error> {
        let pieces = self.pieces.each_ref();
        let pieces = pieces.map(|piece| piece.as_ref().map(|piece| &piece[which]));
        ranks.gather(self.layout.joined(pieces, device)?)
    }
}
