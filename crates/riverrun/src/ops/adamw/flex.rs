//! The CPU.

use burn::backend::Flex;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, Shape};
use burn_flex::FlexTensor;
use half::{bf16, f16};
use riverrun_kernels::adamw::clip::{Scale, clip};
use riverrun_kernels::adamw::{NUMBERS, cpu};

use super::{Clipped, Member, Members, OptimizerOps};
use crate::ops::support::Maybe;
use crate::ops::support::flex::{contiguous, zeros};
use crate::ops::support::members::Tensors;

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

trait Gradient: crate::ops::support::flex::Storage<Acc = f32> {}
impl<E: crate::ops::support::flex::Storage<Acc = f32>> Gradient for E {}

fn update<E: Gradient>(
    member: Member<Flex>,
    factor: f32,
    numbers: &[f32; NUMBERS],
    decays: bool,
) -> Member<Flex> {
    let mut parameter = member.parameter.to_contiguous();
    let gradient = member.gradient.to_contiguous();
    let (mut first, mut second) = (member.first.to_contiguous(), member.second.to_contiguous());
    let mut rounded = member.rounded.into_option().map(|x| x.to_contiguous());
    cpu::update(
        numbers,
        decays,
        factor,
        parameter.storage_mut(),
        contiguous::<E>(&gradient),
        first.storage_mut(),
        second.storage_mut(),
        rounded.as_mut().map(|rounded| rounded.storage_mut::<E>()),
    )
    .unwrap_or_else(|error| panic!("{error}"));
    Member {
        parameter,
        gradient,
        first,
        second,
        rounded: Maybe::from_option(rounded),
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

    fn square_sum(gradients: Tensors<Self>, before: Maybe<Self>) -> FloatTensor<Self> {
        let before = before
            .into_option()
            .map_or(0.0, |before| contiguous::<f32>(&before)[0]);
        let sums = gradients.into_vec().into_iter().map(|gradient| {
            let gradient = gradient.to_contiguous();
            by_gradient!(gradient.dtype(), squares(&gradient))
        });
        let mut total = zeros(Shape::new([1]), DType::F32);
        total.storage_mut::<f32>()[0] = before + sums.sum::<f64>() as f32;
        total
    }

    fn clip_factor(squares: FloatTensor<Self>, scale: Maybe<Self>, bound: f32) -> Clipped<Self> {
        let squares = f64::from(contiguous::<f32>(&squares.to_contiguous())[0]);
        let mut scale = scale.into_option().map(|scale| scale.to_contiguous());
        let mut numbers = scale.as_ref().map(|scale| {
            let numbers: [f32; _] = contiguous::<f32>(scale)
                .try_into()
                .expect("the numbers of a scale");
            Scale::new(numbers.map(f64::from))
        });
        let clipped = clip(squares, f64::from(bound), numbers.as_mut());
        if let (Some(scale), Some(numbers)) = (&mut scale, numbers) {
            let numbers = numbers.numbers().map(|x| x as f32);
            scale.storage_mut::<f32>().copy_from_slice(&numbers);
        }
        let mut factor = zeros(Shape::new([1]), DType::F32);
        factor.storage_mut::<f32>()[0] = clipped as f32;
        Clipped {
            factor,
            scale: Maybe::from_option(scale),
        }
    }
}
