//! Structs of tensors, moved from one backend to another.

/// Gives a struct of tensors a method `map`: `f` of each field in `tensors`, `map` of each in `nested`, `rewrap` of each in
/// `integers`.
macro_rules! map_tensors {
    ($name:ident {
        tensors: [$($tensor:ident),*],
        nested: [$($nested:ident),*],
        integers: [$($integers:ident),*]
    }) => {
        impl<B: burn::backend::Backend> $name<B> {
            /// `f` of every float tensor.
            pub(crate) fn map<C>(
                self,
                f: impl Fn(
                    burn::backend::tensor::FloatTensor<B>,
                ) -> burn::backend::tensor::FloatTensor<C> + Copy,
            ) -> $name<C>
            where
                C: burn::backend::Backend<IntTensorPrimitive = B::IntTensorPrimitive>,
            {
                $name {
                    $($tensor: f(self.$tensor),)*
                    $($nested: self.$nested.map(f),)*
                    $($integers: self.$integers.rewrap(),)*
                }
            }
        }
    };
}

pub(crate) use map_tensors;
