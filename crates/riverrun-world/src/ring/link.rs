//! Connections between ranks, in one direction each.

use crate::handshake::{self, Membership};
use crate::rendezvous::Session;
use crate::token::Fingerprint;
use crate::wire::{self, Get, Put};
use crate::{Error, Result};
use std::collections::HashMap;
use std::net::TcpStream;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Ring,
    Direct,
}

/// A connection, and the number of its next operation.
pub(super) struct Link {
    pub(super) stream: TcpStream,
    pub(super) number: u64,
}

/// Connections that other ranks have made, until they are asked for.
pub(super) struct Inbox {
    streams: Mutex<HashMap<(Kind, usize), TcpStream>>,
    changed: Condvar,
}

fn membership(session: &Session) -> Membership {
    let name = [&b"links "[..], &session.start.session].concat();
    Membership {
        token: session.token.clone(),
        world: Fingerprint::of(&name).0,
    }
}

impl Inbox {
    /// Takes connections from here on, until it is dropped.
    pub(super) fn open(session: &Arc<Session>) -> Result<Arc<Self>> {
        let inbox = Arc::new(Self {
            streams: Mutex::default(),
            changed: Condvar::new(),
        });
        if session.size == 1 {
            return Ok(inbox);
        }
        let listener = session
            .listener
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let Some(listener) = listener else {
            return Err(Error::Argument("this world has a ring already".into()));
        };
        let (membership, rank, size, fate) = (
            membership(session),
            session.rank,
            session.size,
            session.fate.clone(),
        );
        let (open, weak) = (Arc::downgrade(&inbox), Arc::downgrade(&inbox));
        let over = move || open.strong_count() == 0 || fate.is_over();
        handshake::open_door(listener, over, move |stream, _, caller| {
            let greeting = membership.answer(&stream);
            drop(caller);
            // Strangers are hung up on.
            if let (Ok(greeting), Some(inbox)) = (greeting, weak.upgrade())
                && let Some(key) = decode(&greeting, rank, size)
                && stream.set_nonblocking(true).is_ok()
            {
                inbox
                    .streams
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .insert(key, stream);
                inbox.changed.notify_all();
            }
        })?;
        Ok(inbox)
    }

    /// Waits for the connection that `from` makes.
    pub(super) fn take(&self, session: &Session, from: usize, kind: Kind) -> Result<TcpStream> {
        let until = wire::after(session.timeouts.collective);
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(stream) = streams.remove(&(kind, from)) {
                return Ok(stream);
            }
            session.fate.check()?;
            if Instant::now() >= until {
                return Err(session.fail(&format!(
                    "{} did not connect in time",
                    session.start.peers[from]
                )));
            }
            let waited = self.changed.wait_timeout(streams, wire::TICK);
            streams = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

fn encode(kind: Kind, from: usize, to: usize) -> Vec<u8> {
    Put::default().u8(kind as u8).u32(from).u32(to).0
}

/// Kind and sender of a greeting to this rank.
fn decode(greeting: &[u8], rank: usize, size: usize) -> Option<(Kind, usize)> {
    let mut get = Get(greeting);
    let ([kind], from, to) = (get.array().ok()?, get.u32().ok()?, get.u32().ok()?);
    let kind = [Kind::Ring, Kind::Direct]
        .into_iter()
        .find(|k| *k as u8 == kind)?;
    get.end().ok()?;
    (to == rank && from < size && from != rank).then_some((kind, from))
}

/// Connects to another rank, which may not have come to its door yet.
pub(super) fn connect(session: &Session, to: usize, kind: Kind) -> Result<TcpStream> {
    let (address, membership) = (session.address(to), membership(session));
    let greeting = encode(kind, session.rank, to);
    let until = wire::after(session.timeouts.collective);
    loop {
        session.fate.check()?;
        let connected =
            TcpStream::connect_timeout(&address, Duration::from_secs(2)).map_err(|e| e.to_string());
        let why = match connected.and_then(|s| match membership.call(&s, &greeting) {
            Ok(()) => s
                .set_nonblocking(true)
                .map(|()| s)
                .map_err(|e| e.to_string()),
            Err(handshake::Stranger::Elsewhere(why) | handshake::Stranger::Wrong(why)) => Err(why),
        }) {
            Ok(stream) => return Ok(stream),
            Err(why) => why,
        };
        if Instant::now() >= until {
            let peer = &session.start.peers[to];
            return Err(session.explain(format!("cannot connect to {peer} at {address}: {why}")));
        }
        std::thread::sleep(wire::TICK / 2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greetings() {
        let good = encode(Kind::Direct, 2, 1);
        assert_eq!(decode(&good, 1, 3), Some((Kind::Direct, 2)));
        assert_eq!(decode(&good, 0, 3), None);
        assert_eq!(decode(&good, 1, 2), None);
        assert_eq!(decode(&encode(Kind::Ring, 1, 1), 1, 3), None);
        assert_eq!(decode(&[&good[..], &[0]].concat(), 1, 3), None);
        assert_eq!(decode(&[&[9], &good[1..]].concat(), 1, 3), None);
        assert!((0..good.len()).all(|cut| decode(&good[..cut], 1, 3).is_none()));
    }
}
