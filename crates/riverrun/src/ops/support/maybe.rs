//! Optional tensors as arguments of operations.

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, ExtensionType};

/// A float tensor that may be absent.
#[derive(Debug, ExtensionType)]
#[extension_type(fusion: cfg(feature = "cube"))]
pub enum Maybe<B: Backend> {
    /// Present.
    Some(FloatTensor<B>),
    /// Absent.
    None,
}

/// An integer tensor that may be absent.
#[derive(Debug, ExtensionType)]
#[extension_type(fusion: cfg(feature = "cube"))]
pub enum MaybeInt<B: Backend> {
    /// Present.
    Some(IntTensor<B>),
    /// Absent.
    None,
}

impl<B: Backend> Maybe<B> {
    /// The tensor, if present.
    pub fn from_option(tensor: Option<FloatTensor<B>>) -> Self {
        tensor.map_or(Maybe::None, Maybe::Some)
    }

    /// Maps the tensor, if present.
    pub(crate) fn map<C: Backend>(
        self,
        f: impl FnOnce(FloatTensor<B>) -> FloatTensor<C>,
    ) -> Maybe<C> {
        Maybe::from_option(self.into_option().map(f))
    }

    pub(crate) fn into_option(self) -> Option<FloatTensor<B>> {
        match self {
            Maybe::Some(tensor) => Some(tensor),
            Maybe::None => None,
        }
    }
}

impl<B: Backend> Clone for Maybe<B> {
    fn clone(&self) -> Self {
        match self {
            Maybe::Some(tensor) => Maybe::Some(tensor.clone()),
            Maybe::None => Maybe::None,
        }
    }
}

impl<B: Backend> MaybeInt<B> {
    /// The tensor, if present.
    pub fn from_option(tensor: Option<IntTensor<B>>) -> Self {
        tensor.map_or(MaybeInt::None, MaybeInt::Some)
    }

    pub(crate) fn into_option(self) -> Option<IntTensor<B>> {
        match self {
            MaybeInt::Some(tensor) => Some(tensor),
            MaybeInt::None => None,
        }
    }

    /// The same tensor on the differentiating backend, or on the backend inside it: both have the same integers.
    pub(crate) fn rewrap<C>(self) -> MaybeInt<C>
    where
        C: Backend<IntTensorPrimitive = B::IntTensorPrimitive>,
    {
        MaybeInt::from_option(self.into_option())
    }
}

impl<B: Backend> Clone for MaybeInt<B> {
    fn clone(&self) -> Self {
        match self {
            MaybeInt::Some(tensor) => MaybeInt::Some(tensor.clone()),
            MaybeInt::None => MaybeInt::None,
        }
    }
}
