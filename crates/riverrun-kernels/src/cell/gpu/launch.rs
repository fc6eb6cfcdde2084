//! From a problem and its buffers to launches.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, OnceLock};

use cubecl::client::Client;
use cubecl::ir::AddressType;
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::backward::persistent_backward;
use super::exchange::{CONTROL_WORDS, acquire, poison};
use super::forward::persistent_forward;
use super::plan::{Config, Cut, Form, choose, cut, missing};
use super::tuning::Tuning;
use super::{Backward, Forward};
use crate::Error;
use crate::cell::Problem;
use crate::gpu::Dtype;

/// About two seconds of polling: far beyond any hand-over, short of a driver's patience.
const SPINS: u32 = 1 << 22;

/// The lock, the count and the fault of each device.
fn controls() -> MutexGuard<'static, HashMap<String, Handle>> {
    static CONTROLS: OnceLock<Mutex<HashMap<String, Handle>>> = OnceLock::new();
    CONTROLS
        .get_or_init(Default::default)
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The kernels that each device has compiled; forward and backward differ in their configuration.
fn compiled() -> MutexGuard<'static, HashSet<(String, Config, Dtype, AddressType)>> {
    type Kernel = (String, Config, Dtype, AddressType);
    static COMPILED: OnceLock<Mutex<HashSet<Kernel>>> = OnceLock::new();
    COMPILED
        .get_or_init(Default::default)
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn control(client: &Client) -> Handle {
    controls()
        .entry(client.service_id().to_string())
        .or_insert_with(|| client.create_from_slice(&[0u8; CONTROL_WORDS * 4]))
        .clone()
}

/// Whether a wait between cubes has given up on this device since the last call (reads a word back, so it waits for the
/// device). What such a launch wrote is NaN from there on; this tells it apart from NaN in the data.
pub fn handover_fault(client: &Client) -> bool {
    let Some(control) = controls().get(&client.service_id().to_string()).cloned() else {
        return false;
    };
    let Ok(bytes) = client.read_one(control) else {
        return true;
    };
    let words: &[u32] = bytemuck::cast_slice(&bytes);
    let fault = words[CONTROL_WORDS - 1] != 0;
    if fault {
        controls().remove(&client.service_id().to_string());
    }
    fault
}

/// What every launch of a pass shares.
struct Pass<'a> {
    client: &'a Client,
    problem: &'a Problem,
    cut: Cut,
    dtype: Dtype,
    address: AddressType,
    control: Handle,
    dummy: Handle,
}

impl<'a> Pass<'a> {
    fn new(
        client: &'a Client,
        problem: &'a Problem,
        dtype: Dtype,
        backward: bool,
        tuning: Option<Tuning>,
    ) -> Result<Self, Error> {
        let refused = |reason| Error::Routine {
            routine: "persistent",
            reason,
        };
        if let Some(reason) = missing(client, problem, dtype) {
            return Err(refused(reason));
        }
        let cut = match tuning {
            Some(tuning) => cut(client, problem, dtype, backward, tuning),
            None => choose(client, problem, dtype, backward),
        };
        let cut = cut.ok_or_else(|| refused("its cubes do not fit on the device".into()))?;
        let most = problem.outputs() * problem.cell.gates().max(problem.saved_blocks());
        Ok(Self {
            client,
            problem,
            cut,
            dtype,
            address: match most * dtype.size() >= 1 << 31 {
                true => AddressType::U64,
                false => AddressType::U32,
            },
            control: control(client),
            dummy: client.empty(16),
        })
    }

    /// A contiguous buffer of so many numbers, seen as vectors of `width` words.
    fn words(&self, handle: &Handle, numbers: usize, width: usize) -> BufferArg {
        let length = numbers * self.dtype.size() / (4 * width);
        // Safety: callers pass the number of elements that the problem's shape gives the buffer.
        unsafe { BufferArg::from_raw_parts(handle.clone(), length) }
    }

    fn control(&self) -> BufferArg {
        // Safety: it was made with so many words.
        unsafe { BufferArg::from_raw_parts(self.control.clone(), CONTROL_WORDS) }
    }

    /// An optional buffer; where it is absent, one that the kernel will not touch.
    fn optional(&self, handle: &Option<Handle>, numbers: usize) -> BufferArg {
        match handle {
            Some(handle) => self.words(handle, numbers, 1),
            None => self.words(&self.dummy, 16 / self.dtype.size(), 1),
        }
    }

    fn poison(&self, handle: &Handle, numbers: usize) {
        let quads = numbers * self.dtype.size() / 16;
        // Safety: the kernel checks its position against the buffer's length.
        unsafe {
            poison::launch_unchecked(
                self.client,
                CubeCount::Static(quads.div_ceil(256).clamp(1, 1056) as u32, 1, 1),
                CubeDim::new_1d(256),
                self.address,
                self.words(handle, numbers, 4),
            );
        }
    }

    /// One launch for as many sequences as run at once: cubes, first sequence, steps.
    fn each(&self, config: Config, launch: impl Fn(CubeCount, CubeDim, usize, usize)) {
        let rows = 8 * self.cut.product.cols;
        let dim = CubeDim::new_2d(32, self.cut.product.planes as u32);
        let steps = self.problem.steps;
        // Compiling takes longer than the lock is waited for, so it must not happen while the lock is held: a launch
        // of no steps does nothing else.
        let key = (
            self.client.service_id().to_string(),
            config,
            self.dtype,
            self.address,
        );
        if !compiled().contains(&key) {
            launch(CubeCount::Static(1, 1, 1), dim, 0, 0);
            compiled().insert(key);
        }
        let mut first = 0;
        while first < self.problem.batch {
            let groups = (self.problem.batch - first)
                .div_ceil(rows)
                .min(self.cut.groups);
            // Safety: the control words are there.
            unsafe {
                acquire::launch_unchecked(
                    self.client,
                    CubeCount::Static(1, 1, 1),
                    CubeDim::new_1d(1),
                    self.control(),
                    SPINS,
                );
            }
            let cubes = groups * self.cut.cubes;
            launch(CubeCount::Static(cubes as u32, 1, 1), dim, first, steps);
            first += groups * rows;
        }
    }
}

/// Runs a cell forward, writing `h`, the last states and what is to be saved.
///
/// # Errors
/// [`Error::Routine`] where [`super::missing`] has a reason.
pub fn forward(
    client: &Client,
    problem: &Problem,
    dtype: Dtype,
    args: &Forward,
    tuning: Option<Tuning>,
) -> Result<(), Error> {
    let pass = Pass::new(client, problem, dtype, false, tuning)?;
    let saved = match args.saved {
        Some(_) => problem.saved_blocks(),
        None => 0,
    };
    let config = Config {
        form: Form::of(problem.cell).expect("the pass has been checked"),
        product: pass.cut.product,
        reverse: problem.reverse,
        bias: args.bias.is_some(),
        h0: args.h0.is_some(),
        c0: args.c0.is_some(),
        reset: args.reset.is_some(),
        d_h_last: false,
        d_c_last: false,
        backward: false,
        saved,
    };
    let (outputs, state) = (problem.outputs(), problem.state());
    let rows = problem.batch * problem.steps;
    if outputs == 0 {
        return Ok(());
    }
    pass.poison(&args.h, outputs);
    pass.each(config, |count, dim, first, steps| {
        // Safety: buffers have the lengths that the kernel indexes, by the contract of `Forward`.
        unsafe {
            persistent_forward::launch_unchecked(
                client,
                count,
                dim,
                pass.address,
                pass.words(&args.xg, rows * problem.gate_width(), 1),
                pass.words(&args.u, problem.gate_width() * problem.depth(), 4),
                pass.optional(&args.bias, problem.gate_width()),
                pass.optional(&args.h0, state),
                pass.optional(&args.c0, state),
                match &args.reset {
                    Some(reset) => BufferArg::from_raw_parts(reset.clone(), rows),
                    None => BufferArg::from_raw_parts(pass.dummy.clone(), 8),
                },
                pass.words(&args.h, outputs, 1),
                pass.words(&args.h_last, state, 1),
                pass.optional(&args.c_last, state),
                pass.optional(&args.saved, outputs * saved),
                pass.control(),
                problem.batch,
                steps,
                first,
                SPINS,
                config,
                dtype.elem(),
            );
        }
    });
    Ok(())
}

/// Runs a cell backward, writing the gradients of its pre-activations and initial states.
///
/// # Errors
/// As [`forward`].
pub fn backward(
    client: &Client,
    problem: &Problem,
    dtype: Dtype,
    args: &Backward,
    tuning: Option<Tuning>,
) -> Result<(), Error> {
    let pass = Pass::new(client, problem, dtype, true, tuning)?;
    let saved = match args.saved {
        Some(_) => problem.saved_blocks(),
        None => 0,
    };
    let config = Config {
        form: Form::of(problem.cell).expect("the pass has been checked"),
        product: pass.cut.product,
        reverse: problem.reverse,
        bias: false,
        h0: args.h0.is_some(),
        c0: args.c0.is_some(),
        reset: args.reset.is_some(),
        d_h_last: args.d_h_last.is_some(),
        d_c_last: args.d_c_last.is_some(),
        backward: true,
        saved,
    };
    let (outputs, state) = (problem.outputs(), problem.state());
    let rows = problem.batch * problem.steps;
    if outputs == 0 {
        return Ok(());
    }
    let gates = rows * problem.gate_width();
    pass.poison(&args.d_a, gates);
    pass.each(config, |count, dim, first, steps| {
        // Safety: as in `forward`, by the contract of `Backward`.
        unsafe {
            persistent_backward::launch_unchecked(
                client,
                count,
                dim,
                pass.address,
                pass.words(&args.u_t, problem.gate_width() * problem.depth(), 4),
                pass.words(&args.h, outputs, 1),
                pass.optional(&args.h0, state),
                pass.optional(&args.c0, state),
                pass.optional(&args.saved, outputs * saved),
                match &args.reset {
                    Some(reset) => BufferArg::from_raw_parts(reset.clone(), rows),
                    None => BufferArg::from_raw_parts(pass.dummy.clone(), 8),
                },
                pass.words(&args.d_h, outputs, 1),
                pass.optional(&args.d_h_last, state),
                pass.optional(&args.d_c_last, state),
                pass.words(&args.d_a, gates, 1),
                pass.optional(&args.d_x, gates),
                pass.words(&args.before, outputs, 1),
                pass.words(&args.d_h0, state, 1),
                pass.optional(&args.d_c0, state),
                pass.control(),
                problem.batch,
                steps,
                first,
                SPINS,
                config,
                dtype.elem(),
            );
        }
    });
    Ok(())
}
