//! AdamW and the norm of gradients over many tensors at once: on GPUs a few launches for a whole model.

// Members are moved a few times a step, and are mostly there: boxes would gain nothing.
#![allow(clippy::large_enum_variant)]

#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "flex")]
mod flex;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, DispatchTensor, ExtensionType, backend_extension};
use burn::tensor::{DType, Device, Tensor};
pub use riverrun_kernels::adamw::Step as AdamwStep;

use super::{Maybe, checks};
use crate::Error;

/// A parameter with its gradient and moments, of any rank.
#[derive(Debug, Clone)]
pub struct AdamwTensors {
    parameter: DispatchTensor,
    gradient: DispatchTensor,
    first: DispatchTensor,
    second: DispatchTensor,
    dtype: DType,
    decays: bool,
}

impl AdamwTensors {
    /// Of a parameter, its gradient in any float dtype, its moments, and whether weight decay is for it. None of them may
    /// be on an autodiff device.
    ///
    /// # Errors
    /// Where a shape differs from that of the parameter, or parameter and moments are not in `f32`.
    pub fn new<const D: usize>(
        parameter: Tensor<D>,
        gradient: Tensor<D>,
        [first, second]: [Tensor<D>; 2],
        decays: bool,
    ) -> Result<Self, Error> {
        checks::same_shape("gradient", &parameter, &gradient)?;
        for (what, moment) in [("first moment", &first), ("second moment", &second)] {
            checks::same_shape(what, &parameter, moment)?;
            checks::same_dtype(what, &parameter, moment)?;
        }
        if parameter.dtype() != DType::F32 {
            return Err(Error::Dtype {
                what: "parameter",
                expected: "F32".into(),
                found: format!("{:?}", parameter.dtype()),
            });
        }
        Ok(Self {
            dtype: gradient.dtype(),
            parameter: parameter.into_dispatch(),
            gradient: gradient.into_dispatch(),
            first: first.into_dispatch(),
            second: second.into_dispatch(),
            decays,
        })
    }

    /// The parameter and its moments.
    ///
    /// # Panics
    /// If they were of another rank.
    pub fn into_tensors<const D: usize>(self) -> (Tensor<D>, [Tensor<D>; 2]) {
        let moments = [self.first, self.second].map(Tensor::from_dispatch);
        (Tensor::from_dispatch(self.parameter), moments)
    }
}

/// One step of AdamW for every parameter, its gradient multiplied by `factor`, `[1]` in `f32` on the same device. `numbers`
/// are those of an [`AdamwStep`] ([`adamw_numbers`]), on the same device too.
///
/// A factor of 0 stands for gradients that overflowed: the step is skipped, nothing moves. Nothing is read back from the
/// device. Tensors that nobody else holds are updated in place.
///
/// Source: Loshchilov & Hutter, *Decoupled Weight Decay Regularization* (2019), algorithm 2.
pub fn adamw(
    tensors: Vec<AdamwTensors>,
    factor: Tensor<1>,
    numbers: Tensor<1>,
) -> Vec<AdamwTensors> {
    let (factor, numbers) = (factor.into_dispatch(), numbers.into_dispatch());
    let mut updated: Vec<Option<AdamwTensors>> = tensors.iter().map(|_| None).collect();
    let mut waiting: Vec<Option<AdamwTensors>> = tensors.into_iter().map(Some).collect();
    for group in groups(&waiting) {
        let mut group_tensors = Vec::with_capacity(group.len());
        let mut rest = Vec::with_capacity(group.len());
        let mut decays = 0;
        for (n, &i) in group.iter().enumerate() {
            let tensors = waiting[i].take().expect("in one group");
            decays |= u32::from(tensors.decays) << n;
            rest.push((tensors.dtype, tensors.decays));
            group_tensors.push(Member {
                parameter: tensors.parameter,
                gradient: tensors.gradient,
                first: tensors.first,
                second: tensors.second,
            });
        }
        let group_tensors = Members::from_vec(group_tensors);
        let (factor, numbers) = (factor.clone(), numbers.clone());
        let done = <Dispatch as OptimizerOps>::adamw(group_tensors, factor, numbers, decays);
        for ((i, member), (dtype, decays)) in group.into_iter().zip(done.into_vec()).zip(rest) {
            updated[i] = Some(AdamwTensors {
                parameter: member.parameter,
                gradient: member.gradient,
                first: member.first,
                second: member.second,
                dtype,
                decays,
            });
        }
    }
    updated.into_iter().flatten().collect()
}

/// The numbers of a step for [`adamw`], on `device`.
pub fn adamw_numbers(step: AdamwStep, device: &Device) -> Tensor<1> {
    Tensor::from_floats(step.numbers(), &device.clone().without_autodiff())
}

/// `Σ g²` over the gradients of all tensors, `[1]` in `f32`; none where there are none.
pub fn square_sum(tensors: &[AdamwTensors]) -> Option<Tensor<1>> {
    let waiting: Vec<Option<AdamwTensors>> = tensors.iter().cloned().map(Some).collect();
    let mut total: Option<DispatchTensor> = None;
    for group in groups(&waiting) {
        let gradients = group.iter().map(|&i| tensors[i].gradient.clone()).collect();
        let before = Maybe::from_option(total.take());
        let sum = <Dispatch as OptimizerOps>::square_sum(Gradients::from_vec(gradients), before);
        total = Some(sum);
    }
    total.map(Tensor::from_dispatch)
}

/// Tensors that one call of a backend takes: as many as [`Members`] holds, with gradients of one dtype.
fn groups(tensors: &[Option<AdamwTensors>]) -> Vec<Vec<usize>> {
    let mut groups: Vec<(DType, Vec<usize>)> = Vec::new();
    for (i, tensors) in tensors.iter().enumerate() {
        let Some(tensors) = tensors else { continue };
        let open = groups
            .iter_mut()
            .rev()
            .find(|(dtype, group)| *dtype == tensors.dtype && group.len() < GROUP);
        match open {
            Some((_, group)) => group.push(i),
            None => groups.push((tensors.dtype, vec![i])),
        }
    }
    groups.into_iter().map(|(_, group)| group).collect()
}

/// Tensors of a group.
const GROUP: usize = 8;

/// A parameter, its gradient and moments on a backend.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "cube"))]
pub struct Member<B: Backend> {
    /// In `f32`.
    pub parameter: FloatTensor<B>,
    /// Of the shape of the parameter.
    pub gradient: FloatTensor<B>,
    /// In `f32`, of the shape of the parameter.
    pub first: FloatTensor<B>,
    /// In `f32`, of the shape of the parameter.
    pub second: FloatTensor<B>,
}

/// A [`Member`], or none.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "cube"))]
pub enum MaybeMember<B: Backend> {
    /// It is there.
    Some(#[extension_type] Member<B>),
    /// It is not.
    None,
}

/// Eight of something: backends take no lists.
macro_rules! eight {
    ($(#[$doc:meta])* $name:ident of $item:ty as $maybe:ident) => {
        $(#[$doc])*
        #[derive(ExtensionType)]
        #[extension_type(fusion: cfg(feature = "cube"))]
        pub struct $name<B: Backend> {
            /// The first.
            #[extension_type]
            pub a: $maybe<B>,
            /// The second.
            #[extension_type]
            pub b: $maybe<B>,
            /// The third.
            #[extension_type]
            pub c: $maybe<B>,
            /// The fourth.
            #[extension_type]
            pub d: $maybe<B>,
            /// The fifth.
            #[extension_type]
            pub e: $maybe<B>,
            /// The sixth.
            #[extension_type]
            pub f: $maybe<B>,
            /// The seventh.
            #[extension_type]
            pub g: $maybe<B>,
            /// The eighth.
            #[extension_type]
            pub h: $maybe<B>,
        }

        impl<B: Backend> $name<B> {
            /// Of at most eight.
            pub(crate) fn from_vec(items: Vec<$item>) -> Self {
                assert!(items.len() <= GROUP);
                let mut items = items.into_iter();
                let mut next = || match items.next() {
                    Some(item) => $maybe::Some(item),
                    None => $maybe::None,
                };
                Self {
                    a: next(),
                    b: next(),
                    c: next(),
                    d: next(),
                    e: next(),
                    f: next(),
                    g: next(),
                    h: next(),
                }
            }

            /// Those that are there.
            pub(crate) fn into_vec(self) -> Vec<$item> {
                let Self {
                    a,
                    b,
                    c,
                    d,
                    e,
                    f,
                    g,
                    h,
                } = self;
                let there = |maybe| match maybe {
                    $maybe::Some(item) => Some(item),
                    $maybe::None => None,
                };
                [a, b, c, d, e, f, g, h]
                    .into_iter()
                    .filter_map(there)
                    .collect()
            }
        }
    };
}

eight! {
    /// Parameters that are updated together.
    Members of Member<B> as MaybeMember
}

eight! {
    /// Gradients whose squares are added up together.
    Gradients of FloatTensor<B> as Maybe
}

#[cfg(feature = "cube")]
mod fused {
    //! What fusion must know of an operation before it runs: the shapes of its outputs.

    use burn::backend::fusion::custom::TensorSpec;
    use burn::tensor::{DType, Shape};

    pub(super) fn number() -> TensorSpec {
        TensorSpec::new(Shape::new([1]), DType::F32)
    }
}

/// [`adamw`] and [`square_sum`] on a backend. Shapes and dtypes have been checked.
#[backend_extension(
    Flex: cfg(feature = "flex"),
    Cube: cfg(feature = "cube"),
    Fusion: cfg(feature = "cube"),
)]
pub trait OptimizerOps: Backend {
    /// The updated tensors; gradients are given back as they were. Bit `n` of `decays` says that of the member `n`.
    #[fusion(meta = |members, _factor, _numbers, _decays| members.clone())]
    fn adamw(
        #[extension_type] members: Members<Self>,
        factor: FloatTensor<Self>,
        numbers: FloatTensor<Self>,
        decays: u32,
    ) -> Members<Self>;

    /// `Σ g²` and `before`, `[1]` in `f32`.
    #[fusion(meta = |_gradients, _before| fused::number())]
    fn square_sum(
        #[extension_type] gradients: Gradients<Self>,
        #[extension_type] before: Maybe<Self>,
    ) -> FloatTensor<Self>;
}
