//! AdamW and the norm of gradients over many tensors at once: on GPUs a few launches for a whole model.

// Members are moved a few times a step, and are mostly there: boxes would gain nothing.
#![allow(clippy::large_enum_variant)]

#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "flex")]
mod flex;
mod members;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, DispatchTensor, ExtensionType, backend_extension};
use burn::tensor::{DType, Device, Tensor};
use riverrun_kernels::adamw::NUMBERS;
use riverrun_kernels::adamw::clip::SCALE_NUMBERS;
pub use riverrun_kernels::adamw::clip::Scale as LossScaleNumbers;
pub use riverrun_kernels::adamw::{Step as AdamwStep, sgd};

use super::support::members::{GROUP, Tensors};
use super::support::{Maybe, checks};
use crate::Error;
use members::{Member, Members};

/// A parameter with its gradient and moments, of any rank.
#[derive(Debug, Clone)]
pub struct AdamwTensors {
    parameter: DispatchTensor,
    gradient: DispatchTensor,
    first: DispatchTensor,
    second: DispatchTensor,
    rounded: Option<DispatchTensor>,
    dtype: DType,
    device: Device,
    decays: bool,
}

impl AdamwTensors {
    /// From a parameter, its gradient in `f32`, `f16` or `bf16`, and its moments; `decays` applies weight decay.
    ///
    /// # Errors
    /// A shape that differs from the parameter's; a parameter or moments that are not in `f32`; tensors that are not on one device
    /// without autodiff.
    pub fn new<const D: usize>(
        parameter: Tensor<D>,
        gradient: Tensor<D>,
        [first, second]: [Tensor<D>; 2],
        decays: bool,
    ) -> Result<Self, Error> {
        let shape = parameter.dims();
        let device = parameter.device();
        checks::dtype("parameter", DType::F32, parameter.dtype())?;
        checks::shape("gradient", &shape, &gradient.dims())?;
        checks::supported("gradient", &device, gradient.dtype())?;
        if gradient.dtype() == DType::F64 {
            return Err(Error::Dtype {
                what: "gradient",
                expected: "F32, F16 or BF16".into(),
                found: format!("{:?}", gradient.dtype()),
            });
        }
        checks::device("gradient", &device, &gradient.device())?;
        checks::plain("parameter", &device)?;
        checks::plain("gradient", &gradient.device())?;
        for (what, moment) in [("first moment", &first), ("second moment", &second)] {
            checks::fits(what, &parameter, moment, &shape)?;
            checks::plain(what, &moment.device())?;
        }
        Ok(Self {
            device,
            dtype: gradient.dtype(),
            parameter: parameter.into_dispatch(),
            gradient: gradient.into_dispatch(),
            first: first.into_dispatch(),
            second: second.into_dispatch(),
            rounded: None,
            decays,
        })
    }

    /// With a copy of the parameter in the gradient's dtype, updated with it: the weights a 16-bit model computes
    /// with in its next step.
    ///
    /// # Errors
    /// A shape or device that differs from the parameter's, an autodiff device, or a dtype that differs from the gradient's.
    pub fn with_rounded<const D: usize>(mut self, rounded: Tensor<D>) -> Result<Self, Error> {
        let parameter = Tensor::<D>::from_dispatch(self.parameter.clone());
        checks::shape("rounded parameter", &parameter.dims(), &rounded.dims())?;
        checks::dtype("rounded parameter", self.dtype, rounded.dtype())?;
        checks::device("rounded parameter", &self.device, &rounded.device())?;
        checks::plain("rounded parameter", &rounded.device())?;
        self.rounded = Some(rounded.into_dispatch());
        Ok(self)
    }

    /// The parameter, its moments, and its rounded copy if there was one.
    ///
    /// # Panics
    /// If `D` is not the rank of the parameter.
    pub fn into_tensors<const D: usize>(self) -> (Tensor<D>, [Tensor<D>; 2], Option<Tensor<D>>) {
        let moments = [self.first, self.second].map(Tensor::from_dispatch);
        let rounded = self.rounded.map(Tensor::from_dispatch);
        (Tensor::from_dispatch(self.parameter), moments, rounded)
    }
}

/// One step of AdamW for every parameter, its gradient multiplied by `factor`, `[1]` in `f32` on the same device. `numbers`
/// are those of an [`AdamwStep`] or of [`sgd`] ([`adamw_numbers`]), on the same device too.
///
/// A factor of 0 marks gradients that overflowed: the step is skipped and nothing changes. Nothing is read back from the
/// device. Tensors without another owner are updated in place.
///
/// Source: Loshchilov & Hutter, *Decoupled Weight Decay Regularization* (2019), algorithm 2.
///
/// # Errors
/// A factor or numbers of the wrong shape or dtype, or on an autodiff device; tensors on different devices. Nothing has changed
/// then.
pub fn adamw(
    tensors: Vec<AdamwTensors>,
    factor: Tensor<1>,
    numbers: Tensor<1>,
) -> Result<Vec<AdamwTensors>, Error> {
    checks::shape("factor", &[1], &factor.dims())?;
    checks::dtype("factor", DType::F32, factor.dtype())?;
    checks::plain("factor", &factor.device())?;
    checks::fits("numbers", &factor, &numbers, &[NUMBERS])?;
    checks::plain("numbers", &numbers.device())?;
    together(&tensors, &factor.device())?;
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
            rest.push((tensors.dtype, tensors.device, tensors.decays));
            group_tensors.push(Member {
                parameter: tensors.parameter,
                gradient: tensors.gradient,
                first: tensors.first,
                second: tensors.second,
                rounded: Maybe::from_option(tensors.rounded),
            });
        }
        let group_tensors = Members::from_vec(group_tensors);
        let (factor, numbers) = (factor.clone(), numbers.clone());
        let done = <Dispatch as OptimizerOps>::adamw(group_tensors, factor, numbers, decays);
        for ((i, member), (dtype, device, decays)) in
            group.into_iter().zip(done.into_vec()).zip(rest)
        {
            updated[i] = Some(AdamwTensors {
                parameter: member.parameter,
                gradient: member.gradient,
                first: member.first,
                second: member.second,
                rounded: member.rounded.into_option(),
                dtype,
                device,
                decays,
            });
        }
    }
    Ok(updated.into_iter().flatten().collect())
}

/// Refuses tensors on another device.
fn together(tensors: &[AdamwTensors], device: &Device) -> Result<(), Error> {
    let mut devices = tensors.iter().map(|tensors| &tensors.device);
    devices.try_for_each(|found| checks::device("parameter", device, found))
}

/// The numbers of a step for [`adamw`] on the host.
pub type AdamwNumbers = [f32; NUMBERS];

/// The numbers of a step for [`adamw`], those of an [`AdamwStep`] or of [`sgd`], on `device`.
pub fn adamw_numbers(numbers: AdamwNumbers, device: &Device) -> Tensor<1> {
    Tensor::from_floats(numbers, &device.clone().without_autodiff())
}

/// `Σ g²` over the gradients of all tensors, `[1]` in `f32`; `None` without tensors.
///
/// # Panics
/// For tensors on different devices.
pub fn square_sum(tensors: &[AdamwTensors]) -> Option<Tensor<1>> {
    let first = tensors.first()?;
    together(tensors, &first.device).unwrap_or_else(|error| panic!("square_sum: {error}"));
    let waiting: Vec<Option<AdamwTensors>> = tensors.iter().cloned().map(Some).collect();
    let mut total: Option<DispatchTensor> = None;
    for group in groups(&waiting) {
        let gradients = group.iter().map(|&i| tensors[i].gradient.clone()).collect();
        let before = Maybe::from_option(total.take());
        let sum = <Dispatch as OptimizerOps>::square_sum(Tensors::from_vec(gradients), before);
        total = Some(sum);
    }
    total.map(Tensor::from_dispatch)
}

/// The factor that scales gradients to a norm of at most `bound`, `[1]`, from the sum of their squares ([`square_sum`]); all in
/// `f32`. NaN where the norm is not finite.
///
/// `scale` holds the [numbers](LossScaleNumbers::numbers) of the loss scale, `[3]`. With it, the norm and the result are
/// divided by the scale; a norm that is not finite gives 0, a step to skip; and the scale adapts, in place if it has no other
/// owner: it halves at a skipped step and doubles after 2000 other steps in a row. Nothing is read back.
///
/// Source: Micikevicius et al., *Mixed Precision Training* (2018), section 3.2.
///
/// # Errors
/// Squares or a scale of the wrong shape or dtype, on different devices, or on an autodiff device.
pub fn clip_factor(
    squares: Tensor<1>,
    bound: f64,
    scale: Option<Tensor<1>>,
) -> Result<(Tensor<1>, Option<Tensor<1>>), Error> {
    checks::shape("squares", &[1], &squares.dims())?;
    checks::dtype("squares", DType::F32, squares.dtype())?;
    checks::plain("squares", &squares.device())?;
    checks::optional("scale", &squares, scale.as_ref(), &[SCALE_NUMBERS])?;
    if let Some(scale) = &scale {
        checks::plain("scale", &scale.device())?;
    }
    let scale = Maybe::from_option(scale.map(Tensor::into_dispatch));
    let clipped =
        <Dispatch as OptimizerOps>::clip_factor(squares.into_dispatch(), scale, bound as f32);
    let scale = clipped.scale.into_option().map(Tensor::from_dispatch);
    Ok((Tensor::from_dispatch(clipped.factor), scale))
}

/// Tensors that one call of a backend takes: as many as [`Members`] holds, with gradients of one dtype, all with a rounded
/// copy or none.
fn groups(tensors: &[Option<AdamwTensors>]) -> Vec<Vec<usize>> {
    let mut groups: Vec<((DType, bool), Vec<usize>)> = Vec::new();
    for (i, tensors) in tensors.iter().enumerate() {
        let Some(tensors) = tensors else { continue };
        let kind = (tensors.dtype, tensors.rounded.is_some());
        let open = groups
            .iter_mut()
            .rev()
            .find(|(of, group)| *of == kind && group.len() < GROUP);
        match open {
            Some((_, group)) => group.push(i),
            None => groups.push((kind, vec![i])),
        }
    }
    groups.into_iter().map(|(_, group)| group).collect()
}

/// Result of [`clip_factor`] on a backend.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "cube"))]
pub struct Clipped<B: Backend> {
    /// `[1]` in `f32`.
    pub factor: FloatTensor<B>,
    /// The adapted scale, where there was one.
    #[extension_type]
    pub scale: Maybe<B>,
}

#[cfg(feature = "cube")]
mod fused {
    //! The shapes of the outputs, which fusion needs before an operation runs.

    use super::ClippedMetadata;
    use crate::ops::support::MaybeMetadata;
    use burn::backend::fusion::custom::TensorSpec;
    use burn::tensor::{DType, Shape};

    pub(super) fn number() -> TensorSpec {
        TensorSpec::new(Shape::new([1]), DType::F32)
    }

    pub(super) fn clipped(scale: &MaybeMetadata) -> ClippedMetadata {
        ClippedMetadata {
            factor: number(),
            scale: scale.clone(),
        }
    }
}

/// [`adamw`], [`square_sum`] and [`clip_factor`] on a backend. Shapes and dtypes have been checked.
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
        #[extension_type] gradients: Tensors<Self>,
        #[extension_type] before: Maybe<Self>,
    ) -> FloatTensor<Self>;

    /// The clipping factor and the adapted loss scale.
    #[fusion(meta = |_squares, scale, _bound| fused::clipped(scale))]
    fn clip_factor(
        squares: FloatTensor<Self>,
        #[extension_type] scale: Maybe<Self>,
        bound: f32,
    ) -> Clipped<Self>;
}
