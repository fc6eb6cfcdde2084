//! Measurements on a GPU: timing by its own clock around series of launches, the copy bandwidth for comparison, random inputs.

use std::time::Duration;

use cubecl::client::Client;
use cubecl::future::block_on;
use cubecl::ir::ElemType;
use cubecl::prelude::*;
use cubecl::server::Handle;
use riverrun_kernels::gpu::Dtype;

use super::timing::{Timing, repeat};
use crate::failure::Failure;
use crate::origin::Origin;
use riverrun_testkit::Storage;

#[cube(launch_unchecked, address_type = "dynamic")]
fn copy_kernel<N: Size>(from: &[Vector<f32, N>], to: &mut [Vector<f32, N>]) {
    if ABSOLUTE_POS < from.len() {
        to[ABSOLUTE_POS] = from[ABSOLUTE_POS];
    }
}

/// A multiplicative hash of the position, scaled into (0, 1).
#[cube(launch_unchecked, address_type = "dynamic")]
fn noise_kernel<F: Float>(to: &mut [F], low: f32, range: f32, #[define(F)] _dtype: ElemType) {
    if ABSOLUTE_POS < to.len() {
        let x = (u32::cast_from(ABSOLUTE_POS) * 2_654_435_761u32) ^ 0x9e37_79b9u32;
        let bits = (x * 2_246_822_519u32) >> 9u32;
        let part = (f32::cast_from(bits) + 0.5f32) / 8_388_608.0f32;
        to[ABSOLUTE_POS] = F::cast_from(low + range * part);
    }
}

/// Device seconds of one call, in a series of calls that takes about a millisecond: the throughput as in a model, without the
/// latency of the first launch.
pub fn device_time(client: &Client, budget: Duration, f: impl Fn() + Send + Sync) -> Timing {
    let time = |calls: usize| {
        let row = || (0..calls).for_each(|_| f());
        let ((), profile) = client.profile(row, "bench").expect("device timing");
        let ticks = block_on(profile.resolve()).expect("timed launches");
        ticks.duration().as_secs_f64() / calls as f64
    };
    f();
    let calls = (1e-3 / time(1)).ceil().clamp(1.0, 64.0) as usize;
    repeat(budget, || time(calls))
}

/// Bytes per second of a copy, read plus written.
pub fn copy(client: &Client, origin: &Origin) -> f64 {
    let software = origin.name.contains("llvmpipe");
    let elements: usize = if software { 1 << 22 } else { 1 << 28 };
    let (from, to) = (client.empty(elements * 4), client.empty(elements * 4));
    let vectors = elements / 4;
    let rows = vectors.div_ceil(256).div_ceil(65_535);
    // Safety: both buffers hold `vectors` vectors, and the kernel checks its position.
    let time = device_time(client, Duration::from_millis(200), || unsafe {
        copy_kernel::launch_unchecked(
            client,
            CubeCount::Static(vectors.div_ceil(256).div_ceil(rows) as u32, rows as u32, 1),
            CubeDim::new_1d(256),
            cubecl::ir::AddressType::U32,
            4,
            BufferArg::from_raw_parts(from.clone(), vectors),
            BufferArg::from_raw_parts(to.clone(), vectors),
        );
    });
    (2 * elements * 4) as f64 / time.median
}

/// Numbers in (0, 1), generated on the device.
pub fn noise(client: &Client, dtype: Dtype, elements: usize) -> Handle {
    noise_within(client, dtype, elements, [0.0, 1.0])
}

/// Numbers between two others, generated on the device.
pub fn noise_within(
    client: &Client,
    dtype: Dtype,
    elements: usize,
    [from, to]: [f32; 2],
) -> Handle {
    let handle = client.empty(elements * dtype.size());
    let cubes = elements.div_ceil(256);
    let rows = cubes.div_ceil(65_535);
    // Safety: the buffer holds `elements`, and the kernel checks its position.
    unsafe {
        noise_kernel::launch_unchecked(
            client,
            CubeCount::Static(cubes.div_ceil(rows) as u32, rows as u32, 1),
            CubeDim::new_1d(256),
            if elements < 1 << 30 {
                cubecl::ir::AddressType::U32
            } else {
                cubecl::ir::AddressType::U64
            },
            BufferArg::from_raw_parts(handle.clone(), elements),
            from,
            to - from,
            dtype.elem(),
        );
    }
    handle
}

/// The type of a kernel; [`Report::dtypes`](super::report::Report::dtypes) has refused those that kernels do not have.
pub fn dtype_of(storage: Storage) -> Dtype {
    storage.on_gpu().expect("a type of GPUs")
}

/// The tuning of riverrun, and those of `--tunings`, four numbers each.
pub fn tunings<T>(
    texts: &[String],
    new: impl Fn([usize; 4]) -> T,
) -> Result<Vec<(String, Option<T>)>, Failure> {
    let default = Ok(("default".to_string(), None));
    let parsed = texts.iter().map(|text| {
        let parts: Option<Vec<usize>> = text.split(':').map(|part| part.parse().ok()).collect();
        match parts.and_then(|parts| parts.try_into().ok()) {
            Some(numbers) => Ok((text.clone(), Some(new(numbers)))),
            None => Err(Failure::User(format!("`{text}` is not four numbers"))),
        }
    });
    std::iter::once(default).chain(parsed).collect()
}
