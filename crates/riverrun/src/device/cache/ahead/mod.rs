//! Kernels compiled by several threads before they are needed.
//!
//! CubeCL compiles a kernel when it is first launched, on its device's thread, one after another. Here some threads do the
//! same work at once, each on a [stand-in](riverrun_kernels::gpu::cuda::stand_in) for the device, in a
//! [dry run](cubecl::dry_run): launches are compiled and dropped. Each kernel is compiled by one of them ([`Shares`]). An
//! observer of launches tells the threads apart by their streams and kernels by the hash that CubeCL collects.

mod shares;

use std::any::type_name;
use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use burn::tensor::Device;
use burn_cubecl::CubeDevice;
use cubecl::client::Client;
use cubecl::dry_run::DryRun;
use cubecl::launched::LaunchedKernels;
use cubecl::logging::{LaunchObservation, LaunchObserver};
use cubecl_environment::bytes::Bytes;
use cubecl_environment::persistence::{Insertion, Namespace, Origin, open};
use cubecl_environment::stream::StreamId;
use cubecl_server::compiler::{KernelCacheKey, build_id_hash};
use riverrun_kernels::gpu::cuda;
use serde::Serialize;

use shares::{Kernel, Shares};

/// The most threads: NVRTC compiles no more kernels in the same time with 16 of them than with 8.
const MOST_THREADS: usize = 8;

/// The longest time from an observer's call to the submission of the launch.
const SUBMISSION: Duration = Duration::from_micros(500);

/// Whether kernels are being compiled ahead: the table has placeholders then, which must not be kept.
static RUNNING: AtomicBool = AtomicBool::new(false);

pub fn running() -> bool {
    RUNNING.load(Ordering::SeqCst)
}

/// Runs `work` on some threads, each with a stand-in for a client's device. Returns the number of kernels compiled.
pub fn compile(client: &Client, name: &str, work: &(dyn Fn(&Device) + Sync)) -> usize {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = threads.min(MOST_THREADS);
    let fingerprint = &client.properties().identity.fingerprint;
    let table = open(Namespace::scoped("cuda", format!("{fingerprint}-cpp")).as_str());
    // A database would keep the placeholders of a program that is killed.
    let in_memory = table.describe().starts_with("memory");
    let done = Done::new(name);
    if threads < 2 || !in_memory || done.is_noted() || RUNNING.swap(true, Ordering::SeqCst) {
        return 0;
    }
    let start = Instant::now();
    let shares = Arc::new(Shares::new(table, table_key, placeholder()));
    {
        let watch = Arc::new(Watch::new(shares.clone()));
        let _observed = LaunchObservation::new(watch.clone());
        let _dry = DryRun::new();
        let together = AssertUnwindSafe(|| {
            std::thread::scope(|scope| {
                for which in 0..threads as u16 {
                    let watch = &watch;
                    scope.spawn(move || watch.follow(client, which, work));
                }
            });
        });
        // Whatever has happened, the placeholders go.
        if catch_unwind(together).is_err() {
            tracing::debug!("a thread that compiled kernels panicked");
        }
    }
    let compiled = shares.put_back();
    RUNNING.store(false, Ordering::SeqCst);
    done.note();
    let seconds = start.elapsed().as_secs_f64();
    tracing::debug!(compiled, threads, seconds, "kernels compiled ahead");
    compiled
}

/// The record, in CubeCL's table, that some work has been compiled by this build.
struct Done {
    key: Vec<u8>,
}

impl Done {
    fn new(name: &str) -> Self {
        Self {
            key: encode(&(name, build_id_hash())),
        }
    }

    fn table() -> Box<dyn cubecl_environment::persistence::Storage> {
        open(Namespace::scoped("riverrun", "ahead").as_str())
    }

    fn is_noted(&self) -> bool {
        Self::table().get(&self.key).is_some()
    }

    fn note(&self) {
        let value = Bytes::from_bytes_vec(vec![1]);
        let _: Insertion = Self::table().insert(&self.key, value, Origin::Local);
    }
}

/// An entry of CubeCL's table as its CUDA server writes it.
#[derive(Serialize)]
struct Entry {
    entrypoint_name: &'static str,
    shared_mem_bytes: usize,
    ptx: Vec<i8>,
    io: Option<[u8; 0]>,
}

/// The entry of a kernel that another thread compiles: it loads, and a launch of it would be an error of the device.
fn placeholder() -> Vec<u8> {
    let ptx = c".version 6.3
.target sm_75
.address_size 64
.visible .entry placeholder()
{
    trap;
}
";
    let ptx = ptx.to_bytes_with_nul().iter().map(|&byte| byte as i8);
    encode(&Entry {
        entrypoint_name: "placeholder",
        shared_mem_bytes: 0,
        ptx: ptx.collect(),
        io: None,
    })
}

fn table_key(kernel: Kernel) -> Vec<u8> {
    encode(&KernelCacheKey {
        id: kernel,
        build_id: build_id_hash(),
    })
}

/// The CBOR form in which CubeCL stores keys and values.
fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    let mut bytes = Vec::new();
    let written = ciborium::into_writer(value, &mut bytes);
    written.unwrap_or_else(|error| panic!("{}: {error}", type_name::<T>()));
    bytes
}

/// The observer of the threads' launches.
struct Watch {
    shares: Arc<Shares>,
    threads: Mutex<Threads>,
}

struct Threads {
    /// The kernels launched since the last call of the observer: one, but where two threads launch at the same moment.
    launched: Option<LaunchedKernels>,
    /// The kernels of the work in the order of its launches, as far as they are known.
    order: Vec<Option<Kernel>>,
    followed: HashMap<StreamId, Followed>,
}

struct Followed {
    client: Client,
    launches: usize,
    seen: HashSet<Kernel>,
    /// Takes the kernels that this thread is to compile.
    own: Sender<Kernel>,
}

impl Threads {
    /// The kernel that a followed thread launches, if for the first time, and the thread's client.
    fn launch(&mut self, stream: StreamId) -> Option<(Kernel, Client)> {
        let launched = self.launched.take().map(LaunchedKernels::finish);
        self.launched = Some(LaunchedKernels::new());
        let thread = self.followed.get_mut(&stream)?;
        if self.order.len() <= thread.launches {
            self.order.resize(thread.launches + 1, None);
        }
        let place = &mut self.order[thread.launches];
        thread.launches += 1;
        // Where two threads launch at once, all have launched in the same order.
        let one = launched.filter(|kernels| kernels.len() == 1);
        let kernel = one
            .and_then(|kernels| kernels.into_iter().next())
            .or(*place);
        *place = place.or(kernel);
        let kernel = kernel.filter(|kernel| thread.seen.insert(*kernel))?;
        Some((kernel, thread.client.clone()))
    }
}

impl Watch {
    fn new(shares: Arc<Shares>) -> Self {
        Self {
            shares,
            threads: Mutex::new(Threads {
                launched: Some(LaunchedKernels::new()),
                order: Vec::new(),
                followed: HashMap::new(),
            }),
        }
    }

    fn threads(&self) -> MutexGuard<'_, Threads> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does the work on stand-in `which`, and waits until its kernels are compiled.
    fn follow(&self, client: &Client, which: u16, work: &(dyn Fn(&Device) + Sync)) {
        let number = match cuda::stand_in(client, which) {
            Ok(number) => number,
            Err(reason) => {
                tracing::debug!(reason, "a thread compiles no kernels");
                return;
            }
        };
        let cube = CubeDevice::Cuda(cubecl::device::CudaDevice::new(number.into()));
        let (client, device) = (cube.client(), Device::new(cube));
        let stream = StreamId::current();
        let (own, kernels) = channel();
        let followed = Followed {
            client: client.clone(),
            launches: 0,
            seen: HashSet::new(),
            own,
        };
        self.threads().followed.insert(stream, followed);
        std::thread::scope(|scope| {
            let client = &client;
            scope.spawn(move || stream.executes(|| self.compile(client, kernels)));
            let worked = catch_unwind(AssertUnwindSafe(|| {
                work(&device);
                device.sync()
            }));
            if !matches!(worked, Ok(Ok(()))) {
                tracing::debug!(which, "work that does not run dry");
            }
            self.threads().followed.remove(&stream);
        });
        let _ = client.memory_cleanup();
    }

    /// Has a stand-in run the launches of these kernels, which compiles them.
    fn compile(&self, client: &Client, kernels: Receiver<Kernel>) {
        for kernel in kernels {
            // The launch is submitted right after the observer was called.
            std::thread::sleep(SUBMISSION);
            self.shares.launch(kernel);
            let _ = client.flush();
            self.shares.finish(kernel);
        }
    }
}

impl LaunchObserver for Watch {
    fn launched(&self, _name: &'static str) {
        let stream = StreamId::current();
        let Some((kernel, client)) = self.threads().launch(stream) else {
            return;
        };
        if self.shares.is_free(kernel) {
            // The launch comes next on the stand-in's thread: others wait for it from here on.
            let _ = client.flush();
        }
        if !self.shares.take(kernel) {
            return;
        }
        if let Some(thread) = self.threads().followed.get(&stream) {
            // It is received to the end of the work.
            let _ = thread.own.send(kernel);
        }
    }
}
