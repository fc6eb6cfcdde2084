//! A tensor that an operation may do without.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, ExtensionType};

/// A tensor that may be absent.
#[derive(Debug, ExtensionType)]
#[extension_type(fusion: cfg(feature = "cube"))]
pub enum Maybe<B: Backend> {
    /// It is there.
    Some(FloatTensor<B>),
    /// It is not.
    None,
}

impl<B: Backend> Maybe<B> {
    /// The tensor, if there is one.
    pub fn from_option(tensor: Option<FloatTensor<B>>) -> Self {
        tensor.map_or(Maybe::None, Maybe::Some)
    }

    /// Another tensor in the place of one that is there.
    pub(crate) fn map(self, f: impl FnOnce(FloatTensor<B>) -> FloatTensor<B>) -> Self {
        Self::from_option(self.into_option().map(f))
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
