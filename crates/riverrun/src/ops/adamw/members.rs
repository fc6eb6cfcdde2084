//! The tensors of an AdamW step as one argument.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, ExtensionType};

use crate::ops::support::Maybe;
use crate::ops::support::members::{GROUP, eight};

/// A parameter, its gradient and moments on a backend.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "cube"))]
pub struct Member<B: Backend> {
    /// The parameter, in `f32`.
    pub parameter: FloatTensor<B>,
    /// The gradient, in the shape of the parameter.
    pub gradient: FloatTensor<B>,
    /// The first moment, in `f32`.
    pub first: FloatTensor<B>,
    /// The second moment, in `f32`.
    pub second: FloatTensor<B>,
    /// A second output of the updated parameter, in the dtype of the gradient; in all members of a call or in none.
    #[extension_type]
    pub rounded: Maybe<B>,
}

/// An optional [`Member`].
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "cube"))]
pub enum MaybeMember<B: Backend> {
    /// Present.
    Some(#[extension_type] Member<B>),
    /// Absent.
    None,
}

eight! {
    /// Parameters that are updated together.
    Members of Member<B> as MaybeMember
}
