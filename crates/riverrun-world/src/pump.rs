//! Moves one collective's data through this rank: in from one link and out on another, both at once, on one thread.
//!
//! A [`Plan`] lists the parts of the buffer that come in and those that go out. A part that comes in is added to the own
//! values or replaces them, and may release the next part that goes out. Nothing is queued: the buffer itself holds what
//! waits, and reading never waits for writing, so that no circle of ranks can block itself.

use crate::wire::{self, again, closed};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// Bytes of a header.
pub(crate) const HEADER: usize = 24;

/// A part that comes in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Incoming {
    pub(crate) range: Range<usize>,
    /// The part that comes in is a partial sum over earlier ranks: the left operand of the addition.
    pub(crate) add: bool,
    /// Releases the next part that goes out.
    pub(crate) release: bool,
}

/// One rank's share of a collective.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) incoming: Vec<Incoming>,
    pub(crate) outgoing: Vec<Range<usize>>,
    /// The number of outgoing parts that may be sent from the start.
    pub(crate) free: usize,
}

/// Why a collective did not come to its end.
pub(crate) enum Broken {
    /// The other side is in another operation; its header.
    Header([u8; HEADER]),
    Out(io::Error),
    In(io::Error),
    Late,
    Stopped,
}

enum Step {
    Done,
    Moved,
    /// The socket has no room, or nothing to read.
    Blocked,
    /// There is nothing to send before something has come.
    Waits,
}

fn bytes(values: &[f32]) -> &[u8] {
    // SAFETY: the same memory; an f32 is four bytes without gaps, and bytes may be anywhere.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

fn bytes_mut(values: &mut [f32]) -> &mut [u8] {
    // SAFETY: the same memory; every four bytes are an f32.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(values)) }
}

fn step(moved: io::Result<usize>, at: &mut usize) -> io::Result<Step> {
    match moved {
        Ok(0) => Err(closed()),
        Ok(n) => {
            *at += n;
            Ok(Step::Moved)
        }
        Err(e) if again(&e) => Ok(Step::Blocked),
        Err(e) => Err(e),
    }
}

pub(crate) struct Pump<'a> {
    pub(crate) header: [u8; HEADER],
    pub(crate) plan: &'a Plan,
    pub(crate) buffer: &'a mut [f32],
    /// Holds one incoming part.
    pub(crate) scratch: &'a mut Vec<f32>,
    pub(crate) to: Option<&'a TcpStream>,
    pub(crate) from: Option<&'a TcpStream>,
}

/// How far one direction has come.
#[derive(Default)]
struct Cursor {
    header: usize,
    part: usize,
    byte: usize,
}

impl Pump<'_> {
    /// Until all has come and gone, `stopped` says so, or nothing has moved for `patience`.
    pub(crate) fn run(
        &mut self,
        patience: Duration,
        stopped: impl Fn() -> bool,
    ) -> Result<(), Broken> {
        let (mut out, mut into, mut theirs) = (Cursor::default(), Cursor::default(), [0; HEADER]);
        let mut free = self.plan.free;
        let mut moved = Instant::now();
        loop {
            let sent = self.send(&mut out, free).map_err(Broken::Out)?;
            let received = self.receive(&mut into, &mut theirs, &mut free)?;
            let mut waits = Vec::new();
            match (&sent, &received) {
                (Step::Done, Step::Done) => return Ok(()),
                (Step::Moved, _) | (_, Step::Moved) => moved = Instant::now(),
                _ => {
                    let out = self
                        .to
                        .filter(|_| matches!(sent, Step::Blocked))
                        .map(|s| (s.as_raw_fd(), libc::POLLOUT));
                    let into = self
                        .from
                        .filter(|_| matches!(received, Step::Blocked))
                        .map(|s| (s.as_raw_fd(), libc::POLLIN));
                    waits.extend(out.into_iter().chain(into));
                    wire::poll(&waits, wire::TICK);
                }
            }
            if stopped() {
                return Err(Broken::Stopped);
            }
            if moved.elapsed() > patience {
                return Err(Broken::Late);
            }
        }
    }

    fn send(&self, cursor: &mut Cursor, free: usize) -> io::Result<Step> {
        let Some(mut to) = self.to else {
            return Ok(Step::Done);
        };
        if cursor.header < HEADER {
            return step(to.write(&self.header[cursor.header..]), &mut cursor.header);
        }
        let Some(range) = self.plan.outgoing.get(cursor.part) else {
            return Ok(Step::Done);
        };
        if cursor.part >= free {
            return Ok(Step::Waits);
        }
        let part = bytes(&self.buffer[range.clone()]);
        let step = step(to.write(&part[cursor.byte..]), &mut cursor.byte)?;
        if cursor.byte == part.len() {
            *cursor = Cursor {
                part: cursor.part + 1,
                byte: 0,
                ..*cursor
            };
        }
        Ok(step)
    }

    fn receive(
        &mut self,
        cursor: &mut Cursor,
        theirs: &mut [u8; HEADER],
        free: &mut usize,
    ) -> Result<Step, Broken> {
        let Some(mut from) = self.from else {
            return Ok(Step::Done);
        };
        if cursor.header < HEADER {
            let step = step(from.read(&mut theirs[cursor.header..]), &mut cursor.header)
                .map_err(Broken::In)?;
            if cursor.header == HEADER && *theirs != self.header {
                return Err(Broken::Header(*theirs));
            }
            return Ok(step);
        }
        let Some(Incoming {
            range,
            add,
            release,
        }) = self.plan.incoming.get(cursor.part)
        else {
            return Ok(Step::Done);
        };
        let own = &mut self.buffer[range.clone()];
        let part = if *add {
            self.scratch.resize(own.len(), 0.0);
            &mut self.scratch[..]
        } else {
            &mut *own
        };
        let part = bytes_mut(part);
        let length = part.len();
        let step =
            step(from.read(&mut part[cursor.byte..]), &mut cursor.byte).map_err(Broken::In)?;
        if cursor.byte == length {
            if *add {
                own.iter_mut()
                    .zip(&*self.scratch)
                    .for_each(|(own, sum)| *own += sum);
            }
            *free += usize::from(*release);
            *cursor = Cursor {
                part: cursor.part + 1,
                byte: 0,
                ..*cursor
            };
        }
        Ok(step)
    }
}
