//! A world of processes for distributed training.

#![cfg(unix)]

pub mod environment;
mod error;
mod fate;
mod handshake;
mod heartbeat;
mod launch;
mod pump;
mod rendezvous;
mod ring;
mod token;
mod transport;
mod wire;

pub use environment::{Launcher, Place};
pub use error::{Error, Result};
pub use fate::Fate;
pub use launch::Launch;
pub use rendezvous::{Options, Peer, Timeouts, World};
pub use ring::Ring;
pub use token::{Fingerprint, Token};
pub use transport::Transport;
