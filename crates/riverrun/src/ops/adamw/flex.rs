//! The CPU.

use burn::backend::Flex;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, Shape};
use burn_flex::FlexTensor;
use half::{bf16, f16};
use riverrun_kernels::adamw::{NUMBERS, cpu};

use super::{Gradients, Member, Members, OptimizerOps};
use crate::ops::Maybe;
use crate::ops::backends::flex::contiguous;

/// Calls a generic function with the type of a gradient.
macro_rules! by_gradient {
    ($dtype:expr, $call:ident($($arg:expr),*)) => {
        match $dtype {
            DType::F32 => $call::<f32>($($arg),*),
            DType::F16 => $call::<f16>($($arg),*),
            DType::BF16 => $call::<bf16>($($arg),*),
            other => panic!("gradients are in f32, f16 or bf16, found {other:?}"),
        }
    };
}

trait Gradient: crate::ops::backends::flex::Storage<Acc = f32> {}
impl<E: crate::ops::backends::flex::Storage<Acc = f32>> Gradient for E {}

fn update<E: Gradient>(
    member: Member<Flex>,
    factor: f32,
    numbers: &[f32; NUMBERS],
    decays: bool,
) -> Member<Flex> {
    let mut parameter = member.parameter.to_contiguous();
    let gradient = member.gradient.to_contiguous();
    let (mut first, mut second) = (member.first.to_contiguous(), member.second.to_contiguous());
    cpu::update(
        numbers,
        decays,
        factor,
        parameter.storage_mut(),
        contiguous::<E>(&gradient),
        first.storage_mut(),
        second.storage_mut(),
    )
    .unwrap_or_else(|error| panic!("{error}"));
    Member {
        parameter,
        gradient,
        first,
        second,
    }
}

fn squares<E: Gradient>(gradient: &FlexTensor) -> f64 {
    cpu::square_sum(contiguous::<E>(gradient))
}

impl OptimizerOps for Flex {
    fn adamw(
        members: Members<Self>,
        factor: FloatTensor<Self>,
        numbers: FloatTensor<Self>,
        decays: u32,
    ) -> Members<Self> {
        let factor = contiguous::<f32>(&factor.to_contiguous())[0];
        let numbers: [f32; NUMBERS] = contiguous::<f32>(&numbers.to_contiguous())
            .try_into()
            .expect("the numbers of a step");
        let updated = members
            .into_vec()
            .into_iter()
            .enumerate()
            .map(|(n, member)| {
                let decays = decays >> n & 1 != 0;
                let dtype = member.gradient.dtype();
                by_gradient!(dtype, update(member, factor, &numbers, decays))
            });
        Members::from_vec(updated.collect())
    }

    fn square_sum(gradients: Gradients<Self>, before: Maybe<Self>) -> FloatTensor<Self> {
        let before = before
            .into_option()
            .map_or(0.0, |before| contiguous::<f32>(&before)[0]);
        let sums = gradients.into_vec().into_iter().map(|gradient| {
            let gradient = gradient.to_contiguous();
            by_gradient!(gradient.dtype(), squares(&gradient))
        });
        let mut total = FlexTensor::empty(Shape::new([1]), DType::F32);
        total.storage_mut::<f32>()[0] = before + sums.sum::<f64>() as f32;
        total
    }
}
