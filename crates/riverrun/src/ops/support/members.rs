//! Several tensors as one argument: backends take no lists.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, ExtensionType};

use super::Maybe;

/// Tensors of a group.
pub(crate) const GROUP: usize = 8;

/// A fixed-size group of eight: extension methods cannot take a `Vec`.
macro_rules! eight {
    ($(#[$doc:meta])* $name:ident of $item:ty as $maybe:ident) => {
        $(#[$doc])*
        #[derive(ExtensionType)]
        #[extension_type(fusion: cfg(feature = "cube"))]
        pub struct $name<B: Backend> {
            /// The first member.
            #[extension_type]
            pub a: $maybe<B>,
            /// The second member.
            #[extension_type]
            pub b: $maybe<B>,
            /// The third member.
            #[extension_type]
            pub c: $maybe<B>,
            /// The fourth member.
            #[extension_type]
            pub d: $maybe<B>,
            /// The fifth member.
            #[extension_type]
            pub e: $maybe<B>,
            /// The sixth member.
            #[extension_type]
            pub f: $maybe<B>,
            /// The seventh member.
            #[extension_type]
            pub g: $maybe<B>,
            /// The eighth member.
            #[extension_type]
            pub h: $maybe<B>,
        }

        impl<B: Backend> $name<B> {
            /// A group of at most eight.
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

            /// The members that are present.
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

pub(crate) use eight;

eight! {
    /// Tensors that go into one call.
    Tensors of FloatTensor<B> as Maybe
}

/// An optional group of [`Tensors`].
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "cube"))]
pub enum MaybeTensors<B: Backend> {
    /// Present.
    Some(#[extension_type] Tensors<B>),
    /// Absent.
    None,
}

eight! {
    /// Groups of tensors that go into one call: as many as [`MANY`].
    Many of Tensors<B> as MaybeTensors
}

/// Tensors of [`Many`].
pub(crate) const MANY: usize = GROUP * GROUP;

impl<B: Backend> Many<B> {
    /// At most [`MANY`] tensors.
    pub(in crate::ops) fn from_tensors(tensors: Vec<FloatTensor<B>>) -> Self {
        let mut tensors = tensors.into_iter().peekable();
        let mut groups = Vec::new();
        while tensors.peek().is_some() {
            groups.push(Tensors::from_vec(tensors.by_ref().take(GROUP).collect()));
        }
        Self::from_vec(groups)
    }

    /// The tensors that are present.
    pub(in crate::ops) fn into_tensors(self) -> Vec<FloatTensor<B>> {
        let groups = self.into_vec().into_iter();
        groups.flat_map(Tensors::into_vec).collect()
    }
}
