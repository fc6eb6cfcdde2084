//! CUDA, ROCm, Vulkan, Metal and WebGPU, through CubeCL.

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, Shape};
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use riverrun_kernels::attention::{Problem, gpu};

#[cfg(all(feature = "cuda", unix))]
use super::route;
use super::{AttentionGradients, AttentionOps};
use crate::ops::support::Maybe;
use crate::ops::support::cube::{dtype, empty_like, handle};

impl AttentionOps for CubeBackend {
    fn attention_forward(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        reset: Maybe<Self>,
        problem: Problem,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let shape = problem.shape;
        let (client, dtype) = (q.client.clone(), dtype(&q));
        let o = empty_like(&q, q.shape());
        let rows = Shape::new([shape.batch, shape.heads, shape.queries]);
        let lse = empty_device_contiguous_dtype(client.clone(), q.device.clone(), rows, DType::F32);
        let args = gpu::Forward {
            q: into_contiguous(q).handle,
            k: into_contiguous(k).handle,
            v: into_contiguous(v).handle,
            reset: handle(reset),
            o: o.handle.clone(),
            lse: lse.handle.clone(),
        };
        #[cfg(all(feature = "cuda", unix))]
        if let Some(vendor) =
            route::vendor(&client, &o.device, &problem, dtype, args.reset.is_some())
        {
            match vendor.forward(&client, &problem, dtype, &args) {
                Ok(()) => return (o, lse),
                Err(reason) => route::refused(&problem, &reason),
            }
        }
        gpu::forward(&client, &problem, dtype, &args, None)
            .unwrap_or_else(|error| panic!("{error}"));
        (o, lse)
    }

    fn attention_backward(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        reset: Maybe<Self>,
        o: FloatTensor<Self>,
        lse: FloatTensor<Self>,
        d_o: FloatTensor<Self>,
        problem: Problem,
    ) -> AttentionGradients<Self> {
        let (client, dtype) = (q.client.clone(), dtype(&q));
        let d = AttentionGradients::<Self> {
            q: empty_like(&q, q.shape()),
            k: empty_like(&q, k.shape()),
            v: empty_like(&q, v.shape()),
        };
        let args = gpu::Backward {
            q: into_contiguous(q).handle,
            k: into_contiguous(k).handle,
            v: into_contiguous(v).handle,
            reset: handle(reset),
            o: into_contiguous(o).handle,
            lse: into_contiguous(lse).handle,
            d_o: into_contiguous(d_o).handle,
            d_q: d.q.handle.clone(),
            d_k: d.k.handle.clone(),
            d_v: d.v.handle.clone(),
        };
        #[cfg(all(feature = "cuda", unix))]
        if let Some(vendor) =
            route::vendor(&client, &d.q.device, &problem, dtype, args.reset.is_some())
        {
            match vendor.backward(&client, &problem, dtype, &args, None) {
                Ok(()) => return d,
                Err(reason) => route::refused(&problem, &reason),
            }
        }
        gpu::backward(&client, &problem, dtype, &args, None)
            .unwrap_or_else(|error| panic!("{error}"));
        d
    }
}
