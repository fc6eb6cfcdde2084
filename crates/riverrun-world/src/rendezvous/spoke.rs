//! The side of all ranks but rank 0 of the star.

use super::greeting::Start;
use super::{Candidate, Readers, kind, lock};
use crate::environment::PORTS;
use crate::fate::Fate;
use crate::handshake::{self, Stranger};
use crate::heartbeat;
use crate::token::Fingerprint;
use crate::wire::{self, Pen, Put, TICK};
use crate::{Error, Result};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::ops::ControlFlow;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long one attempt to connect may take.
const CONNECT: Duration = Duration::from_secs(1);

#[derive(Default)]
struct Heard {
    start: Option<Vec<u8>>,
    /// The number of meetings that ended well.
    meetings: u64,
}

pub(super) struct Spoke {
    pen: Pen,
    fate: Fate,
    heard: Mutex<Heard>,
    changed: Condvar,
    readers: Readers,
    /// The number of meetings that this rank went to.
    met: Mutex<u64>,
}

/// Greets whoever answers there, and waits for a welcome until `until`.
pub(super) fn call(candidate: &Candidate<'_>, stream: &TcpStream, until: Instant) -> Result<()> {
    candidate
        .membership
        .call(stream, &candidate.greeting.encode())
        .map_err(|e| match e {
            Stranger::Elsewhere(text) => Error::Join(text),
            Stranger::Wrong(text) => Error::Refused(text),
        })?;
    // It has proved to be rank 0.
    match wire::read_frame(stream, wire::LONGEST_GREETING, until) {
        Ok((kind::WELCOME, _)) => Ok(()),
        Ok((kind::REFUSED, text)) => {
            Err(Error::Refused(String::from_utf8_lossy(&text).into_owned()))
        }
        Ok(_) => Err(Error::Join("it does not answer as rank 0 would".into())),
        Err(e) => Err(Error::Join(e.to_string())),
    }
}

impl Spoke {
    pub(super) fn join(candidate: &Candidate<'_>) -> Result<(Arc<Self>, Start, IpAddr)> {
        let until = wire::after(candidate.options.timeouts.join);
        let (stream, root) = find(candidate, until)?;
        let broken =
            |e: std::io::Error| Error::Join(format!("the connection to rank 0 broke: {e}"));
        let spoke = Arc::new(Self {
            pen: Pen::new(&stream).map_err(broken)?,
            fate: candidate.fate.clone(),
            heard: Mutex::default(),
            changed: Condvar::new(),
            readers: Readers::default(),
            met: Mutex::new(0),
        });
        let teller = spoke.clone();
        spoke.fate.on_failure(move || teller.tell_failure());
        let (reader, silence) = (spoke.clone(), candidate.options.timeouts.silence);
        spoke.readers.begin();
        handshake::thread("world-star", move || reader.attend(&stream, root, silence))?;
        // Rank 0 itself tells who is missing; it may be a little later than this rank.
        let until = until + silence;
        let mut heard = lock(&spoke.heard);
        let start = loop {
            if let Some(start) = heard.start.take() {
                break start;
            }
            heard = spoke.wait(heard, until, "rank 0 did not start the world in time")?;
        };
        drop(heard);
        let start = Start::decode(&start, candidate.place.size).map_err(|e| {
            spoke.fate.fail(format!("{}: {e}", candidate.greeting.peer));
            spoke.fate.error()
        })?;
        Ok((spoke, start, root))
    }

    fn wait<'a>(
        &self,
        heard: MutexGuard<'a, Heard>,
        until: Instant,
        late: &str,
    ) -> Result<MutexGuard<'a, Heard>> {
        self.fate.check()?;
        if Instant::now() >= until {
            drop(heard);
            self.fate.fail(late);
            return Err(self.fate.error());
        }
        let waited = self.changed.wait_timeout(heard, TICK);
        Ok(waited.unwrap_or_else(PoisonError::into_inner).0)
    }

    fn attend(&self, stream: &TcpStream, root: IpAddr, silence: Duration) {
        let lost = heartbeat::attend(stream, &self.pen, &self.fate, silence, |kind, payload| {
            match kind {
                kind::START => lock(&self.heard).start = Some(payload),
                kind::AGREED => lock(&self.heard).meetings += 1,
                kind::FINISHED => {
                    lock(&self.heard).meetings += 1;
                    self.fate.close();
                    self.changed.notify_all();
                    return ControlFlow::Break(());
                }
                kind::FAILED => {
                    self.fate.fail(String::from_utf8_lossy(&payload));
                    return ControlFlow::Break(());
                }
                _ => {}
            }
            self.changed.notify_all();
            ControlFlow::Continue(())
        });
        if let Some(why) = lost {
            self.fate.fail(format!("rank 0 (at {root}) is lost: {why}"));
        }
        self.readers.end();
        self.changed.notify_all();
    }

    pub(super) fn meet(&self, name: &str, hash: Fingerprint, until: Instant) -> Result<()> {
        // One meeting at a time, whatever thread asks.
        let mut met = lock(&self.met);
        let _ = self
            .pen
            .send(kind::MEETING, &Put::default().text(name).bytes(&hash.0).0);
        *met += 1;
        let mut heard = lock(&self.heard);
        while heard.meetings < *met {
            heard = self.wait(
                heard,
                until,
                &format!("the other ranks did not come to {name:?} in time"),
            )?;
        }
        Ok(())
    }

    /// After the last meeting.
    pub(super) fn finish(&self) {
        self.pen.close();
    }

    fn tell_failure(&self) {
        let _ = self.pen.send(
            kind::FAILED,
            self.fate.cause().unwrap_or_default().as_bytes(),
        );
        self.pen.close();
        self.readers.wait();
    }
}

/// Tries all addresses and ports round and round, until rank 0 welcomes this process.
fn find(candidate: &Candidate<'_>, until: Instant) -> Result<(TcpStream, IpAddr)> {
    let place = candidate.place;
    let last = place.port.saturating_add(PORTS - 1);
    // What was found at each place, for the message at the end.
    let mut seen: Vec<(String, String)> = Vec::new();
    let mut note = |at: String, what: String| match seen.iter_mut().find(|(a, _)| *a == at) {
        Some((_, old)) => *old = what,
        None => seen.push((at, what)),
    };
    let mut pause = Duration::from_millis(10);
    while Instant::now() < until {
        for address in &place.addresses {
            let hosts = match (address.as_str(), place.port).to_socket_addrs() {
                Ok(hosts) => hosts.map(|a| a.ip()).collect::<Vec<_>>(),
                Err(e) => {
                    note(address.clone(), format!("unknown host ({e})"));
                    continue;
                }
            };
            for (port, ip) in (place.port..=last).flat_map(|p| hosts.iter().map(move |ip| (p, *ip)))
            {
                let target = SocketAddr::new(ip, port);
                let Ok(stream) = TcpStream::connect_timeout(&target, CONNECT) else {
                    continue;
                };
                // On one's own machine, a connection to a port where nobody listens may meet itself.
                if stream.local_addr().is_ok_and(|own| own == target) {
                    continue;
                }
                match call(candidate, &stream, until) {
                    Ok(()) => return Ok((stream, handshake::unwrapped(ip))),
                    Err(Error::Join(text)) => note(target.to_string(), text),
                    Err(e) => return Err(e),
                }
                if Instant::now() >= until {
                    break;
                }
            }
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(TICK * 2);
    }
    let seen: Vec<String> = seen
        .into_iter()
        .map(|(at, what)| format!("{at}: {what}"))
        .collect();
    let seen = if seen.is_empty() {
        "nobody listens there".into()
    } else {
        seen.join("; ")
    };
    let hosts = place.addresses.join(" and ");
    Err(Error::Join(format!(
        "found no rank 0 of run {:?} at {hosts}, ports {} to {last}: {seen}",
        place.run_id, place.port
    )))
}
