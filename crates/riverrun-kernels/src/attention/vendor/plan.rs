//! From a graph to a plan that runs it.

use super::graph::{Graph, Slot};
use super::ids::{attribute, descriptor, heuristics, kind};
use super::library::{Descriptor, Library, Raw};
use super::{Key, build};
use crate::gpu::plans::Refusal;

/// A compiled graph.
pub(super) struct Plan {
    // A plan goes before what it was made of.
    plan: Descriptor,
    _configuration: Descriptor,
    _graph: Descriptor,
    made_of: Graph,
    library: &'static Library,
    /// Bytes of scratch memory.
    pub workspace: usize,
}

impl Plan {
    /// Compiles the graph of a pass by the first engine that takes it. It takes some tenths of a second for a new shape.
    pub fn new(library: &'static Library, handle: Raw, key: &Key) -> Result<Self, Refusal> {
        let made_of = build::graph(library, key)?;
        let graph = made_of.finalized(handle)?;
        let mut refused: Vec<Refusal> = Vec::new();
        for mode in [heuristics::MODE_A, heuristics::FALLBACK] {
            let found = configurations(library, &graph, mode);
            for configuration in found.unwrap_or_else(|reason| {
                refused.push(reason);
                Vec::new()
            }) {
                match compiled(library, &configuration, handle) {
                    Ok((plan, workspace)) => {
                        return Ok(Self {
                            plan,
                            _configuration: configuration,
                            _graph: graph,
                            made_of,
                            library,
                            workspace,
                        });
                    }
                    Err(reason) => refused.push(reason),
                }
            }
        }
        // If one engine may take it later, it is asked again.
        let lasting = refused.iter().all(Refusal::is_lasting);
        Err(match refused.first() {
            Some(first) => Refusal::of_status(first.to_string(), lasting),
            None => Refusal::lasting("cuDNN: no engine has this attention"),
        })
    }

    /// Puts the work on a stream. `slots` has the address of every buffer that the graph names.
    ///
    /// # Safety
    /// This is the handle's device and the only thread that uses the handle. The addresses are those of buffers of the graph's
    /// sizes and types, 16-byte aligned, the workspace's of [`workspace`](Self::workspace) bytes, alive until the stream has run
    /// the work.
    pub unsafe fn run(
        &self,
        (handle, stream): (Raw, Raw),
        slots: &[u64; Slot::COUNT],
        workspace: u64,
    ) -> Result<(), Refusal> {
        let named = self.made_of.slots.iter();
        let (mut numbers, mut addresses): (Vec<i64>, Vec<u64>) = named
            .map(|&(number, slot)| (number, slots[slot as usize]))
            .unzip();
        for (number, value) in &self.made_of.values {
            numbers.push(*number);
            addresses.push(&raw const **value as u64);
        }
        let pack = Descriptor::new(self.library, descriptor::VARIANT_PACK, "a list of buffers")?;
        pack.set(attribute::VARIANT_PACK_UNIQUE_IDS, kind::INT64, &numbers)?
            .set(
                attribute::VARIANT_PACK_DATA_POINTERS,
                kind::VOID_PTR,
                &addresses,
            )?
            .set(
                attribute::VARIANT_PACK_WORKSPACE,
                kind::VOID_PTR,
                &[workspace],
            )?;
        let pack = pack.finalized()?;
        // SAFETY: the caller's promise; the pack's numbers are read before the call returns.
        unsafe {
            self.library.set_stream(handle, stream)?;
            self.library.execute(handle, &self.plan, &pack)
        }
    }
}

/// The engines, with their settings, that the heuristics give for a graph, best first.
fn configurations(
    library: &'static Library,
    graph: &Descriptor,
    mode: u32,
) -> Result<Vec<Descriptor>, Refusal> {
    let asked = Descriptor::new(library, descriptor::ENGINEHEUR, "the heuristics")?;
    asked
        .link(attribute::ENGINEHEUR_OPERATION_GRAPH, graph)?
        .set(attribute::ENGINEHEUR_MODE, kind::HEUR_MODE, &[mode])?;
    let asked = asked.finalized()?;
    let results = attribute::ENGINEHEUR_RESULTS;
    let count = asked.get::<Raw>(results, kind::BACKEND_DESCRIPTOR, &mut [])?;
    let new = |_| Descriptor::new(library, descriptor::ENGINECFG, "an engine");
    let mut found = (0..count).map(new).collect::<Result<Vec<_>, _>>()?;
    let mut raw: Vec<Raw> = found.iter().map(Descriptor::raw).collect();
    if count > 0 {
        let filled = asked.get(results, kind::BACKEND_DESCRIPTOR, &mut raw)?;
        found.truncate(filled);
    }
    Ok(found)
}

fn compiled(
    library: &'static Library,
    configuration: &Descriptor,
    handle: Raw,
) -> Result<(Descriptor, usize), Refusal> {
    let plan = Descriptor::new(library, descriptor::EXECUTION_PLAN, "a plan")?;
    plan.set(attribute::EXECUTION_PLAN_HANDLE, kind::HANDLE, &[handle])?;
    plan.link(attribute::EXECUTION_PLAN_ENGINE_CONFIG, configuration)?;
    let plan = plan.finalized()?;
    let mut bytes = [0i64];
    plan.get(
        attribute::EXECUTION_PLAN_WORKSPACE_SIZE,
        kind::INT64,
        &mut bytes,
    )?;
    Ok((plan, bytes[0].max(0) as usize))
}
