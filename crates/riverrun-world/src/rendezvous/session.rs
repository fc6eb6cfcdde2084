//! What a world and its transports share.

use super::greeting::Start;
use super::hub::Hub;
use super::spoke::Spoke;
use super::{END, LAST_WORDS, Timeouts};
use crate::fate::Fate;
use crate::token::{Fingerprint, Token};
use crate::{Error, Result, wire};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// After a broken link: how long the heartbeats may take to know whose process ended.
const VERDICT: Duration = Duration::from_secs(2);

/// This process's part in the star.
pub(super) enum Role {
    Alone,
    Hub(Arc<Hub>),
    Spoke(Arc<Spoke>),
}

pub(crate) struct Session {
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) fate: Fate,
    pub(crate) timeouts: Timeouts,
    pub(crate) token: Token,
    #[cfg_attr(
        not(feature = "nccl"),
        expect(dead_code, reason = "all else ends with its threads")
    )]
    pub(crate) until_exit: bool,
    pub(crate) start: Start,
    /// The address by which this process reached rank 0.
    pub(super) root: IpAddr,
    /// Takes connections of other ranks; the one transport over TCP has it.
    pub(crate) listener: Mutex<Option<TcpListener>>,
    pub(super) role: Role,
}

impl Session {
    /// The error of something that broke. The heartbeats may know a better cause; otherwise this is the first.
    pub(crate) fn explain(&self, own: String) -> Error {
        if self.fate.verdict(VERDICT).is_none() {
            self.fail(&own);
        }
        self.fate.error()
    }

    /// Ends the world for a cause that is no other's death.
    pub(crate) fn fail(&self, cause: &str) -> Error {
        self.fate
            .fail(format!("{}: {cause}", self.start.peers[self.rank]));
        self.fate.error()
    }

    /// Where a rank takes connections.
    pub(crate) fn address(&self, rank: usize) -> SocketAddr {
        let peer = &self.start.peers[rank];
        SocketAddr::new(peer.ip.unwrap_or(self.root), peer.port)
    }

    /// Waits until all ranks are at the meeting of this name, with this hash.
    pub(crate) fn meet(&self, name: &str, hash: Fingerprint) -> Result<()> {
        self.fate.check()?;
        let until = wire::after(self.timeouts.collective);
        match &self.role {
            Role::Alone => Ok(()),
            Role::Hub(hub) => hub.meet(name, hash, until),
            Role::Spoke(spoke) => spoke.meet(name, hash, until),
        }
    }

    /// The last meeting, and the end.
    pub(super) fn finish(&self) -> Result<()> {
        self.meet(END, Fingerprint([0; 32]))?;
        self.fate.close();
        match &self.role {
            Role::Alone => {}
            Role::Hub(hub) => hub.finish(),
            Role::Spoke(spoke) => spoke.finish(),
        }
        Ok(())
    }

    /// The end without a last meeting, unless there was one: the others are told.
    pub(super) fn leave(&self) {
        if self.fate.is_over() {
            return;
        }
        self.fail(if std::thread::panicking() {
            "it panicked"
        } else {
            "it left before the end"
        });
        self.fate.settle(LAST_WORDS * 2);
        self.fate.close();
    }
}
