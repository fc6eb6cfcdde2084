//! Collectives over TCP on `f32` of the host: for training on CPUs, and as the oracle of other transports.

mod link;
mod plan;

use crate::fate::Fate;
use crate::pump::{Broken, HEADER, Plan, Pump};
use crate::rendezvous::{Session, World};
use crate::wire::{Get, Put};
use crate::{Error, Result, Transport};
use link::{Inbox, Kind, Link};
use plan::Cut;
use std::collections::HashMap;
use std::net::TcpStream;
use std::sync::Arc;

/// Floats of one part of a pipeline.
const CHUNK: usize = 32 << 10;

/// The operations, as headers name them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    AllReduce = 1,
    ReduceScatter,
    AllGather,
    Broadcast,
    Send,
    Barrier,
}

/// The operation, number and length in a header, in words.
fn described(header: &[u8; HEADER]) -> String {
    let mut get = Get(header);
    let (Ok(operation), Ok(root), Ok(number), Ok(length)) =
        (get.u32(), get.u32(), get.u64(), get.u64())
    else {
        return String::new();
    };
    let names = [
        "?",
        "all_reduce",
        "reduce_scatter",
        "all_gather",
        "broadcast",
        "send",
        "barrier",
    ];
    let name = names.get(operation).unwrap_or(&names[0]);
    let root = if *name == "broadcast" {
        format!(" from rank {root}")
    } else {
        String::new()
    };
    format!("{name}{root} number {number} of length {length}")
}

/// The ranks of a [`World`] in a ring of TCP connections.
///
/// Sums are taken in the order of the ranks, for every element: `((r0 + r1) + r2) + …`. They depend neither on an element's
/// place nor on how the data are cut into calls, and they are what one process gets that adds the ranks' shares one after
/// another. For that, partial sums go along the chain from rank 0 to the last rank, and the result goes round once more;
/// both are pipelined. A link carries twice the data at most, where a ring that starts every segment's sum at another rank
/// would carry 2 (n − 1) / n of it.
///
/// Before the data of each operation goes a header with the operation, its number and its length, so that ranks that do
/// different things get an error that names both, instead of wrong numbers.
///
/// The data are not encrypted, and only the first greeting of a connection is authenticated.
pub struct Ring {
    session: Arc<Session>,
    inbox: Arc<Inbox>,
    next: Option<TcpStream>,
    previous: Option<TcpStream>,
    number: u64,
    to: HashMap<usize, Link>,
    from: HashMap<usize, Link>,
    chunk: usize,
    scratch: Vec<f32>,
}

impl Ring {
    /// Connects this rank with its neighbours. All ranks call it, each once.
    ///
    /// # Errors
    ///
    /// [`Error::Failed`] where a neighbour cannot be reached, and [`Error::Argument`] for a world's second ring.
    pub fn connect(world: &World) -> Result<Self> {
        let session = world.session().clone();
        let (rank, size) = (session.rank, session.size);
        let inbox = Inbox::open(&session)?;
        let (mut next, mut previous) = (None, None);
        if size > 1 {
            next = Some(link::connect(&session, (rank + 1) % size, Kind::Ring)?);
            previous = Some(inbox.take(&session, (rank + size - 1) % size, Kind::Ring)?);
        }
        let (to, from) = Default::default();
        Ok(Self {
            session,
            inbox,
            next,
            previous,
            number: 0,
            to,
            from,
            chunk: CHUNK,
            scratch: Vec::new(),
        })
    }

    /// Sets the floats of one part: data go through the ring part by part. The results do not depend on it, and ranks may
    /// differ in it.
    pub fn with_chunk(mut self, floats: usize) -> Self {
        self.chunk = floats.max(1);
        self
    }

    /// The state of the world of this ring.
    pub fn fate(&self) -> &Fate {
        &self.session.fate
    }

    fn cut(&self, length: usize) -> Cut {
        Cut {
            rank: self.session.rank,
            size: self.session.size,
            length,
            chunk: self.chunk,
        }
    }

    fn header(operation: Operation, root: usize, number: u64, length: usize) -> [u8; HEADER] {
        let put = Put::default()
            .u32(operation as usize)
            .u32(root)
            .u64(number)
            .u64(length as u64);
        let mut header = [0; HEADER];
        header.copy_from_slice(&put.0);
        header
    }

    /// One operation of all ranks.
    fn all(
        &mut self,
        operation: Operation,
        root: usize,
        buffer: &mut [f32],
        length: usize,
        plan: &Plan,
    ) -> Result<()> {
        self.session.fate.check()?;
        if self.session.size == 1 {
            return Ok(());
        }
        let header = Self::header(operation, root, self.number, length);
        self.number += 1;
        let (rank, size) = (self.session.rank, self.session.size);
        let (to, from) = (self.next.as_ref(), self.previous.as_ref());
        let scratch = &mut self.scratch;
        let pump = Pump {
            header,
            plan,
            buffer,
            scratch,
            to,
            from,
        };
        run(
            &self.session,
            pump,
            (rank + 1) % size,
            (rank + size - 1) % size,
        )
    }

    fn is_other(&self, rank: usize) -> Result<()> {
        let (own, size) = (self.session.rank, self.session.size);
        if rank < size && rank != own {
            return Ok(());
        }
        Err(Error::Argument(format!(
            "rank {rank} is not another rank than {own} of {size}"
        )))
    }

    fn parts(&self, whole: usize, part: usize) -> Result<()> {
        let size = self.session.size;
        if part.checked_mul(size) == Some(whole) {
            return Ok(());
        }
        Err(Error::Argument(format!(
            "a length of {whole} is not that of {size} parts of {part}"
        )))
    }
}

fn run(session: &Session, mut pump: Pump<'_>, to: usize, from: usize) -> Result<()> {
    let peers = &session.start.peers;
    let broken = match pump.run(session.timeouts.collective, || session.fate.failed()) {
        Ok(()) => return Ok(()),
        Err(broken) => broken,
    };
    Err(match broken {
        // Nobody has died: there is no better cause to wait for.
        Broken::Header(theirs) => session.fail(&format!(
            "the ranks do different things: this one is in {}, {} in {}",
            described(&pump.header),
            peers[from],
            described(&theirs)
        )),
        Broken::Out(e) => session.explain(format!("the link to {} broke: {e}", peers[to])),
        Broken::In(e) => session.explain(format!("the link from {} broke: {e}", peers[from])),
        Broken::Late => session.fail(&format!("{} did not end in time", described(&pump.header))),
        Broken::Stopped => session.fate.error(),
    })
}

impl Transport for Ring {
    type Input<'a> = &'a [f32];
    type Output<'a> = &'a mut [f32];

    fn rank(&self) -> usize {
        self.session.rank
    }

    fn size(&self) -> usize {
        self.session.size
    }

    fn all_reduce(&mut self, buffer: &mut [f32]) -> Result<()> {
        let length = buffer.len();
        let plan = self.cut(length).all_reduce();
        self.all(Operation::AllReduce, 0, buffer, length, &plan)
    }

    fn reduce_scatter(&mut self, input: &[f32], output: &mut [f32]) -> Result<()> {
        let length = output.len();
        self.parts(input.len(), length)?;
        let plan = self.cut(length).reduce_scatter();
        let mut work = input.to_vec();
        self.all(Operation::ReduceScatter, 0, &mut work, length, &plan)?;
        output.copy_from_slice(&work[self.session.rank * length..][..length]);
        Ok(())
    }

    fn all_gather(&mut self, input: &[f32], output: &mut [f32]) -> Result<()> {
        let length = input.len();
        self.parts(output.len(), length)?;
        output[self.session.rank * length..][..length].copy_from_slice(input);
        let plan = self.cut(length).all_gather();
        self.all(Operation::AllGather, 0, output, length, &plan)
    }

    fn broadcast(&mut self, buffer: &mut [f32], root: usize) -> Result<()> {
        if root >= self.session.size {
            return Err(Error::Argument(format!(
                "rank {root} is not below {}",
                self.session.size
            )));
        }
        let length = buffer.len();
        let plan = self.cut(length).broadcast(root);
        self.all(Operation::Broadcast, root, buffer, length, &plan)
    }

    fn send(&mut self, input: &[f32], to: usize) -> Result<()> {
        self.is_other(to)?;
        self.session.fate.check()?;
        if !self.to.contains_key(&to) {
            let stream = link::connect(&self.session, to, Kind::Direct)?;
            self.to.insert(to, Link { stream, number: 0 });
        }
        let link = self.to.get_mut(&to).expect("it was just made");
        let header = Self::header(Operation::Send, 0, link.number, input.len());
        link.number += 1;
        let plan = Cut::pair(input.len(), self.chunk).send();
        let (buffer, scratch) = (&mut input.to_vec()[..], &mut self.scratch);
        let pump = Pump {
            header,
            plan: &plan,
            buffer,
            scratch,
            to: Some(&link.stream),
            from: None,
        };
        run(&self.session, pump, to, to)
    }

    fn recv(&mut self, output: &mut [f32], from: usize) -> Result<()> {
        self.is_other(from)?;
        self.session.fate.check()?;
        if !self.from.contains_key(&from) {
            let stream = self.inbox.take(&self.session, from, Kind::Direct)?;
            self.from.insert(from, Link { stream, number: 0 });
        }
        let link = self.from.get_mut(&from).expect("it was just taken");
        let header = Self::header(Operation::Send, 0, link.number, output.len());
        link.number += 1;
        let plan = Cut::pair(output.len(), self.chunk).receive();
        let scratch = &mut self.scratch;
        let pump = Pump {
            header,
            plan: &plan,
            buffer: output,
            scratch,
            to: None,
            from: Some(&link.stream),
        };
        run(&self.session, pump, from, from)
    }

    fn barrier(&mut self) -> Result<()> {
        // A rank that has data from every rank knows that every rank has arrived.
        let mut all = vec![0.0; self.session.size];
        let plan = self.cut(1).all_gather();
        self.all(Operation::Barrier, 0, &mut all, 1, &plan)
    }
}
