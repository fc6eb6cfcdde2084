//! Scratch memory of the chained routine, kept between launches.
//!
//! Flags carry the number of their launch, so they are cleared once, when the buffer is made, and the
//! buffer must be used by nothing else afterwards. Launches of one stream run one after another and may
//! share a buffer; so there is one for each device and stream.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, OnceLock};

use cubecl::client::Client;
use cubecl::server::Handle;
use cubecl_environment::stream::StreamId;

/// Buffers of one device and stream.
pub(super) struct Workspace {
    maps: (Handle, usize),
    states: (Handle, usize),
    flags: (Handle, usize),
    epoch: u32,
}

/// What one launch may use.
pub(super) struct Lease {
    pub maps: Handle,
    pub states: Handle,
    pub flags: Handle,
    pub flag_words: usize,
    pub epoch: u32,
}

type Key = (String, StreamId);

fn pool() -> MutexGuard<'static, HashMap<Key, Workspace>> {
    static POOL: OnceLock<Mutex<HashMap<Key, Workspace>>> = OnceLock::new();
    POOL.get_or_init(Default::default)
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn key(client: &Client) -> Key {
    (client.service_id().to_string(), StreamId::current())
}

/// The largest epoch: a flag is `epoch · 2 + cut` in 32 bits.
const LAST_EPOCH: u32 = (1 << 31) - 1;

/// Buffers of at least these sizes, and an epoch that no flag in them carries.
pub(super) fn lease(
    client: &Client,
    map_bytes: usize,
    state_bytes: usize,
    flag_words: usize,
) -> Lease {
    let mut pool = pool();
    let space = pool.entry(key(client)).or_insert_with(|| Workspace {
        maps: (client.empty(map_bytes), map_bytes),
        states: (client.empty(state_bytes), state_bytes),
        flags: (zeros(client, flag_words), flag_words),
        epoch: 0,
    });
    if space.maps.1 < map_bytes {
        space.maps = (client.empty(map_bytes), map_bytes);
    }
    if space.states.1 < state_bytes {
        space.states = (client.empty(state_bytes), state_bytes);
    }
    if space.flags.1 < flag_words || space.epoch == LAST_EPOCH {
        let words = flag_words.max(space.flags.1);
        space.flags = (zeros(client, words), words);
        space.epoch = 0;
    }
    space.epoch += 1;
    Lease {
        maps: space.maps.0.clone(),
        states: space.states.0.clone(),
        flags: space.flags.0.clone(),
        flag_words: space.flags.1,
        epoch: space.epoch,
    }
}

/// Whether a wait between cubes has given up on this device and stream since the last call
/// (reads one word back, so it waits for the device).
///
/// A tile whose wait gave up has written NaN; this tells that apart from NaN in the data.
pub fn handover_fault(client: &Client) -> bool {
    let flags = {
        let pool = pool();
        match pool.get(&key(client)) {
            Some(space) => space.flags.0.clone(),
            None => return false,
        }
    };
    let Ok(bytes) = client.read_one(flags) else {
        return true;
    };
    let words: &[u32] = bytemuck::cast_slice(&bytes);
    let fault = words[1] != 0;
    if fault {
        pool().remove(&key(client));
    }
    fault
}

fn zeros(client: &Client, words: usize) -> Handle {
    client.create_from_slice(bytemuck::cast_slice(&vec![0u32; words]))
}
