//! CUDA, ROCm, Vulkan, Metal and WebGPU, through CubeCL.

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, Shape as Dims};
use burn_cubecl::CubeBackend;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
#[cfg(all(feature = "cuda", unix))]
use riverrun_kernels::attention::vendor::Layout;
use riverrun_kernels::attention::{Problem, Shape, gpu};

#[cfg(all(feature = "cuda", unix))]
use super::route;
use super::{AttentionGradients, AttentionOps, packed};
use crate::ops::support::Maybe;
use crate::ops::support::cube::{dtype, empty_like, handle, into_contiguous};

impl AttentionOps for CubeBackend {
    fn attention_forward(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        reset: Maybe<Self>,
        problem: Problem,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let (client, dtype) = (q.client.clone(), dtype(&q));
        let (o, lse) = outputs(&q, problem.shape);
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
            match vendor.forward(&client, &problem, dtype, &args, Layout::Separate) {
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
            match vendor.backward(&client, &problem, dtype, &args, None, Layout::Separate) {
                Ok(()) => return d,
                Err(reason) => route::refused(&problem, &reason),
            }
        }
        gpu::backward(&client, &problem, dtype, &args, None)
            .unwrap_or_else(|error| panic!("{error}"));
        d
    }

    fn packed_attention_forward(
        qkv: FloatTensor<Self>,
        reset: Maybe<Self>,
        problem: Problem,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        #[cfg(all(feature = "cuda", unix))]
        if let Some(done) = vendor::packed_forward(&qkv, &reset, &problem) {
            return done;
        }
        packed::forward(qkv, reset, problem)
    }

    fn packed_attention_backward(
        qkv: FloatTensor<Self>,
        reset: Maybe<Self>,
        o: FloatTensor<Self>,
        lse: FloatTensor<Self>,
        d_o: FloatTensor<Self>,
        problem: Problem,
    ) -> FloatTensor<Self> {
        #[cfg(all(feature = "cuda", unix))]
        if let Some(d_qkv) = vendor::packed_backward(&qkv, &reset, [&o, &lse, &d_o], &problem) {
            return d_qkv;
        }
        packed::backward(qkv, reset, [o, lse, d_o], problem)
    }
}

/// The outputs of a forward pass.
fn outputs(like: &CubeTensor, shape: Shape) -> (CubeTensor, CubeTensor) {
    let (client, device) = (like.client.clone(), like.device.clone());
    let dims = Dims::new([shape.batch, shape.queries, shape.heads, shape.dim]);
    let o = empty_like(like, dims);
    let rows = Dims::new([shape.batch, shape.heads, shape.queries]);
    let lse = empty_device_contiguous_dtype(client, device, rows, DType::F32);
    (o, lse)
}

#[cfg(all(feature = "cuda", unix))]
mod vendor {
    //! Packed inputs by cuDNN, which reads them where they are; `None` where it does not take them.

    use riverrun_kernels::attention::vendor::packed_parts;

    use super::*;

    pub(super) fn packed_forward(
        qkv: &CubeTensor,
        reset: &Maybe<CubeBackend>,
        problem: &Problem,
    ) -> Option<(CubeTensor, CubeTensor)> {
        let reset = matches!(reset, Maybe::Some(_));
        let (client, dtype) = (qkv.client.clone(), dtype(qkv));
        let vendor = route::vendor(&client, &qkv.device, problem, dtype, reset)?;
        let (o, lse) = outputs(qkv, problem.shape);
        let qkv = into_contiguous(qkv.clone()).handle;
        let [q, k, v] = packed_parts(&qkv, problem.shape, dtype);
        let args = gpu::Forward {
            q,
            k,
            v,
            reset: None,
            o: o.handle.clone(),
            lse: lse.handle.clone(),
        };
        let done = vendor.forward(&client, problem, dtype, &args, Layout::Packed);
        let done = done.map_err(|reason| route::refused(problem, &reason));
        done.ok().map(|()| (o, lse))
    }

    pub(super) fn packed_backward(
        qkv: &CubeTensor,
        reset: &Maybe<CubeBackend>,
        [o, lse, d_o]: [&CubeTensor; 3],
        problem: &Problem,
    ) -> Option<CubeTensor> {
        let reset = matches!(reset, Maybe::Some(_));
        let (client, dtype) = (qkv.client.clone(), dtype(qkv));
        let vendor = route::vendor(&client, &qkv.device, problem, dtype, reset)?;
        let d_qkv = empty_like(qkv, qkv.shape());
        let dense = |tensor: &CubeTensor| into_contiguous(tensor.clone()).handle;
        let [q, k, v] = packed_parts(&dense(qkv), problem.shape, dtype);
        let [d_q, d_k, d_v] = packed_parts(&d_qkv.handle, problem.shape, dtype);
        let args = gpu::Backward {
            q,
            k,
            v,
            reset: None,
            o: dense(o),
            lse: dense(lse),
            d_o: dense(d_o),
            d_q,
            d_k,
            d_v,
        };
        let done = vendor.backward(&client, problem, dtype, &args, None, Layout::Packed);
        let done = done.map_err(|reason| route::refused(problem, &reason));
        done.ok().map(|()| d_qkv)
    }
}
