//! States against the recurrence in `f64`, both on the device: inputs of any size are drawn there, and each lane is computed again
//! step by step from the stored inputs.

use cubecl::client::Client;
use cubecl::ir::{AddressType, ElemType, FloatKind};
use cubecl::prelude::*;
use cubecl::server::Handle;

use crate::Error;
use crate::gpu::{Dtype, buffer, grid};
use crate::recurrence::gpu::{Forward, Inputs, Strided, forward};
use crate::recurrence::{Gate, Problem, Shape};

/// Threads in a cube.
const CUBE: usize = 256;

/// The distribution of the coefficients of `h_t = a_t h_{t-1} + b_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Drawn {
    /// `a` uniform in (0, 1) and `b` in (-1, 1).
    Uniform,
    /// Both standard normal: `E h²` grows without bound, though almost every path comes back.
    Normal,
}

/// Errors of states relative to `max(1, |h|)`.
#[derive(Debug, Clone, Copy)]
pub struct Errors {
    /// The largest; NaN where a state is.
    pub max: f64,
    /// The root of the mean square.
    pub rms: f64,
    /// States beyond the type's range and those after them in their lane, which are left out.
    pub overflown: usize,
}

/// Threads: elements.
#[cube(launch_unchecked, address_type = "dynamic")]
fn draw<F: Numeric>(
    u: &[f32],
    v: &[f32],
    out: &mut [F],
    low: f32,
    range: f32,
    elements: usize,
    #[comptime] drawn: Drawn,
    #[define(F)] _dtype: ElemType,
) {
    let at = ABSOLUTE_POS;
    if at < elements {
        let mut x = low + range * u[at];
        // Box and Muller's method.
        if comptime!(drawn == Drawn::Normal) {
            x = f32::sqrt(-2.0f32 * f32::ln(u[at])) * f32::cos(std::f32::consts::TAU * v[at]);
        }
        out[at] = F::cast_from(x);
    }
}

/// Threads: lanes. Writes the largest error, the sum of their squares and the states left out of each lane.
#[cube(launch_unchecked, address_type = "dynamic")]
fn judge<F: Numeric>(
    a: &[F],
    b: &[F],
    h: &[F],
    errors: &mut [f64],
    steps: usize,
    dim: usize,
    lanes: usize,
    largest: f32,
    #[define(F)] _dtype: ElemType,
) {
    let lane = ABSOLUTE_POS;
    if lane < lanes {
        let mut at = lane / dim * steps * dim + lane % dim;
        let mut truth = 0.0f64;
        let mut max = 0.0f64;
        let mut squares = 0.0f64;
        let mut lost = 0.0f64;
        for _ in 0..steps {
            truth = f64::cast_from(a[at]) * truth + f64::cast_from(b[at]);
            let size = f64::abs(truth);
            // What follows an overflow is lost too.
            if lost > 0.0f64 || size > f64::cast_from(largest) {
                lost += 1.0f64;
            } else {
                let error = f64::abs(f64::cast_from(h[at]) - truth) / f64::max(size, 1.0f64);
                squares += error * error;
                max = f64::max(max, error);
            }
            at += dim;
        }
        errors[lane] = max;
        errors[lanes + lane] = squares;
        errors[2 * lanes + lane] = lost;
    }
}

/// Whether the device computes in `f64`.
pub fn supported(client: &Client) -> bool {
    use cubecl::ir::features::TypeUsage;
    let usage = client
        .properties()
        .type_usage(ElemType::Float(FloatKind::F64));
    usage.contains(TypeUsage::Buffer) && usage.contains(TypeUsage::Arithmetic)
}

/// The errors of the states of a raw recurrence of this shape, from a zero state. The draws depend on the seed and the shape alone, and
/// are rounded to the storage type first.
///
/// # Errors
/// The errors of the kernels.
///
/// # Panics
/// On a device that cannot be read.
pub fn errors(
    client: &Client,
    dtype: Dtype,
    shape: Shape,
    drawn: Drawn,
    seed: u32,
) -> Result<Errors, Error> {
    let elements = shape.elements();
    let address = match elements * 4 >= 1 << 31 {
        true => AddressType::U64,
        false => AddressType::U32,
    };
    let key: Vec<u8> = [seed, 1, 2, 3]
        .iter()
        .flat_map(|w| w.to_ne_bytes())
        .collect();
    let key = client.create_from_slice(&key);
    let uniform = [client.empty(elements * 4), client.empty(elements * 4)];
    let coefficient = |stream: u32, [low, high]: [f32; 2]| -> Result<Handle, Error> {
        for (n, to) in uniform.iter().enumerate() {
            let stream = 2 * stream + n as u32;
            riverrun_kernels::random::gpu::uniform(client, &key, stream, to, elements)?;
        }
        let out = client.empty(elements * dtype.size());
        // Safety: the buffers hold `elements`, and the kernel checks its position.
        unsafe {
            draw::launch_unchecked(
                client,
                grid(client, elements.div_ceil(CUBE)),
                CubeDim::new_1d(CUBE as u32),
                address,
                buffer(&uniform[0], elements, 1),
                buffer(&uniform[1], elements, 1),
                buffer(&out, elements, 1),
                low,
                high - low,
                elements,
                drawn,
                dtype.elem(),
            );
        }
        Ok(out)
    };
    let (a, b) = (coefficient(0, [0.0, 1.0])?, coefficient(1, [-1.0, 1.0])?);
    let h = client.empty(elements * dtype.size());
    let view = |handle: &Handle| Strided {
        handle: handle.clone(),
        len: elements,
        offset: 0,
        batch_stride: shape.steps * shape.dim,
        step_stride: shape.dim,
    };
    let args = Forward {
        inputs: Inputs::Separate(vec![view(&a), view(&b)]),
        h0: None,
        reset: None,
        h: h.clone(),
    };
    forward(
        client,
        &Problem::new(shape, Gate::Raw),
        dtype,
        &args,
        None,
        None,
    )?;
    let (lanes, largest) = (shape.state(), largest(dtype));
    let found = client.empty(3 * lanes * 8);
    // Safety: as above.
    unsafe {
        judge::launch_unchecked(
            client,
            grid(client, lanes.div_ceil(CUBE)),
            CubeDim::new_1d(CUBE as u32),
            address,
            buffer(&a, elements, 1),
            buffer(&b, elements, 1),
            buffer(&h, elements, 1),
            buffer(&found, 3 * lanes, 1),
            shape.steps,
            shape.dim,
            lanes,
            largest,
            dtype.elem(),
        );
    }
    let read = client.read_one(found).expect("reading a result back");
    let numbers: &[f64] = bytemuck::cast_slice(&read[..3 * lanes * 8]);
    let [max, squares, lost] = [0, 1, 2].map(|n| &numbers[n * lanes..][..lanes]);
    let overflown = lost.iter().sum::<f64>() as usize;
    let rms = (squares.iter().sum::<f64>() / (elements - overflown).max(1) as f64).sqrt();
    Ok(Errors {
        // A maximum leaves a NaN out, a sum does not.
        max: match rms.is_nan() {
            true => f64::NAN,
            false => max.iter().fold(0.0, |max: f64, &error| max.max(error)),
        },
        rms,
        overflown,
    })
}

/// The largest finite number of a type.
fn largest(dtype: Dtype) -> f32 {
    match dtype {
        Dtype::F32 => f32::MAX,
        Dtype::F16 => half::f16::MAX.to_f32(),
        Dtype::Bf16 => half::bf16::MAX.to_f32(),
    }
}
