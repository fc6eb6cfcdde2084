//! The CPU.

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Element as BurnElement, Flex, TensorMetadata};
use burn::tensor::TensorData;
use burn_flex::FlexTensor;
use riverrun_kernels::cross_entropy::cpu;

use super::LossOps;
use crate::ops::support::flex::{Storage, by_dtype, contiguous, wide_integers, zeros};

fn numbers<R: BurnElement + bytemuck::Pod>(numbers: Vec<R>) -> FlexTensor {
    let shape = [numbers.len()];
    FlexTensor::from_data(TensorData::new(numbers, shape))
}

fn forward<E: Storage>(x: &FlexTensor, targets: &[i64]) -> (FlexTensor, FlexTensor, FlexTensor)
where
    E::Acc: BurnElement + bytemuck::Pod,
{
    let vocab = x.shape()[1];
    let mut lse = vec![E::Acc::default(); targets.len()];
    let cpu::Loss { loss, weight } = cpu::forward(contiguous::<E>(x), vocab, targets, &mut lse)
        .unwrap_or_else(|error| panic!("{error}"));
    (numbers(vec![loss]), numbers(lse), numbers(vec![weight]))
}

fn backward<E: Storage>(
    x: &FlexTensor,
    targets: &[i64],
    lse: &FlexTensor,
    weight: &FlexTensor,
    d_loss: &FlexTensor,
    d_x: &mut FlexTensor,
) where
    E::Acc: Storage,
{
    let one = |x: &FlexTensor| contiguous::<E::Acc>(x)[0];
    let vocab = x.shape()[1];
    cpu::backward(
        contiguous::<E>(x),
        vocab,
        targets,
        contiguous::<E::Acc>(lse),
        one(d_loss) * one(weight),
        d_x.storage_mut::<E>(),
    )
    .unwrap_or_else(|error| panic!("{error}"));
}

impl LossOps for Flex {
    fn cross_entropy(
        x: FloatTensor<Self>,
        targets: IntTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let (x, targets) = (x.to_contiguous(), wide_integers(targets));
        let targets = targets.as_slice::<i64>().expect("cast before");
        by_dtype!(x.dtype(), forward(&x, targets))
    }

    fn cross_entropy_backward(
        x: FloatTensor<Self>,
        targets: IntTensor<Self>,
        lse: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        d_loss: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        let (x, targets) = (x.to_contiguous(), wide_integers(targets));
        let targets = targets.as_slice::<i64>().expect("cast before");
        let (lse, d_loss) = (lse.to_contiguous(), d_loss.to_contiguous());
        let mut d_x = zeros(x.shape(), x.dtype());
        by_dtype!(
            x.dtype(),
            backward(&x, targets, &lse, &weight, &d_loss, &mut d_x)
        );
        d_x
    }
}
