//! CUDA, ROCm, Vulkan, Metal and WebGPU, through CubeCL.

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, Shape};
use burn_cubecl::CubeBackend;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use riverrun_kernels::adamw::gpu::{Buffers, clip, square_sum, update};

use super::{Clipped, Member, Members, OptimizerOps};
use crate::ops::support::Maybe;
use crate::ops::support::cube::{dtype, into_contiguous, own};
use crate::ops::support::members::Tensors;

impl OptimizerOps for CubeBackend {
    fn adamw(
        members: Members<Self>,
        factor: FloatTensor<Self>,
        numbers: FloatTensor<Self>,
        decays: u32,
    ) -> Members<Self> {
        let ready = |member: Member<Self>| Member {
            parameter: own(member.parameter),
            gradient: into_contiguous(member.gradient),
            first: own(member.first),
            second: own(member.second),
            rounded: member.rounded.map(own),
        };
        let members: Vec<Member<Self>> = members.into_vec().into_iter().map(ready).collect();
        let buffers = |(n, member): (usize, &Member<Self>)| Buffers {
            len: member.parameter.shape().num_elements(),
            p: member.parameter.handle.clone(),
            g: member.gradient.handle.clone(),
            m: member.first.handle.clone(),
            v: member.second.handle.clone(),
            rounded: match &member.rounded {
                Maybe::Some(rounded) => Some(rounded.handle.clone()),
                Maybe::None => None,
            },
            decays: decays >> n & 1 != 0,
        };
        if let Some(first) = members.first() {
            let tensors: Vec<Buffers> = members.iter().enumerate().map(buffers).collect();
            let (client, dtype) = (&first.parameter.client, dtype(&first.gradient));
            update(
                client,
                dtype,
                &into_contiguous(numbers).handle,
                &into_contiguous(factor).handle,
                &tensors,
            )
            .unwrap_or_else(|error| panic!("{error}"));
        }
        Members::from_vec(members)
    }

    fn square_sum(gradients: Tensors<Self>, before: Maybe<Self>) -> FloatTensor<Self> {
        let gradients: Vec<CubeTensor> = gradients
            .into_vec()
            .into_iter()
            .map(into_contiguous)
            .collect();
        let first = gradients.first().expect("groups are not empty");
        let (client, device) = (first.client.clone(), first.device.clone());
        let total = empty_device_contiguous_dtype(client, device, Shape::new([1]), DType::F32);
        let tensors: Vec<_> = gradients
            .iter()
            .map(|gradient| (gradient.shape().num_elements(), gradient.handle.clone()))
            .collect();
        let before = before.into_option().map(|before| before.handle);
        square_sum(
            &first.client,
            dtype(first),
            &tensors,
            before.as_ref(),
            &total.handle,
        )
        .unwrap_or_else(|error| panic!("{error}"));
        total
    }

    fn clip_factor(squares: FloatTensor<Self>, scale: Maybe<Self>, bound: f32) -> Clipped<Self> {
        let squares = into_contiguous(squares);
        let scale: Maybe<Self> = scale.map(own);
        let (client, device) = (squares.client.clone(), squares.device.clone());
        let factor = empty_device_contiguous_dtype(client, device, Shape::new([1]), DType::F32);
        let place = match &scale {
            Maybe::Some(scale) => Some(&scale.handle),
            Maybe::None => None,
        };
        clip(
            &squares.client,
            &squares.handle,
            bound,
            place,
            &factor.handle,
        )
        .unwrap_or_else(|error| panic!("{error}"));
        Clipped { factor, scale }
    }
}
