//! An NVIDIA GPU that another library has opened too.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use cubecl::client::Client;
use cubecl::server::Handle;
use riverrun_kernels::Error;
use riverrun_kernels::gpu::know_clusters;

use crate::Card;
use crate::call::Plans;
use crate::compiler::Compiler;
use crate::driver::{Context, DeviceMemory, Function, Relaxed, launch};
use crate::keep::Kept;
use crate::plan::{Kernel, Plan, Recorder, Refused};

/// Sizes of clusters that kernels use.
const CLUSTERS: [usize; 3] = [2, 4, 8];

/// A plan with its kernels loaded.
pub struct Ready {
    plan: Plan,
    functions: Vec<Function>,
}

impl Ready {
    /// Bytes of scratch memory that a call needs, at a multiple of 512.
    pub fn scratch(&self) -> u64 {
        self.plan.scratch
    }

    /// The launches of a call.
    pub fn launches(&self) -> usize {
        self.functions.len()
    }
}

/// A GPU.
pub struct Guest {
    context: Context,
    card: Card,
    recorder: Recorder,
    compiler: Compiler,
    kept: Kept,
    /// By source.
    functions: Mutex<HashMap<String, Function>>,
    plans: Plans,
}

impl Guest {
    /// The GPU of this number, as CUDA counts.
    ///
    /// # Errors
    /// No driver, no such device, no compiler. A later call tries again.
    pub fn of(ordinal: u16) -> Result<Arc<Self>, String> {
        static OPEN: RwLock<Vec<(u16, Arc<Guest>)>> = RwLock::new(Vec::new());
        let find = |open: &Vec<(u16, Arc<Self>)>| {
            let found = open.iter().find(|(number, _)| *number == ordinal);
            found.map(|(_, guest)| guest.clone())
        };
        if let Some(guest) = find(&OPEN.read().unwrap_or_else(PoisonError::into_inner)) {
            return Ok(guest);
        }
        let mut open = OPEN.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(guest) = find(&open) {
            return Ok(guest);
        }
        let guest = Arc::new(Self::open(ordinal)?);
        open.push((ordinal, guest.clone()));
        Ok(guest)
    }

    fn open(ordinal: u16) -> Result<Self, String> {
        let context = Context::of(ordinal)?;
        let card = context.card()?;
        let compiler = Compiler::new(card.capability)?;
        let _entered = context.enter()?;
        let memory = DeviceMemory {
            context,
            stream: None,
        };
        let recorder = Recorder::new(card, ordinal, memory);
        if card.capability >= 90 {
            let _relaxed = Relaxed::begin();
            for cubes in CLUSTERS {
                know_clusters(recorder.client(), cubes);
            }
        }
        Ok(Self {
            context,
            card,
            recorder,
            kept: Kept::of_user(&compiler.name()),
            compiler,
            functions: Mutex::default(),
            plans: Plans::default(),
        })
    }

    /// What the card has.
    pub fn card(&self) -> Card {
        self.card
    }

    /// The compiler and its version.
    pub fn compiler(&self) -> String {
        self.compiler.name()
    }

    /// The plans of calls.
    pub(crate) fn plans(&self) -> &Plans {
        &self.plans
    }

    /// For questions about the device; launches go through [`plan`](Self::plan).
    pub fn client(&self) -> &Client {
        self.recorder.client()
    }

    /// The plan of a call, as [`Recorder::plan`] makes it, with its kernels compiled and loaded. It may be made while a stream
    /// records a graph.
    ///
    /// # Errors
    /// As [`Recorder::plan`]; those of the compiler and the driver.
    pub fn plan(
        &self,
        sizes: &[u64],
        call: impl Fn(&Client, &[Handle]) -> Result<(), Error>,
    ) -> Result<Ready, Refused> {
        let plan = self.recorder.plan(sizes, call)?;
        let _entered = self.context.enter()?;
        let _relaxed = Relaxed::begin();
        let mut functions = self
            .functions
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut new: Vec<&Kernel> = Vec::new();
        for launch in &plan.launches {
            let kernel = &*launch.kernel;
            let known = functions.contains_key(&kernel.source);
            if !known && !new.iter().any(|other| other.source == kernel.source) {
                new.push(kernel);
            }
        }
        for (kernel, code) in new.iter().zip(self.code(&new)) {
            let function = self.context.load(kernel, &code?)?;
            functions.insert(kernel.source.clone(), function);
        }
        let function = |source| functions[source];
        let functions = plan
            .launches
            .iter()
            .map(|launch| function(&launch.kernel.source));
        Ok(Ready {
            functions: functions.collect(),
            plan,
        })
    }

    /// Machine code of kernels: kept, or compiled on as many threads as the machine has.
    fn code(&self, kernels: &[&Kernel]) -> Vec<Result<Vec<u8>, String>> {
        let one = |kernel: &Kernel| {
            if let Some(code) = self.kept.find(&kernel.source) {
                return Ok(code);
            }
            let code = self.compiler.compile(kernel)?;
            self.kept.keep(&kernel.source, &code);
            Ok(code)
        };
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let each = kernels.len().div_ceil(threads).max(1);
        std::thread::scope(|scope| {
            let parts = kernels.chunks(each).map(|part| {
                scope.spawn(move || part.iter().map(|kernel| one(kernel)).collect::<Vec<_>>())
            });
            let parts: Vec<_> = parts.collect();
            let joined = parts.into_iter().flat_map(|part| match part.join() {
                Ok(codes) => codes,
                Err(_) => vec![Err("the compiler panicked".into())],
            });
            joined.collect()
        })
    }

    /// As [`Recorder::take_fault`]; it waits for a copy, after work that has ended.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn take_fault(&self) -> Result<Option<&'static str>, String> {
        self.recorder.take_fault()
    }

    /// Puts the launches of a plan on a stream of the device, by its address, and returns at once.
    ///
    /// # Safety
    /// The plan is of this device. The buffers are at these addresses, on the device, with the sizes that the plan was made
    /// for, each start a multiple of 16 bytes; so is the scratch memory, at a multiple of 512. All of them live until the
    /// stream has come this far, and nothing else uses them meanwhile.
    ///
    /// # Errors
    /// Those of the driver.
    pub unsafe fn run(
        &self,
        ready: &Ready,
        stream: u64,
        addresses: &[u64],
        scratch: u64,
    ) -> Result<(), String> {
        let expected = ready.plan.arguments.len();
        if addresses.len() != expected {
            let found = addresses.len();
            return Err(format!("expected {expected} buffers, found {found}"));
        }
        let _entered = self.context.enter()?;
        for (step, &function) in ready.plan.launches.iter().zip(&ready.functions) {
            let buffers = step.addresses(addresses, scratch);
            // SAFETY: the caller's promise.
            unsafe { launch(function, step, stream, buffers) }?;
        }
        Ok(())
    }
}
