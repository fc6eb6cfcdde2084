//! The CPU.

use burn::backend::Flex;
use burn::backend::tensor::FloatTensor;
use burn_flex::FlexTensor;
use riverrun_kernels::Error;
use riverrun_kernels::flat::cpu;

use super::{FlatOps, FlatPlace};
use crate::ops::support::flex::{Storage, by_dtype, contiguous};
use crate::ops::support::members::Tensors;

/// Changes every tensor, with elements in `E`.
fn each<E: Storage>(
    tensors: Tensors<Flex>,
    places: Vec<FlatPlace>,
    change: impl Fn(FlatPlace, &mut [E]) -> Result<(), Error>,
) -> Tensors<Flex> {
    let tensors = tensors.into_vec().into_iter().zip(places);
    let changed = tensors.map(|(tensor, place)| {
        let mut tensor: FlexTensor = tensor.to_contiguous();
        change(place, tensor.storage_mut()).unwrap_or_else(|error| panic!("{error}"));
        tensor
    });
    Tensors::from_vec(changed.collect())
}

fn put<E: Storage>(
    tensors: Tensors<Flex>,
    vector: &FlexTensor,
    places: Vec<FlatPlace>,
) -> Tensors<Flex> {
    let vector = contiguous::<E>(vector);
    each(tensors, places, |place, p| cpu::put(place, p, vector))
}

fn take<E: Storage>(tensors: Tensors<Flex>, vector: &mut FlexTensor, places: Vec<FlatPlace>) {
    let to: &mut [E] = vector.storage_mut();
    for (tensor, place) in tensors.into_vec().into_iter().zip(places) {
        let tensor = tensor.to_contiguous();
        cpu::take(place, contiguous::<E>(&tensor), to).unwrap_or_else(|error| panic!("{error}"));
    }
}

impl FlatOps for Flex {
    fn flat_add(
        tensors: Tensors<Self>,
        directions: Tensors<Self>,
        coefficients: FloatTensor<Self>,
        places: Vec<FlatPlace>,
        _kept: bool,
    ) -> Tensors<Self> {
        let directions: Vec<FlexTensor> = directions
            .into_vec()
            .into_iter()
            .map(|direction| direction.to_contiguous())
            .collect();
        let directions: Vec<&[f32]> = directions.iter().map(contiguous::<f32>).collect();
        let coefficients = coefficients.to_contiguous();
        let coefficients = contiguous::<f32>(&coefficients);
        each(tensors, places, |place, p| {
            cpu::add(place, p, &directions, coefficients)
        })
    }

    fn flat_put(
        tensors: Tensors<Self>,
        vector: FloatTensor<Self>,
        places: Vec<FlatPlace>,
        _kept: bool,
    ) -> Tensors<Self> {
        let vector = vector.to_contiguous();
        by_dtype!(vector.dtype(), put(tensors, &vector, places))
    }

    fn flat_take(
        tensors: Tensors<Self>,
        vector: FloatTensor<Self>,
        places: Vec<FlatPlace>,
    ) -> FloatTensor<Self> {
        let mut vector = vector.to_contiguous();
        by_dtype!(vector.dtype(), take(tensors, &mut vector, places));
        vector
    }
}
