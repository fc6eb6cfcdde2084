//! Many tensors as one vector: sums of vectors added to them, and copies from one form to the other.

#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "flex")]
mod flex;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, DispatchTensor, backend_extension};
use burn::tensor::{DType, Device, Tensor};
use riverrun_kernels::flat::DIRECTIONS;
pub use riverrun_kernels::flat::Place as FlatPlace;

use super::support::checks;
use super::support::members::{GROUP, Tensors};
use crate::Error;

/// A tensor of any rank, and its place in vectors that hold the elements of many tensors one after another.
#[derive(Debug, Clone)]
pub struct FlatTensor {
    tensor: DispatchTensor,
    dtype: DType,
    device: Device,
    place: FlatPlace,
    kept: bool,
}

impl FlatTensor {
    /// From a tensor in `f32`, `f16` or `bf16` that is not on an autodiff device, its first element's index in vectors, and its
    /// group: the row of its coefficients in [`add_directions`].
    ///
    /// # Errors
    /// [`Error::Dtype`] for another dtype, [`Error::Device`] for a tensor on an autodiff device.
    pub fn new<const D: usize>(
        tensor: Tensor<D>,
        start: usize,
        group: usize,
    ) -> Result<Self, Error> {
        checks::plain("a tensor", &tensor.device())?;
        if !matches!(tensor.dtype(), DType::F32 | DType::F16 | DType::BF16) {
            return Err(Error::Dtype {
                what: "a tensor",
                expected: "F32, F16 or BF16".into(),
                found: format!("{:?}", tensor.dtype()),
            });
        }
        let place = FlatPlace {
            start,
            len: tensor.dims().iter().product(),
            group,
        };
        Ok(Self {
            dtype: tensor.dtype(),
            device: tensor.device(),
            tensor: tensor.into_dispatch(),
            place,
            kept: false,
        })
    }

    /// Refuses a change of the tensor's memory: one that [recorded](crate::Recording) launches know. A change panics then if
    /// another tensor shares the memory.
    pub fn with_kept_memory(mut self) -> Self {
        self.kept = true;
        self
    }

    /// Its place in vectors.
    pub fn place(&self) -> FlatPlace {
        self.place
    }

    /// The tensor.
    ///
    /// # Panics
    /// If `D` is not its rank.
    pub fn into_tensor<const D: usize>(self) -> Tensor<D> {
        Tensor::from_dispatch(self.tensor)
    }
}

/// Adds `Σₖ c[j, k] directions[k]` to every tensor, with the row `j` of its group in `coefficients`, `[groups, directions]`.
/// Everything is in `f32` and on one device; at most four directions, all of one length, which no tensor's place exceeds.
///
/// Tensors without another owner are changed in place; on GPUs all go into a few launches, and nothing is read back.
///
/// # Errors
/// [`Error::Shape`], [`Error::Dtype`] or [`Error::Device`] for directions or coefficients that do not fit together;
/// [`Error::Kernel`] for more than four directions, a place outside of them, or a group without a row. Nothing has changed
/// then.
pub fn add_directions(
    tensors: Vec<FlatTensor>,
    directions: &[Tensor<1>],
    coefficients: Tensor<2>,
) -> Result<Vec<FlatTensor>, Error> {
    let [groups, _] = coefficients.dims();
    checks::dtype("coefficients", DType::F32, coefficients.dtype())?;
    checks::plain("coefficients", &coefficients.device())?;
    checks::shape(
        "coefficients",
        &[groups, directions.len()],
        &coefficients.dims(),
    )?;
    if directions.len() > DIRECTIONS {
        return Err(riverrun_kernels::Error::Length {
            what: "directions, at most",
            expected: DIRECTIONS,
            found: directions.len(),
        }
        .into());
    }
    let Some(first) = directions.first() else {
        return Ok(tensors);
    };
    for direction in directions {
        checks::fits("a direction", &coefficients, direction, &first.dims())?;
        checks::plain("a direction", &direction.device())?;
    }
    inside(&tensors, first)?;
    for tensor in &tensors {
        checks::dtype("a tensor", DType::F32, tensor.dtype)?;
    }
    if let Some(tensor) = tensors.iter().find(|tensor| tensor.place.group >= groups) {
        return Err(riverrun_kernels::Error::Length {
            what: "rows of coefficients",
            expected: tensor.place.group.saturating_add(1),
            found: groups,
        }
        .into());
    }
    let coefficients = coefficients.into_dispatch();
    let call = |tensors, places, kept| {
        let directions = directions.iter().cloned().map(Tensor::into_dispatch);
        let directions = Tensors::from_vec(directions.collect());
        <Dispatch as FlatOps>::flat_add(tensors, directions, coefficients.clone(), places, kept)
    };
    Ok(in_groups(tensors, call))
}

/// Every tensor with its elements out of `vector`, which is in the tensors' dtype and on their device. Tensors without another owner
/// are changed in place; on GPUs all go into a few launches, and nothing is read back.
///
/// # Errors
/// [`Error::Dtype`]; [`Error::Device`] for tensors that are not on one device without autodiff; [`Error::Kernel`] for a place outside of the vector. Nothing has changed then.
pub fn from_flat(tensors: Vec<FlatTensor>, vector: &Tensor<1>) -> Result<Vec<FlatTensor>, Error> {
    inside(&tensors, vector)?;
    let call = |tensors, places, kept| {
        let vector = vector.clone().into_dispatch();
        <Dispatch as FlatOps>::flat_put(tensors, vector, places, kept)
    };
    Ok(in_groups(tensors, call))
}

/// `vector` with the elements of every tensor at its place, and the others as they were. It is in the tensors' dtype and on
/// their device, and changed in place if it has no other owner; on GPUs all tensors go into a few launches, and nothing is read
/// back.
///
/// # Errors
/// [`Error::Dtype`]; [`Error::Device`] for tensors that are not on one device without autodiff; [`Error::Kernel`] for a place outside of the vector. Nothing has changed then.
pub fn to_flat(tensors: &[FlatTensor], vector: Tensor<1>) -> Result<Tensor<1>, Error> {
    inside(tensors, &vector)?;
    let mut vector = vector.into_dispatch();
    for group in tensors.chunks(GROUP) {
        let places = group.iter().map(|tensor| tensor.place).collect();
        let group = group.iter().map(|tensor| tensor.tensor.clone()).collect();
        vector = <Dispatch as FlatOps>::flat_take(Tensors::from_vec(group), vector, places);
    }
    Ok(Tensor::from_dispatch(vector))
}

/// Refuses places outside of a vector.
fn inside(tensors: &[FlatTensor], vector: &Tensor<1>) -> Result<(), Error> {
    checks::plain("a vector", &vector.device())?;
    let [total] = vector.dims();
    for tensor in tensors {
        checks::dtype("a vector", tensor.dtype, vector.dtype())?;
        checks::device("a vector", &tensor.device, &vector.device())?;
        tensor.place.check("a vector", total)?;
    }
    Ok(())
}

/// Calls a backend with as many tensors as it takes.
fn in_groups(
    tensors: Vec<FlatTensor>,
    call: impl Fn(Tensors<Dispatch>, Vec<FlatPlace>, bool) -> Tensors<Dispatch>,
) -> Vec<FlatTensor> {
    let mut changed = Vec::with_capacity(tensors.len());
    let mut waiting = tensors.into_iter().peekable();
    while waiting.peek().is_some() {
        let (mut group, mut rest) = (Vec::new(), Vec::new());
        for flat in waiting.by_ref().take(GROUP) {
            group.push(flat.tensor);
            rest.push((flat.dtype, flat.device, flat.place, flat.kept));
        }
        let places = rest.iter().map(|(.., place, _)| *place).collect();
        let kept = rest.iter().any(|(.., kept)| *kept);
        let done = call(Tensors::from_vec(group), places, kept).into_vec();
        for (tensor, (dtype, device, place, kept)) in done.into_iter().zip(rest) {
            changed.push(FlatTensor {
                tensor,
                dtype,
                device,
                place,
                kept,
            });
        }
    }
    changed
}

/// [`add_directions`], [`from_flat`] and [`to_flat`] on a backend. Shapes, dtypes and places have been checked.
#[backend_extension(
    Flex: cfg(feature = "flex"),
    Cube: cfg(feature = "cube"),
    Fusion: cfg(feature = "cube"),
)]
pub trait FlatOps: Backend {
    /// The changed tensors; with `kept`, in the memory where they are.
    #[fusion(meta = |tensors, _directions, _coefficients, _places, _kept| tensors.clone())]
    fn flat_add(
        #[extension_type] tensors: Tensors<Self>,
        #[extension_type] directions: Tensors<Self>,
        coefficients: FloatTensor<Self>,
        places: Vec<FlatPlace>,
        kept: bool,
    ) -> Tensors<Self>;

    /// The tensors with the elements of the vector; with `kept`, in the memory where they are.
    #[fusion(meta = |tensors, _vector, _places, _kept| tensors.clone())]
    fn flat_put(
        #[extension_type] tensors: Tensors<Self>,
        vector: FloatTensor<Self>,
        places: Vec<FlatPlace>,
        kept: bool,
    ) -> Tensors<Self>;

    /// The vector with the elements of the tensors.
    #[fusion(meta = |_tensors, vector, _places| vector.clone())]
    fn flat_take(
        #[extension_type] tensors: Tensors<Self>,
        vector: FloatTensor<Self>,
        places: Vec<FlatPlace>,
    ) -> FloatTensor<Self>;
}
