//! The world: a star of connections to rank 0, over which ranks find each other, compare hashes and learn of failures.

mod greeting;
mod hub;
mod session;
mod spoke;

pub use greeting::Peer;
pub(crate) use greeting::Start;
pub(crate) use session::Session;

use crate::fate::Fate;
use crate::handshake::{self, Membership};
use crate::token::{Fingerprint, Token};
use crate::wire;
use crate::{Error, Place, Result};
use greeting::Greeting;
use hub::Hub;
use session::Role;
use spoke::Spoke;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Kinds of frames, beside [`BEAT`](crate::heartbeat::BEAT).
mod kind {
    pub(super) const WELCOME: u8 = 2;
    pub(super) const REFUSED: u8 = 3;
    pub(super) const START: u8 = 4;
    /// The cause of a failure, as text.
    pub(super) const FAILED: u8 = 5;
    /// A rank is at a meeting; its name and its hash.
    pub(super) const MEETING: u8 = 6;
    /// All ranks arrived and agreed.
    pub(super) const AGREED: u8 = 7;
    /// All ranks have finished.
    pub(super) const FINISHED: u8 = 8;
}

/// The name of the last meeting.
const END: &str = "the end of the run";

/// How long the sides of a connection wait for each other's last words.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// The longest name of something to agree on.
const LONGEST_NAME: usize = 256;
/// The longest blob.
const LONGEST_BLOB: usize = 64 << 10;

/// How long each wait may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// From the first call until all ranks are there. 2 minutes.
    pub join: Duration,
    /// A rank that is silent for this long is lost. 10 seconds; longer than any pause of a healthy host. The process
    /// may compute meanwhile: its heartbeats are sent by other threads.
    pub silence: Duration,
    /// From a failure to the end of the process by force, if its main thread does not return. 3 seconds.
    pub grace: Duration,
    /// Until the other ranks come to a collective, a meeting or the end. 30 minutes: a rank may be compiling.
    pub collective: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            join: Duration::from_secs(120),
            silence: Duration::from_secs(10),
            grace: Duration::from_secs(3),
            collective: Duration::from_secs(1800),
        }
    }
}

/// How a world is joined.
#[derive(Debug, Clone)]
pub struct Options {
    /// The bounds of all waits.
    pub timeouts: Timeouts,
    /// The shared secret.
    pub token: Token,
    /// Names and hashes of what all ranks must have in common, such as `configuration` and `weights`.
    pub agree: Vec<(String, Fingerprint)>,
    /// Called with a message for every refused connection and taken port. Does nothing by default.
    pub report: fn(&str),
    /// Whether this world lasts until the process exits: then nothing is taken apart that ends with it.
    pub until_exit: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            timeouts: Timeouts::default(),
            token: Token::default(),
            agree: Vec::new(),
            report: |_| {},
            until_exit: false,
        }
    }
}

impl Options {
    /// The defaults, with the token of the environment.
    pub fn from_environment() -> Self {
        Self {
            token: Token::from_environment(),
            ..Self::default()
        }
    }

    /// Adds something that all ranks must have in common.
    pub fn agreeing(mut self, name: &str, hash: impl Into<Fingerprint>) -> Self {
        self.agree.push((name.into(), hash.into()));
        self
    }
}

/// What a rank knows while it joins.
struct Candidate<'a> {
    place: &'a Place,
    options: &'a Options,
    membership: Membership,
    greeting: Greeting,
    fate: Fate,
    only_here: bool,
}

/// A world that this process has joined.
///
/// Dropped before [`World::finish`], it fails: the other ranks hear at once that this one has left.
pub struct World(Arc<Session>);

impl World {
    /// Joins the world of `place`, and returns when all ranks have. Rank 0 calls `blob` then; what it returns, at most
    /// 64 KiB, is handed to all ranks.
    ///
    /// # Errors
    ///
    /// - [`Error::Join`]: rank 0 was not found.
    /// - [`Error::Argument`]: a rank that is not below the number of ranks, or a name that cannot be sent.
    /// - [`Error::Refused`]: rank 0 does not want this process; those that were there first go on.
    /// - [`Error::Failed`]: a rank differs in what was to be agreed on, ended while the others came, or did not come in time.
    /// - The error of `blob`, on rank 0.
    pub fn join(
        place: &Place,
        options: Options,
        blob: impl FnOnce() -> Result<Vec<u8>>,
    ) -> Result<Self> {
        let Place { rank, size, .. } = *place;
        if size == 0 || rank >= size {
            return Err(Error::Argument(format!(
                "rank {rank} is not below the number of ranks, {size}"
            )));
        }
        let local =
            |a: &String| a == "localhost" || a.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
        let only_here = place.local_size == Some(size) && place.addresses.iter().all(local);
        let cannot = |e: std::io::Error| Error::Join(format!("cannot listen for other ranks: {e}"));
        let listener = match size {
            1 => None,
            _ => Some(handshake::listen(only_here, 0).map_err(cannot)?),
        };
        let port = listener
            .as_ref()
            .map_or(Ok(0), |l| l.local_addr().map(|a| a.port()))
            .map_err(cannot)?;
        let candidate = Candidate {
            place,
            options: &options,
            membership: Membership {
                token: options.token.clone(),
                world: Fingerprint::of(format!("star {}", place.run_id).as_bytes()).0,
            },
            greeting: Greeting {
                peer: Peer::here(rank, port),
                size,
                agree: options.agree.clone(),
            },
            fate: Fate::new(format!("[rank {rank}]"), options.timeouts.grace),
            only_here,
        };
        let fate = candidate.fate.clone();
        let joined = match rank {
            0 => candidate.join_as_hub(blob),
            _ => Spoke::join(&candidate)
                .map(|(spoke, start, root)| (Role::Spoke(spoke), start, root)),
        };
        match joined {
            Ok((role, start, root)) => Ok(Self(Arc::new(Session {
                rank,
                size,
                fate,
                timeouts: options.timeouts,
                token: options.token,
                until_exit: options.until_exit,
                start,
                root,
                listener: Mutex::new(listener),
                role,
            }))),
            Err(e) => {
                fate.settle(LAST_WORDS * 2);
                let cause = fate.check();
                fate.close();
                // What a rank said is better than what a socket did.
                Err(if let Error::Join(_) = e {
                    cause.err().unwrap_or(e)
                } else {
                    e
                })
            }
        }
    }

    /// The number of this process.
    pub fn rank(&self) -> usize {
        self.0.rank
    }

    /// The number of processes.
    pub fn size(&self) -> usize {
        self.0.size
    }

    /// All ranks, in order.
    pub fn peers(&self) -> &[Peer] {
        &self.0.start.peers
    }

    /// What rank 0's `blob` returned.
    pub fn blob(&self) -> &[u8] {
        &self.0.start.blob
    }

    /// The state of this world: whether it has failed, and hooks for when it does.
    pub fn fate(&self) -> &Fate {
        &self.0.fate
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.0
    }

    /// Ends the world on all ranks, for a cause that they all report; the first one counts.
    pub fn fail(&self, cause: &str) -> Error {
        self.0.fail(cause)
    }

    /// Waits until all ranks call this with the same name and hash.
    ///
    /// # Errors
    ///
    /// [`Error::Failed`] on all ranks where one has another hash or another name; it says which rank, and what differs.
    /// [`Error::Argument`] for a name that cannot be sent.
    pub fn agree(&self, name: &str, hash: impl Into<Fingerprint>) -> Result<()> {
        check_name(name)?;
        self.0.meet(name, hash.into())
    }

    /// Waits until all ranks have finished, and leaves the world. From here on, the end of a rank is no failure.
    ///
    /// # Errors
    ///
    /// [`Error::Failed`] where a rank failed before it finished.
    pub fn finish(self) -> Result<()> {
        self.0.finish()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl Candidate<'_> {
    fn join_as_hub(&self, blob: impl FnOnce() -> Result<Vec<u8>>) -> Result<(Role, Start, IpAddr)> {
        let hub = match self.place.size {
            1 => None,
            _ => Some(Hub::open(self)?),
        };
        let peers = hub.as_ref().map_or_else(
            || Ok(vec![self.greeting.peer.clone()]),
            |hub| hub.gather(wire::after(self.options.timeouts.join)),
        )?;
        let made = blob().and_then(|blob| {
            if blob.len() > LONGEST_BLOB {
                let text = format!(
                    "a blob of {} bytes is longer than {LONGEST_BLOB}",
                    blob.len()
                );
                return Err(Error::Argument(text));
            }
            Ok(blob)
        });
        let blob = made.inspect_err(|e| self.fate.fail(format!("{}: {e}", self.greeting.peer)))?;
        let session =
            crate::token::random().map_err(|e| Error::Join(format!("no random bytes: {e}")))?;
        let start = Start {
            session,
            blob,
            peers,
        };
        let role = match hub {
            None => Role::Alone,
            Some(hub) => {
                hub.start(&start);
                Role::Hub(hub)
            }
        };
        Ok((role, start, Ipv4Addr::LOCALHOST.into()))
    }
}

/// Whether others would take this as the name of something to agree on.
fn check_name(name: &str) -> Result<()> {
    if name.is_empty()
        || name.len() > LONGEST_NAME
        || name == END
        || name.chars().any(char::is_control)
    {
        return Err(Error::Argument(format!(
            "{name:?} cannot be the name of what is to be agreed on"
        )));
    }
    Ok(())
}

/// The connections that are still read.
#[derive(Default)]
struct Readers(AtomicUsize);

impl Readers {
    fn begin(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    fn end(&self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }

    /// Until every other side has hung up, at most for the time of last words: a socket that is closed with something
    /// unread could take back what was sent on it.
    fn wait(&self) {
        let until = wire::after(LAST_WORDS);
        while self.0.load(Ordering::Acquire) > 0 && std::time::Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The place of a rank that is a thread of this process.
    fn place(rank: usize, size: usize, port: u16) -> Place {
        let lookup = |name: &str| match name {
            "RIVERRUN_RANK" | "RIVERRUN_LOCAL_RANK" => Some(rank.to_string()),
            "RIVERRUN_WORLD_SIZE" | "RIVERRUN_LOCAL_WORLD_SIZE" => Some(size.to_string()),
            "RIVERRUN_ADDRESS" => Some("127.0.0.1".into()),
            "RIVERRUN_PORT" => Some(port.to_string()),
            _ => None,
        };
        Place::from_variables(&lookup).unwrap()
    }

    /// The last ranks come while the world starts: what they hear first must be their welcome.
    #[test]
    fn ranks_that_come_together_all_join() {
        let size = 8;
        for round in 0..40 {
            let free = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
            let port = free.local_addr().unwrap().port().min(u16::MAX - 20);
            drop(free);
            let join = |rank: usize| {
                let options = Options {
                    timeouts: Timeouts {
                        join: Duration::from_secs(10),
                        grace: Duration::from_secs(60),
                        ..Timeouts::default()
                    },
                    token: Token::new(format!("{} {round}", std::process::id())),
                    ..Options::default()
                };
                World::join(&place(rank, size, port), options, || Ok(Vec::new()))?.finish()
            };
            let join = &join;
            std::thread::scope(|scope| {
                let threads: Vec<_> = (0..size)
                    .map(|rank| scope.spawn(move || join(rank)))
                    .collect();
                for (rank, thread) in threads.into_iter().enumerate() {
                    let joined = thread.join().unwrap();
                    assert!(joined.is_ok(), "rank {rank}, round {round}: {joined:?}");
                }
            });
        }
    }
}
