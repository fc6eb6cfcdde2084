//! Rank 0's side of the star.

use super::greeting::{Greeting, Peer, Start};
use super::{Candidate, END, Readers, kind, lock};
use crate::environment::PORTS;
use crate::fate::Fate;
use crate::handshake::{self, Caller, Membership, Stranger};
use crate::heartbeat;
use crate::token::Fingerprint;
use crate::wire::{self, Get, Pen, TICK};
use crate::{Error, Result};
use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The number of refusals kept for the final message.
const REFUSALS: usize = 16;

/// A rank that has come.
struct Seat {
    peer: Peer,
    pen: Arc<Pen>,
    /// Meetings at which it is and the others are not yet all.
    meetings: VecDeque<(String, Fingerprint)>,
}

type Seats = Vec<Option<Seat>>;

pub(super) struct Hub {
    membership: Membership,
    own: Greeting,
    fate: Fate,
    silence: Duration,
    report: fn(&str),
    /// By rank; the first stays empty, it is our own.
    seats: Mutex<Seats>,
    changed: Condvar,
    meeting: Mutex<()>,
    refused: Mutex<Vec<String>>,
    readers: Readers,
}

impl Hub {
    /// Listens, and from here on welcomes ranks and refuses strangers until the end of the world.
    pub(super) fn open(candidate: &Candidate<'_>) -> Result<Arc<Self>> {
        let listener = Self::listen(candidate)?;
        let own = Greeting {
            peer: candidate.greeting.peer.clone(),
            size: candidate.greeting.size,
            agree: candidate.greeting.agree.clone(),
        };
        let hub = Arc::new(Self {
            membership: candidate.membership.clone(),
            seats: Mutex::new((0..own.size).map(|_| None).collect()),
            own,
            fate: candidate.fate.clone(),
            silence: candidate.options.timeouts.silence,
            report: candidate.options.report,
            changed: Condvar::new(),
            meeting: Mutex::new(()),
            refused: Mutex::default(),
            readers: Readers::default(),
        });
        let (fate, server, teller) = (hub.fate.clone(), hub.clone(), hub.clone());
        hub.fate.on_failure(move || teller.tell_failure());
        handshake::open_door(
            listener,
            move || fate.is_over(),
            move |s, from, caller| server.serve(&s, from, caller),
        )?;
        Ok(hub)
    }

    fn listen(candidate: &Candidate<'_>) -> Result<TcpListener> {
        let first = candidate.place.port;
        for port in first..first.saturating_add(PORTS) {
            match handshake::listen(candidate.only_here, port) {
                Ok(listener) => return Ok(listener),
                Err(e) => (candidate.options.report)(&format!("port {port} cannot be used ({e})")),
            }
            // Another process may have taken the place of rank 0 first.
            let there = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            if let Ok(stream) = TcpStream::connect_timeout(&there, Duration::from_secs(1))
                && let Err(e @ Error::Refused(_)) =
                    super::spoke::call(candidate, &stream, wire::after(handshake::PATIENCE))
            {
                return Err(e);
            }
        }
        Err(Error::Join(format!(
            "rank 0 cannot listen on any of the {PORTS} ports from {first} on: set RIVERRUN_PORT"
        )))
    }

    /// Waits until all ranks are there.
    pub(super) fn gather(&self, until: Instant) -> Result<Vec<Peer>> {
        let missing = |seats: &Seats| (1..seats.len()).find(|r| seats[*r].is_none());
        let mut seats = lock(&self.seats);
        while missing(&seats).is_some() {
            seats = self.wait(seats, until, |seats| {
                let missing: Vec<usize> =
                    (1..seats.len()).filter(|r| seats[*r].is_none()).collect();
                let refused = lock(&self.refused).join("; ");
                let refused = if refused.is_empty() {
                    refused
                } else {
                    format!(" (refused: {refused})")
                };
                format!(
                    "of {} ranks, {missing:?} did not come in time{refused}",
                    seats.len()
                )
            })?;
        }
        let others = seats.iter().flatten().map(|seat| seat.peer.clone());
        Ok([self.own.peer.clone()].into_iter().chain(others).collect())
    }

    /// Waits for a change. At the deadline the world fails, for the reason that `late` gives.
    fn wait<'a>(
        &self,
        seats: MutexGuard<'a, Seats>,
        until: Instant,
        late: impl FnOnce(&Seats) -> String,
    ) -> Result<MutexGuard<'a, Seats>> {
        self.fate.check()?;
        if Instant::now() >= until {
            let text = late(&seats);
            drop(seats);
            self.fate.fail(text);
            return Err(self.fate.error());
        }
        let waited = self.changed.wait_timeout(seats, TICK);
        Ok(waited.unwrap_or_else(PoisonError::into_inner).0)
    }

    fn pens(&self) -> Vec<Arc<Pen>> {
        lock(&self.seats)
            .iter()
            .flatten()
            .map(|seat| seat.pen.clone())
            .collect()
    }

    /// Sends a frame to all ranks. A failed write is ignored: the rank's reader reports the loss.
    fn tell(&self, kind: u8, payload: &[u8]) {
        for pen in self.pens() {
            let _ = pen.send(kind, payload);
        }
    }

    pub(super) fn start(&self, start: &Start) {
        self.tell(kind::START, &start.encode());
    }

    pub(super) fn meet(&self, name: &str, hash: Fingerprint, until: Instant) -> Result<()> {
        // One meeting at a time, whatever thread asks.
        let _meeting = lock(&self.meeting);
        let mut seats = lock(&self.seats);
        loop {
            let (mut missing, mut differs) = (None, None);
            for seat in seats.iter().flatten() {
                match seat.meetings.front() {
                    None => missing = Some(seat.peer.to_string()),
                    Some((theirs, _)) if theirs != name => {
                        differs = Some(format!(
                            "the ranks do different things: {} is at {theirs:?}, rank 0 at {name:?}",
                            seat.peer
                        ));
                    }
                    Some((_, theirs)) if *theirs != hash => {
                        differs = Some(format!(
                            "{} and {} differ in {name}",
                            seat.peer, self.own.peer
                        ));
                    }
                    Some(_) => {}
                }
            }
            if let Some(text) = differs {
                drop(seats);
                self.fate.fail(text);
                return Err(self.fate.error());
            }
            let Some(who) = missing else { break };
            seats = self.wait(seats, until, |_| {
                format!("{who} did not come to {name:?} in time")
            })?;
        }
        for seat in seats.iter_mut().flatten() {
            seat.meetings.pop_front();
        }
        drop(seats);
        if name == END {
            // Before the others are told: a connection that closes afterwards is no failure.
            self.fate.close();
            self.tell(kind::FINISHED, &[]);
        } else {
            self.tell(kind::AGREED, &[]);
        }
        Ok(())
    }

    /// After the last meeting.
    pub(super) fn finish(&self) {
        self.pens().iter().for_each(|pen| pen.close());
        self.readers.wait();
    }

    fn tell_failure(&self) {
        self.tell(
            kind::FAILED,
            self.fate.cause().unwrap_or_default().as_bytes(),
        );
        self.finish();
    }

    fn refuse(&self, from: SocketAddr, why: &str) {
        let text = format!("{from}: {why}");
        (self.report)(&format!("refused {text}"));
        let mut refused = lock(&self.refused);
        if refused.len() < REFUSALS {
            refused.push(text);
        }
    }

    fn serve(&self, stream: &TcpStream, from: SocketAddr, caller: Caller) {
        let greeting = match self.membership.answer(stream) {
            Ok(greeting) => greeting,
            Err(Stranger::Elsewhere(why) | Stranger::Wrong(why)) => return self.refuse(from, &why),
        };
        drop(caller);
        let Ok(pen) = Pen::new(stream).map(Arc::new) else {
            return;
        };
        let peer = match self.take_seat(&greeting, from, &pen) {
            Ok(peer) => peer,
            Err(why) => {
                let _ = pen.send(kind::REFUSED, why.as_bytes());
                return self.refuse(from, &why);
            }
        };
        self.changed.notify_all();
        let hear = |kind, payload: Vec<u8>| self.hear(&peer, kind, &payload);
        if let Some(why) = heartbeat::attend(stream, &pen, &self.fate, self.silence, hear) {
            self.fate.fail(format!("{peer} is lost: {why}"));
        }
        self.readers.end();
        self.changed.notify_all();
    }

    /// Identifies a rank, decides whether it may join, and welcomes it.
    fn take_seat(&self, greeting: &[u8], from: SocketAddr, pen: &Arc<Pen>) -> Result<Peer, String> {
        let greeting = Greeting::decode(greeting, from).map_err(|e| e.to_string())?;
        let peer = greeting.peer.clone();
        let mut seats = lock(&self.seats);
        // A rank that is admitted before a failure is told of it; none is admitted after it.
        if let Some(cause) = self.fate.cause() {
            return Err(cause);
        }
        let taken = match seats.get(peer.rank) {
            _ if peer.rank == 0 => Some(&self.own.peer),
            Some(Some(seat)) => Some(&seat.peer),
            _ => None,
        };
        if let Some(first) = taken {
            return Err(format!(
                "two processes are rank {}: {peer}, and before it {first}",
                peer.rank
            ));
        }
        let differences = greeting.differences(&self.own);
        if !differences.is_empty() {
            let text = format!(
                "{peer} and {} differ in {}",
                self.own.peer,
                differences.join(", ")
            );
            drop(seats);
            // The world cannot start without this rank.
            self.fate.fail(text.clone());
            return Err(text);
        }
        let Some(seat) = seats.get_mut(peer.rank) else {
            return Err(format!(
                "{peer} is not below the number of ranks, {}",
                self.own.size
            ));
        };
        // Before anything else is sent: who finds the rank in its seat may start the world at once.
        let _ = pen.send(kind::WELCOME, &[]);
        self.readers.begin();
        *seat = Some(Seat {
            peer: peer.clone(),
            pen: pen.clone(),
            meetings: VecDeque::new(),
        });
        Ok(peer)
    }

    fn hear(&self, peer: &Peer, kind: u8, payload: &[u8]) -> ControlFlow<()> {
        match kind {
            kind::FAILED => {
                self.fate.fail(String::from_utf8_lossy(payload));
                ControlFlow::Break(())
            }
            kind::MEETING => {
                let mut get = Get(payload);
                let meeting =
                    (|| Ok::<_, wire::Malformed>((get.text()?, Fingerprint(get.array()?))))();
                match meeting {
                    Ok(meeting) => {
                        if let Some(seat) = &mut lock(&self.seats)[peer.rank] {
                            seat.meetings.push_back(meeting);
                        }
                        self.changed.notify_all();
                    }
                    Err(e) => self.fate.fail(format!("{peer}: {e}")),
                }
                ControlFlow::Continue(())
            }
            _ => ControlFlow::Continue(()),
        }
    }
}
