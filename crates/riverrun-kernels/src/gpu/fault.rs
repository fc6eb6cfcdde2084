//! Time limits of waits between the cubes of a launch, and the faults that they raise.
//!
//! A kernel whose cubes wait for each other gives up after [`PATIENCE`]: what it writes from there on is NaN, and it
//! raises a word of its device. So no launch hangs, and no wrong number passes for a right one. [`take_fault`] reads
//! those words; a training loop calls it where it reads the loss.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, OnceLock};

use cubecl::client::Client;
use cubecl::config::{CubeClRuntimeConfig, RuntimeConfig};
use cubecl::prelude::*;
use cubecl::server::Handle;
use cubecl_common::device::ServiceId;
use cubecl_environment::stream::StreamId;

use crate::Error;

/// Nanoseconds that a wait between cubes may take. Hand-overs take microseconds; the rest is for tools that slow a kernel down,
/// such as a memory checker.
pub(crate) const PATIENCE: u64 = 20_000_000_000;

/// A device as the runtime keeps it, and one of its streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct StreamKey {
    device: ServiceId,
    stream: usize,
}

impl StreamKey {
    /// The stream that the calling thread's launches go to. The runtime maps thread identifiers to a fixed number of streams,
    /// so there are no more keys than streams, however many threads come and go.
    pub(crate) fn current(client: &Client) -> Self {
        let streams = CubeClRuntimeConfig::get().streaming.max_streams;
        Self {
            device: client.service_id(),
            stream: StreamId::current().value as usize % usize::from(streams.max(1)),
        }
    }
}

/// The launches that raise a fault word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Those of one stream.
    Stream(StreamKey),
    /// Those of all streams of a device.
    Device(ServiceId),
}

/// A word of a buffer that a kernel sets when one of its waits gives up.
struct Watched {
    operation: &'static str,
    scope: Scope,
    control: Handle,
    words: usize,
    word: usize,
    /// The streams whose launches raise it, as far as they are known.
    streams: HashSet<StreamKey>,
    /// The streams that have not yet been told of a fault found by another stream.
    untold: HashSet<StreamKey>,
}

impl Watched {
    /// A fault that `stream` has found, of any of the streams.
    fn found_by(&mut self, stream: StreamKey) {
        let others = self.streams.iter().filter(|&&other| other != stream);
        self.untold.extend(others);
    }
}

fn watched() -> MutexGuard<'static, Vec<Watched>> {
    static WATCHED: OnceLock<Mutex<Vec<Watched>>> = OnceLock::new();
    WATCHED
        .get_or_init(Default::default)
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Registers `word` of the `words` 32-bit words of `control` with [`take_fault`]. There is one for each operation and scope: a
/// new buffer replaces an earlier one.
pub(crate) fn watch(
    operation: &'static str,
    scope: Scope,
    control: &Handle,
    words: usize,
    word: usize,
) {
    let mut watched = watched();
    watched.retain(|other| (other.operation, other.scope) != (operation, scope));
    watched.push(Watched {
        operation,
        scope,
        control: control.clone(),
        words,
        word,
        streams: HashSet::new(),
        untold: HashSet::new(),
    });
}

/// Says that launches of `stream` raise a fault word.
pub(crate) fn watch_stream(operation: &'static str, scope: Scope, stream: StreamKey) {
    let mut watched = watched();
    let known = |one: &&mut Watched| (one.operation, one.scope) == (operation, scope);
    if let Some(one) = watched.iter_mut().find(known) {
        one.streams.insert(stream);
    }
}

/// Reports and clears a wait between cubes that has given up on this device and the calling thread's stream since the last
/// call: of the look-back and of the sequences that run in one launch. Reads a word of each back, so it waits for the
/// stream; does nothing during a recording.
///
/// Such a launch writes NaN from the wait on; the error distinguishes that from NaN in the data. A word of a whole device does not
/// say which stream's launch it was: its fault is reported to every stream that has made such launches, once to each.
///
/// # Errors
/// [`Error::Handover`] for an operation with a fault, [`Error::Read`] if the read fails.
pub fn take_fault(client: &Client) -> Result<(), Error> {
    if client.is_capturing() {
        return Ok(());
    }
    let stream = StreamKey::current(client);
    let scopes = [Scope::Stream(stream), Scope::Device(client.service_id())];
    let mut fault = None;
    let mut asked = Vec::new();
    for one in watched().iter_mut() {
        if !scopes.contains(&one.scope) {
            continue;
        }
        if one.untold.remove(&stream) {
            fault = Some(one.operation);
        }
        asked.push((
            one.operation,
            one.scope,
            one.control.clone(),
            one.words,
            one.word,
        ));
    }
    if asked.is_empty() {
        return Ok(());
    }
    let taken = client.empty(4 * asked.len());
    for (i, (_, _, control, words, word)) in asked.iter().enumerate() {
        take(client, (control, *words, *word), (&taken, asked.len(), i));
    }
    let bytes = client.read_one(taken).map_err(|error| Error::Read {
        device: client.name().into(),
        reason: format!("{error:?}"),
    })?;
    let mut watched = watched();
    for ((operation, scope, ..), word) in asked.into_iter().zip(bytes.chunks_exact(4)) {
        if word == [0; 4] {
            continue;
        }
        fault = Some(operation);
        let known = |one: &&mut Watched| (one.operation, one.scope) == (operation, scope);
        if let Some(one) = watched.iter_mut().find(known) {
            one.found_by(stream);
        }
    }
    match fault {
        Some(operation) => Err(Error::Handover {
            operation,
            device: client.name().into(),
        }),
        None => Ok(()),
    }
}

/// The fault words of a device, for a server whose launches another library runs: the operation, the buffer, and the place of the
/// 32-bit word in it.
#[cfg(feature = "cuda")]
pub fn fault_words(client: &Client) -> Vec<(&'static str, Handle, usize)> {
    let device = client.service_id();
    let of_device = |one: &&Watched| match one.scope {
        Scope::Stream(stream) => stream.device == device,
        Scope::Device(other) => other == device,
    };
    let watched = watched();
    let words = watched.iter().filter(of_device);
    words
        .map(|one| (one.operation, one.control.clone(), one.word))
        .collect()
}

/// Writes a word to `taken` and 0 in its place, at once: a fault that comes between the two would be lost.
#[cube(launch_unchecked)]
fn take_word(control: &mut [Atomic<u32>], taken: &mut [u32], word: usize, at: usize) {
    if ABSOLUTE_POS == 0 {
        taken[at] = control[word].exchange(0u32);
    }
}

fn take(
    client: &Client,
    (control, words, word): (&Handle, usize, usize),
    (taken, count, at): (&Handle, usize, usize),
) {
    // SAFETY: the buffers have so many words, of `control` as its owner has said, and `word` and `at` are among them.
    unsafe {
        take_word::launch_unchecked(
            client,
            CubeCount::Static(1, 1, 1),
            CubeDim::new_1d(1),
            BufferArg::from_raw_parts(control.clone(), words),
            BufferArg::from_raw_parts(taken.clone(), count),
            word,
            at,
        );
    }
}

/// Nanoseconds of the device's clock. PTX only.
#[cube]
pub(crate) fn nanoseconds() -> u64 {
    let time: u64;
    gpu_asm!("mov.u64 {}, %%globaltimer;", out(_) time);
    time
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One test at a time: each takes what is raised on the device.
    fn alone() -> MutexGuard<'static, ()> {
        static ALONE: Mutex<()> = Mutex::new(());
        ALONE
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    #[test]
    fn a_fault_is_reported_once_and_names_its_operation() {
        let Some(client) = crate::gpu::tests::client() else {
            return;
        };
        let _alone = alone();
        let scope = Scope::Stream(StreamKey::current(&client));
        let raised: &[u32] = &[7, 1];
        let control = client.create_from_slice(bytemuck::cast_slice(raised));
        watch("test", scope, &control, 2, 1);
        let error = Error::Handover {
            operation: "test",
            device: client.name().into(),
        };
        assert_eq!(take_fault(&client), Err(error));
        assert_eq!(take_fault(&client), Ok(()));
        let words = client.read_one(control).unwrap();
        assert_eq!(bytemuck::cast_slice::<u8, u32>(&words)[..2], [7, 0]);
    }

    #[test]
    fn other_streams_do_not_see_a_fault() {
        let Some(client) = crate::gpu::tests::client() else {
            return;
        };
        let _alone = alone();
        let control = client.create_from_slice(&[1, 0, 0, 0]);
        let other = StreamKey {
            device: client.service_id(),
            stream: usize::MAX,
        };
        watch("elsewhere", Scope::Stream(other), &control, 1, 0);
        assert_eq!(take_fault(&client), Ok(()));
    }

    #[test]
    fn a_fault_of_the_device_is_reported_to_every_stream_that_may_have_raised_it() {
        let Some(client) = crate::gpu::tests::client() else {
            return;
        };
        let _alone = alone();
        let scope = Scope::Device(client.service_id());
        let control = client.create_from_slice(&[1, 0, 0, 0]);
        watch("of all", scope, &control, 1, 0);
        let here = StreamKey::current(&client);
        let there = StreamKey {
            stream: here.stream + 1,
            ..here
        };
        for stream in [here, there] {
            watch_stream("of all", scope, stream);
        }
        assert!(take_fault(&client).is_err());
        assert_eq!(take_fault(&client), Ok(()));
        let untold = |stream: StreamKey| {
            let mut all = watched();
            let mut ours = all.iter_mut().filter(|one| one.operation == "of all");
            ours.any(|one| one.untold.remove(&stream))
        };
        assert!(!untold(here));
        assert!(untold(there));
        assert!(!untold(there));
    }
}
