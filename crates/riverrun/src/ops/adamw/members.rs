//! Several tensors as one argument: backends take no lists.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, ExtensionType};

use crate::ops::support::Maybe;

/// Tensors of a group.
pub(super) const GROUP: usize = 8;

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
    /// Where the updated parameter goes too, in the dtype of the gradient; in all members of a call or in none.
    #[extension_type]
    pub rounded: Maybe<B>,
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

/// A fixed-size group of eight: extension methods cannot take a `Vec`.
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
            pub(in crate::ops) fn from_vec(items: Vec<$item>) -> Self {
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
            pub(in crate::ops) fn into_vec(self) -> Vec<$item> {
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
