//! The memory that a command takes, for `--memory`.

use std::io::Write;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Tensor};
use riverrun_train::{Observer, Plan, Report};

use crate::allocator;
use crate::failure::Failure;

/// The most sizes of a list.
const LISTED: usize = 5;

/// Bytes at one moment, where they are known.
#[derive(Debug, Clone, Default)]
pub struct MemoryUse {
    /// In use: by tensors on a GPU, by the process's heap on the CPU.
    in_use: Option<u64>,
    /// The most so far: on a GPU the size of the memory pools, an upper bound; on the CPU the peak resident size of the
    /// process.
    pub peak: Option<u64>,
    /// The largest allocations that each pool of a GPU has served, largest first.
    largest: Vec<u64>,
}

impl MemoryUse {
    /// The memory of a device, now.
    pub fn of(device: &Device) -> Self {
        #[cfg(feature = "gpu")]
        if let Some(client) = riverrun::device::client(device) {
            let report = client.memory_report(cubecl::MemoryScope::Device);
            let usage = report.usage();
            let pools = report.streams.iter().flat_map(|stream| {
                let pools = &stream.pools;
                pools
                    .dynamic
                    .iter()
                    .chain([&pools.persistent, &pools.dedicated])
            });
            let mut largest: Vec<u64> = pools.map(|pool| pool.largest_alloc).collect();
            largest.retain(|&bytes| bytes > 0);
            largest.sort_unstable_by(|a, b| b.cmp(a));
            largest.truncate(LISTED);
            return Self {
                in_use: Some(usage.bytes_in_use),
                peak: Some(usage.bytes_reserved),
                largest,
            };
        }
        let _ = device;
        Self {
            in_use: allocator::in_use(),
            peak: resident_peak(),
            largest: Vec::new(),
        }
    }

    /// Prints it in a line or two.
    pub fn print(&self, out: &mut impl Write) -> Result<(), Failure> {
        let known = |bytes: Option<u64>| bytes.map_or("unknown".into(), megabytes);
        let (in_use, peak) = (known(self.in_use), known(self.peak));
        writeln!(out, "memory  in use {in_use}, peak {peak}")?;
        if !self.largest.is_empty() {
            let sizes: Vec<String> = self.largest.iter().map(|&bytes| megabytes(bytes)).collect();
            writeln!(out, "        largest allocations {}", sizes.join(", "))?;
        }
        Ok(())
    }
}

/// The peak resident size of the process.
fn resident_peak() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kilobytes: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

/// A size for people.
pub fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

/// Prints the largest weights of a model.
pub fn print_weights(out: &mut impl Write, model: &impl Module) -> Result<(), Failure> {
    let mut weights = Weights::default();
    model.visit(&mut weights);
    let mut found = weights.found;
    found.sort_by(|a, b| b.2.cmp(&a.2).then_with(|| a.0.cmp(&b.0)));
    for (name, sizes, bytes) in found.into_iter().take(LISTED) {
        writeln!(out, "        {name} {sizes:?}: {}", megabytes(bytes))?;
    }
    Ok(())
}

/// Name, sizes and bytes of every weight.
#[derive(Default)]
struct Weights {
    path: Vec<String>,
    found: Vec<(String, Vec<usize>, u64)>,
}

impl ModuleVisitor for Weights {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_string());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let weight = param.val();
        let sizes = weight.dims().to_vec();
        let elements: usize = sizes.iter().product();
        let bytes = elements * weight.dtype().size();
        self.found.push((self.path.join("."), sizes, bytes as u64));
    }
}

/// Passes a run's progress on, and reads the memory at every report, while the run's tensors are there.
pub struct Watched<O> {
    inner: O,
    /// The device to watch, if there is one.
    device: Option<Device>,
    /// The bytes to stay within, until they were exceeded.
    budget: Option<u64>,
    /// As of the last report.
    pub last: MemoryUse,
}

impl<O> Watched<O> {
    pub fn new(inner: O, device: Option<Device>) -> Self {
        let last = MemoryUse::default();
        Self {
            inner,
            device,
            budget: None,
            last,
        }
    }

    /// With a warning, once, when the memory exceeds `budget` bytes.
    pub fn within(mut self, budget: Option<u64>) -> Self {
        self.budget = budget;
        self
    }
}

impl<O: Observer> Observer for Watched<O> {
    fn begin(&mut self, plan: &Plan) {
        self.inner.begin(plan);
    }

    fn step(&mut self, done: u64) {
        self.inner.step(done);
    }

    fn report(&mut self, report: &Report) {
        if let Some(device) = &self.device {
            self.last = MemoryUse::of(device);
        }
        self.inner.report(report);
        let exceeded = self.budget.zip(self.last.peak);
        if let Some((budget, peak)) = exceeded.filter(|(budget, peak)| peak > budget) {
            let (peak, most) = (megabytes(peak), megabytes(budget));
            eprintln!(
                "warning: at step {} the run has taken {peak}, more than --memory-budget {most}",
                report.step
            );
            self.budget = None;
        }
    }

    fn evaluating(&mut self, batch: usize, of: usize) {
        self.inner.evaluating(batch, of);
    }

    fn saved(&mut self, step: u64) {
        self.inner.saved(step);
    }

    fn end(&mut self) {
        self.inner.end();
    }
}
