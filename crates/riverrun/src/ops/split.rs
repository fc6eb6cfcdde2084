//! Parts of a tensor's last dimension: the gradients of all parts become that of the whole in one concatenation.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, TensorMetadata, backend_extension};
use burn::tensor::{Slice, Tensor};

use super::support::members::{GROUP, Tensors};

/// `x` cut along its last dimension into parts of these widths, whose sum is that of `x`; at most eight.
///
/// A slice's gradient is zeros of the size of the whole around it, and those of several slices are added up: three passes over
/// memory for each part. These write each number once.
pub(crate) fn split<const D: usize, const N: usize>(
    x: Tensor<D>,
    widths: [usize; N],
) -> [Tensor<D>; N] {
    debug_assert_eq!(widths.iter().sum::<usize>(), x.dims()[D - 1]);
    let parts = <Dispatch as SplitOps>::split(x.into_dispatch(), widths.to_vec());
    let mut parts = parts.into_vec().into_iter().map(Tensor::from_dispatch);
    std::array::from_fn(|_| parts.next().expect("as many parts as widths"))
}

/// [`split`] on a backend.
#[backend_extension(
    Flex: cfg(feature = "flex"),
    Cube: cfg(feature = "cube"),
    Fusion: cfg(feature = "cube"),
    Autodiff: cfg(feature = "autodiff"),
)]
pub trait SplitOps: Backend {
    /// At most eight parts.
    #[fusion(default)]
    fn split(x: FloatTensor<Self>, widths: Vec<usize>) -> Tensors<Self> {
        assert!(widths.len() <= GROUP, "more parts than one call takes");
        let shape = x.shape();
        let last = shape.num_dims() - 1;
        let mut start = 0;
        let part = |width: &usize| {
            let mut slices: Vec<Slice> = (0..last).map(|i| (0..shape[i]).into()).collect();
            slices.push((start..start + width).into());
            start += width;
            Self::float_slice(x.clone(), &slices)
        };
        Tensors::from_vec(widths.iter().map(part).collect())
    }
}

#[cfg(feature = "flex")]
impl SplitOps for burn::backend::Flex {}

#[cfg(feature = "cube")]
impl SplitOps for burn_cubecl::CubeBackend {}

#[cfg(feature = "autodiff")]
mod autodiff {
    use burn::backend::Autodiff;
    use burn::tensor::Shape;
    use burn_autodiff::checkpoint::base::Checkpointer;
    use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
    use burn_autodiff::grads::Gradients;
    use burn_autodiff::ops::{Backward, Ops, OpsKind};

    use super::*;
    use crate::ops::support::autodiff::{Slot, output};

    /// Parent: the whole.
    #[derive(Debug)]
    struct Split;

    #[derive(Debug, Clone)]
    struct Saved<B: Backend> {
        shape: Shape,
        parts: Vec<(usize, Slot<B>)>,
    }

    impl<B: SplitOps> Backward<B, 1> for Split {
        type State = Saved<B>;

        fn backward(
            self,
            ops: Ops<Self::State, 1>,
            grads: &mut Gradients,
            _checkpointer: &mut Checkpointer,
        ) {
            let Saved { shape, parts } = ops.state;
            let last = shape.num_dims() - 1;
            let found: Vec<_> = parts
                .iter()
                .map(|(width, slot)| (*width, slot.take()))
                .collect();
            let (Some(like), [Some(parent)]) =
                (found.iter().find_map(|(_, d)| d.clone()), ops.parents)
            else {
                return;
            };
            let parts = found.into_iter().map(|(width, d)| {
                d.unwrap_or_else(|| {
                    let mut part = shape.clone();
                    part[last] = width;
                    B::float_zeros(part, &like.device(), like.dtype().into())
                })
            });
            grads.register::<B>(parent.id, B::float_cat(parts.collect(), last));
        }
    }

    impl<B: SplitOps, C: CheckpointStrategy> SplitOps for Autodiff<B, C> {
        fn split(x: FloatTensor<Self>, widths: Vec<usize>) -> Tensors<Self> {
            let slots: Vec<Slot<B>> = widths.iter().map(|_| Slot::default()).collect();
            let prep = Backward::<B, 1>::prepare::<C>(Split, [x.node()]).compute_bound();
            let whole = x.into_primitive();
            let core = match prep.stateful() {
                OpsKind::Tracked(prep) => {
                    let parts = widths.iter().copied().zip(slots.iter().cloned());
                    let saved = Saved {
                        shape: whole.shape(),
                        parts: parts.collect(),
                    };
                    prep.finish(saved, whole.clone())
                }
                OpsKind::UnTracked(prep) => prep.finish(whole.clone()),
            };
            let parts = B::split(whole, widths).into_vec().into_iter().zip(slots);
            Tensors::from_vec(
                parts
                    .map(|(part, slot)| output::<B, C>(&core, part, slot))
                    .collect(),
            )
        }
    }
}
