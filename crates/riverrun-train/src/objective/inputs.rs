//! The tensors of a batch on the device.

use std::ops::Range;

use burn::backend::TensorMetadata;
use burn::tensor::{Device, DispatchTensor, FloatDType, Int, Tensor, TensorData};
use rand::RngCore;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use riverrun::Neighbours;
use riverrun::training::{refill, refill_int};

use crate::Error;

/// The tensors of a batch on the device, in the order of [`Objective::tensors`](crate::Objective::tensors), and a key for
/// random numbers.
#[derive(Debug, Clone)]
pub struct Inputs {
    slots: Vec<Slot>,
    key: Tensor<1, Int>,
    dtype: FloatDType,
    autodiff: bool,
    neighbours: Option<Neighbours>,
}

/// A tensor without autodiff.
#[derive(Debug, Clone)]
struct Slot {
    tensor: DispatchTensor,
    shape: Vec<usize>,
    float: bool,
}

/// The random numbers that a batch's loss may draw; no two steps share them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Draw {
    pub seed: u64,
    /// The step, or the index of a validation batch.
    pub step: u64,
    /// The part of an accumulated batch; [`VALIDATION`](Self::VALIDATION) for a validation batch.
    pub part: u32,
}

impl Draw {
    pub const VALIDATION: u32 = u32::MAX;

    fn data(self) -> TensorData {
        // A generator's output, not the counters themselves: adding another counter to a word does not lead to the numbers of
        // another step.
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        rng.set_stream(self.step);
        rng.set_word_pos(u128::from(self.part) * 16);
        let words: Vec<i32> = (0..4).map(|_| rng.next_u32().cast_signed()).collect();
        TensorData::new(words, [4])
    }

    /// A seed for the device's own generator.
    pub fn device_seed(self) -> u64 {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        rng.set_stream(self.step);
        rng.set_word_pos(u128::from(self.part) * 16);
        rng.next_u64()
    }
}

impl Inputs {
    /// Sends tensors to `device`. Floats come out in `dtype`.
    pub(crate) fn new(
        tensors: Vec<TensorData>,
        draw: Draw,
        dtype: FloatDType,
        device: &Device,
    ) -> Self {
        let plain = device.clone().without_autodiff();
        Self {
            slots: tensors
                .into_iter()
                .map(|data| Slot::new(data, &plain))
                .collect(),
            key: Tensor::from_data(draw.data(), &plain),
            dtype,
            autodiff: device.is_autodiff(),
            neighbours: None,
        }
    }

    /// The inputs of a piece of sequences that are divided among ranks along time.
    pub(crate) fn with_neighbours(mut self, neighbours: Option<Neighbours>) -> Self {
        self.neighbours = neighbours;
        self
    }

    /// The ranks with the steps before and after those of this batch, where its sequences are [pieces](crate::Objective::piece) of
    /// longer ones.
    pub fn neighbours(&self) -> Option<&Neighbours> {
        self.neighbours.as_ref()
    }

    /// Checks that a batch has the shapes of this one, and floats and integers where this one has them.
    pub(crate) fn fit(&self, tensors: &[TensorData]) -> Result<(), Error> {
        let found = tensors.iter();
        let found: Vec<(&[usize], bool)> = found
            .map(|data| (&data.shape()[..], data.dtype().is_float()))
            .collect();
        let slots = self.slots.iter();
        let expected: Vec<(&[usize], bool)> =
            slots.map(|slot| (&slot.shape[..], slot.float)).collect();
        if found == expected {
            return Ok(());
        }
        let list = |tensors: Vec<(&[usize], bool)>| {
            let kind = |float| if float { "floats" } else { "integers" };
            let tensors = tensors.into_iter();
            let tensors: Vec<String> = tensors
                .map(|(shape, float)| format!("{} {shape:?}", kind(float)))
                .collect();
            tensors.join(", ")
        };
        Err(Error::Recording(format!(
            "a batch of {} follows batches of {}",
            list(found),
            list(expected)
        )))
    }

    /// Whether no clone of a tensor is alive, so that the memory can be [refilled](Self::refilled).
    pub(crate) fn can_mut(&self) -> bool {
        self.slots.iter().all(|slot| slot.tensor.can_mut()) && self.key.can_mut()
    }

    /// Replaces the batch by another one of the same shapes, in the same memory.
    pub(crate) fn refilled(self, tensors: Vec<TensorData>, draw: Draw) -> Result<Self, Error> {
        let slots = self.slots.into_iter().zip(tensors);
        Ok(Self {
            slots: slots
                .map(|(slot, data)| slot.refilled(data))
                .collect::<Result<_, _>>()?,
            key: refill_int(self.key, draw.data())?,
            ..self
        })
    }

    /// The float tensor `index`, in the dtype of the arithmetic.
    ///
    /// # Panics
    /// If the batch has no such tensor, or it is of another rank or an integer.
    pub fn float<const D: usize>(&self, index: usize) -> Tensor<D> {
        let tensor = Tensor::<D>::from_dispatch(self.slot::<D>(index, true)).cast(self.dtype);
        match self.autodiff {
            true => Tensor::from_inner(tensor),
            false => tensor,
        }
    }

    /// The integer tensor `index`.
    ///
    /// # Panics
    /// If the batch has no such tensor, or it is of another rank or a float.
    pub fn int<const D: usize>(&self, index: usize) -> Tensor<D, Int> {
        let tensor = Tensor::from_dispatch(self.slot::<D>(index, false));
        match self.autodiff {
            true => Tensor::from_inner(tensor),
            false => tensor,
        }
    }

    /// The shape of the tensor `index`.
    ///
    /// # Panics
    /// If the batch has no such tensor.
    pub fn shape(&self, index: usize) -> &[usize] {
        &self.slots[index].shape
    }

    /// The number of tensors.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether the batch has no tensors.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Four words of 32 random bits, `[4]`, that differ from step to step: the key of counter-based random numbers. They are on
    /// the device, so recorded steps read those of the next step; a resumed run continues with the same ones.
    pub fn key(&self) -> Tensor<1, Int> {
        self.key.clone()
    }

    fn slot<const D: usize>(&self, index: usize, float: bool) -> DispatchTensor {
        let kind = |float| if float { "float" } else { "integer" };
        let Some(slot) = self.slots.get(index) else {
            panic!("tensor {index} of a batch of {}", self.slots.len());
        };
        assert!(
            slot.shape.len() == D && slot.float == float,
            "tensor {index} of a batch: {} of rank {D} asked for, {} of shape {:?} found",
            kind(float),
            kind(slot.float),
            slot.shape
        );
        slot.tensor.clone()
    }
}

/// Calls a function that is generic over the rank, for ranks 1 to 6.
macro_rules! by_rank {
    ($rank:expr, $function:ident($($argument:expr),*)) => {
        match $rank {
            1 => $function::<1>($($argument),*),
            2 => $function::<2>($($argument),*),
            3 => $function::<3>($($argument),*),
            4 => $function::<4>($($argument),*),
            5 => $function::<5>($($argument),*),
            6 => $function::<6>($($argument),*),
            rank => panic!("a batch has tensors of rank 1 to 6, not {rank}"),
        }
    };
}

impl Slot {
    fn new(data: TensorData, device: &Device) -> Self {
        let (shape, float) = (data.shape().to_vec(), data.dtype().is_float());
        Self {
            tensor: by_rank!(shape.len(), upload(data, float, device)),
            shape,
            float,
        }
    }

    fn refilled(self, data: TensorData) -> Result<Self, Error> {
        let Self {
            tensor,
            shape,
            float,
        } = self;
        Ok(Self {
            tensor: by_rank!(shape.len(), replace(tensor, data, float))?,
            shape,
            float,
        })
    }
}

fn upload<const D: usize>(data: TensorData, float: bool, device: &Device) -> DispatchTensor {
    match float {
        true => Tensor::<D>::from_data(data, device).into_dispatch(),
        false => Tensor::<D, Int>::from_data(data, device).into_dispatch(),
    }
}

fn replace<const D: usize>(
    tensor: DispatchTensor,
    data: TensorData,
    float: bool,
) -> Result<DispatchTensor, riverrun::Error> {
    match float {
        true => refill(Tensor::<D>::from_dispatch(tensor), data).map(Tensor::into_dispatch),
        false => {
            refill_int(Tensor::<D, Int>::from_dispatch(tensor), data).map(Tensor::into_dispatch)
        }
    }
}

/// Splits the rows of each tensor into `of` parts of the same size, in order, and gives some of them.
pub(super) fn split(
    tensors: Vec<TensorData>,
    parts: Range<usize>,
    of: usize,
) -> Result<Vec<Vec<TensorData>>, Error> {
    if of <= 1 {
        return Ok(vec![tensors]);
    }
    let mut split: Vec<Vec<TensorData>> = parts.clone().map(|_| Vec::new()).collect();
    for data in tensors {
        let mut shape = data.shape().to_vec();
        shape[0] = rows_of_part(shape[0], of)?;
        let bytes = data.as_bytes();
        let size = bytes.len() / of;
        for (part, into) in parts.clone().zip(&mut split) {
            let piece = bytes[part * size..][..size].to_vec();
            into.push(TensorData::from_bytes_vec(
                piece,
                shape.clone(),
                data.dtype(),
            ));
        }
    }
    Ok(split)
}

/// The rows of one of several parts.
pub(super) fn rows_of_part(rows: usize, of: usize) -> Result<usize, Error> {
    match rows.is_multiple_of(of) {
        true => Ok(rows / of),
        false => Err(Error::Parts { rows, parts: of }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_parts_and_seeds_have_keys_of_their_own() {
        let keys: Vec<Vec<i32>> = [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (0, 0, u32::MAX)]
            .map(|(seed, step, part)| Draw { seed, step, part }.data().try_to_vec().unwrap())
            .into();
        for (i, key) in keys.iter().enumerate() {
            assert!(keys[..i].iter().all(|other| other[0] != key[0]));
        }
    }

    #[test]
    fn rows_are_split_in_order() {
        let data = TensorData::new((0..12).collect::<Vec<i32>>(), [4, 3]);
        let parts = split(vec![data.clone()], 0..2, 2).unwrap();
        let second = split(vec![data.clone()], 1..2, 2).unwrap();
        assert_eq!(second, parts[1..]);
        assert_eq!(
            parts[1][0].try_to_vec::<i32>().unwrap(),
            [6, 7, 8, 9, 10, 11]
        );
        assert_eq!(parts[1][0].shape().to_vec(), [2, 3]);
        assert!(matches!(
            split(vec![data], 0..1, 3),
            Err(Error::Parts { rows: 4, parts: 3 })
        ));
    }
}
