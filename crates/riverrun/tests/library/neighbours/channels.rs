//! Ranks that are threads, over channels.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use riverrun::{Error, Neighbours, StateTransport};

/// No test waits longer for a message.
const LIMIT: Duration = Duration::from_secs(60);

/// The ends of a rank, by the other rank.
pub struct Channels {
    rank: usize,
    to: Vec<Sender<Vec<f32>>>,
    from: Vec<Receiver<Vec<f32>>>,
}

/// A group of ranks.
pub fn group(size: usize) -> Vec<Channels> {
    let ranks = (0..size).map(|rank| Channels {
        rank,
        to: Vec::new(),
        from: Vec::new(),
    });
    let mut ranks: Vec<Channels> = ranks.collect();
    for from in 0..size {
        for to in 0..size {
            let (sender, receiver) = channel();
            ranks[from].to.push(sender);
            ranks[to].from.push(receiver);
        }
    }
    ranks
}

impl StateTransport for Channels {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.to.len()
    }

    fn send(&mut self, numbers: &[f32], to: usize) -> Result<(), Error> {
        let sent = self.to[to].send(numbers.to_vec());
        sent.map_err(|_| Error::HandOver(format!("rank {to} has ended")))
    }

    fn receive(&mut self, numbers: &mut [f32], from: usize) -> Result<(), Error> {
        let lost = |error| Error::HandOver(format!("rank {from}: {error}"));
        let sent = self.from[from].recv_timeout(LIMIT).map_err(lost)?;
        if sent.len() != numbers.len() {
            let (sent, expected) = (sent.len(), numbers.len());
            let text = format!("rank {from} sent {sent} numbers in the place of {expected}");
            return Err(Error::HandOver(text));
        }
        numbers.copy_from_slice(&sent);
        Ok(())
    }
}

/// Runs a function on every rank of a group, and gives the results in their order.
pub fn on_ranks<R: Send>(size: usize, run: impl Fn(Neighbours) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let start = |channels| scope.spawn(|| run(Neighbours::new(channels)));
        let threads: Vec<_> = group(size).into_iter().map(start).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, R>| thread.join().unwrap();
        threads.into_iter().map(join).collect()
    })
}
