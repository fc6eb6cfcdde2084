//! Scratch memory of the look-back, saved between launches.
//!
//! Words carry the number of their launch, so they are cleared once, when the buffer is made, and nothing else may use the
//! buffer afterwards. Launches of one stream run one after another and may share a buffer; so there is one for each device and
//! stream, of which a runtime has a fixed number.
//!
//! A launch that is recorded into a graph has the same number at every replay, and may run beside those of other streams. So
//! it gets its own words and its own ticket, which a recorded launch before it clears.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, OnceLock};

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;

use crate::gpu::fault::{Scope, StreamKey, watch};
use crate::gpu::grid;

/// Buffers of one device and stream.
pub(super) struct Workspace {
    words: (Handle, usize),
    ticket: Handle,
    fault: Handle,
    epoch: u32,
}

/// The scratch memory of one launch.
pub(super) struct Lease {
    pub words: Handle,
    pub word_count: usize,
    pub ticket: Handle,
    pub fault: Handle,
    pub epoch: u32,
}

fn pool() -> MutexGuard<'static, HashMap<StreamKey, Workspace>> {
    static POOL: OnceLock<Mutex<HashMap<StreamKey, Workspace>>> = OnceLock::new();
    POOL.get_or_init(Default::default)
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The largest epoch: a tag is `epoch · 2 + cut` in 32 bits.
const LAST_EPOCH: u32 = (1 << 31) - 1;

/// At least `word_count` 64-bit words, and an epoch that none of them carries.
pub(super) fn lease(client: &Client, word_count: usize) -> Lease {
    let key = StreamKey::current(client);
    let mut pool = pool();
    let space = pool.entry(key).or_insert_with(|| {
        let fault = zeros(client, 4);
        watch(
            "the recurrence's look-back",
            Scope::Stream(key),
            &fault,
            1,
            0,
        );
        Workspace {
            words: (zeros(client, word_count * 8), word_count),
            ticket: zeros(client, 4),
            fault,
            epoch: 0,
        }
    });
    if client.is_capturing() {
        let (words, ticket) = (client.empty(word_count * 8), client.empty(4));
        clear_words(client, &words, word_count, &ticket);
        return Lease {
            words,
            word_count,
            ticket,
            fault: space.fault.clone(),
            epoch: 1,
        };
    }
    if space.words.1 < word_count || space.epoch == LAST_EPOCH {
        let count = word_count.max(space.words.1);
        space.words = (zeros(client, count * 8), count);
        space.epoch = 0;
    }
    space.epoch += 1;
    Lease {
        words: space.words.0.clone(),
        word_count: space.words.1,
        ticket: space.ticket.clone(),
        fault: space.fault.clone(),
        epoch: space.epoch,
    }
}

/// Writes zeros, two a word.
#[cube(launch_unchecked)]
fn clear(halves: &mut [u32], ticket: &mut [u32]) {
    if ABSOLUTE_POS < halves.len() {
        halves[ABSOLUTE_POS] = 0u32;
    }
    if ABSOLUTE_POS == 0 {
        ticket[0] = 0u32;
    }
}

fn clear_words(client: &Client, words: &Handle, count: usize, ticket: &Handle) {
    let units = 256;
    // Safety: the buffer has two halves a word, and the kernel checks its position.
    unsafe {
        clear::launch_unchecked(
            client,
            grid(client, (2 * count).div_ceil(units)),
            CubeDim::new_1d(units as u32),
            BufferArg::from_raw_parts(words.clone(), 2 * count),
            BufferArg::from_raw_parts(ticket.clone(), 1),
        );
    }
}

fn zeros(client: &Client, bytes: usize) -> Handle {
    client.create_from_slice(&vec![0u8; bytes])
}
