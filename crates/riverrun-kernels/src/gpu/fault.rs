//! Time limits of waits between the cubes of a launch, and the faults that they raise.
//!
//! A kernel whose cubes wait for each other gives up after [`PATIENCE`]: what it writes from there on is NaN, and it
//! raises a word of its device. So no launch hangs, and no wrong number passes for a right one. [`take_fault`] reads
//! those words; a training loop calls it where it reads the loss.

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
    });
}

/// Reports and clears a wait between cubes that has given up on this device and the calling thread's stream since the last
/// call: of the look-back and of the sequences that run in one launch. Reads a word of each back, so it waits for the
/// stream; does nothing during a recording.
///
/// Such a launch writes NaN from the wait on; the error distinguishes that from NaN in the data.
///
/// # Errors
/// [`Error::Handover`] for the first operation with a fault, [`Error::Read`] if the read fails.
pub fn take_fault(client: &Client) -> Result<(), Error> {
    if client.is_capturing() {
        return Ok(());
    }
    let scopes = [
        Scope::Stream(StreamKey::current(client)),
        Scope::Device(client.service_id()),
    ];
    let found: Vec<(&'static str, Handle, usize, usize)> = watched()
        .iter()
        .filter(|one| scopes.contains(&one.scope))
        .map(|one| (one.operation, one.control.clone(), one.words, one.word))
        .collect();
    let mut fault = None;
    for (operation, control, words, word) in found {
        let bytes = client
            .read_one(control.clone())
            .map_err(|error| Error::Read {
                device: client.name().into(),
                reason: format!("{error:?}"),
            })?;
        if bytes.len() < words * 4 || bytes[word * 4..][..4] == [0; 4] {
            continue;
        }
        clear(client, &control, words, word);
        fault = fault.or(Some(operation));
    }
    match fault {
        Some(operation) => Err(Error::Handover {
            operation,
            device: client.name().into(),
        }),
        None => Ok(()),
    }
}

/// Writes 0 to one word.
#[cube(launch_unchecked)]
fn clear_word(control: &mut [u32], word: usize) {
    if ABSOLUTE_POS == 0 {
        control[word] = 0u32;
    }
}

fn clear(client: &Client, control: &Handle, words: usize, word: usize) {
    // SAFETY: the buffer has `words` words, as its owner has said, and `word` is one of them.
    unsafe {
        clear_word::launch_unchecked(
            client,
            CubeCount::Static(1, 1, 1),
            CubeDim::new_1d(1),
            BufferArg::from_raw_parts(control.clone(), words),
            word,
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

    #[test]
    fn a_fault_is_reported_once_and_names_its_operation() {
        let Some(client) = crate::gpu::tests::client() else {
            return;
        };
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
        let control = client.create_from_slice(&[1, 0, 0, 0]);
        let other = StreamKey {
            device: client.service_id(),
            stream: usize::MAX,
        };
        watch("elsewhere", Scope::Stream(other), &control, 1, 0);
        assert_eq!(take_fault(&client), Ok(()));
    }
}
