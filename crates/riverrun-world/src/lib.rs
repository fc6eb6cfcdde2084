//! A world of processes for distributed training.
//!
//! A *world* is a fixed number of processes, the *ranks* 0, 1, … , that work on one training run: usually one per GPU, on one
//! machine or several. Each has all weights and a share of every batch; after the backward pass they add up their gradients,
//! so that all of them take the same step. This crate finds out which rank a process is, lets the ranks find each other, adds
//! up numbers, and ends all of them with one clear message when one of them ends.
//!
//! # The order of calls
//!
//! 1. [`Place::from_environment`] reads the rank from the variables of torchrun, Slurm, MPI, Kubernetes or [`Launch`]; without
//!    a launcher, the world has one process ([`environment`] lists the variables).
//! 2. [`World::join`]: rank 0 listens, the others find it. Ranks that do not belong, that are there twice, or that differ in
//!    what all must have in common are refused, by name. From then on, heartbeats detect lost ranks.
//! 3. [`Ring::connect`], or another [`Transport`]: sums and copies among the ranks.
//! 4. [`World::agree`] wherever all ranks must have the same again: the weights of a checkpoint, the data.
//! 5. [`World::finish`]: waits for all, and leaves. A rank that ends before that has failed.
//!
//! ```
//! use riverrun_world::{Fingerprint, Options, Place, Ring, Transport, World};
//!
//! # fn main() -> Result<(), riverrun_world::Error> {
//! let place = Place::from_environment()?;
//! let options = Options::from_environment()
//!     .agreeing("configuration", Fingerprint::of(b"layers = 6, width = 512"));
//! let world = World::join(&place, options, || Ok(Vec::new()))?;
//! let mut ring = Ring::connect(&world)?;
//!
//! // Each rank has the gradients of its share of the batch.
//! let mut gradients = vec![1.5, -2.0];
//! ring.all_reduce(&mut gradients)?;
//! gradients.iter_mut().for_each(|g| *g /= world.size() as f32);
//!
//! world.agree("weights", Fingerprint::of(b"those after the step"))?;
//! world.finish()?;
//! # Ok(())
//! # }
//! ```
//!
//! [`Launch`] starts several ranks on this machine:
//!
//! ```no_run
//! # fn main() -> Result<(), riverrun_world::Error> {
//! riverrun_world::Launch::new(2, "./train").args(["--steps", "1000"]).run()
//! # }
//! ```
//!
//! # When a rank ends
//!
//! The end of a process is known to all others in milliseconds, since its connection to rank 0 closes. A process that is
//! stopped, or whose machine is cut off, is known after [`Timeouts::silence`]. Rank 0 tells all others; all calls return
//! [`Error::Failed`] with the first cause, which names the rank. A rank whose main thread does not return, because it
//! waits in a library, is ended with exit code 1 after [`Timeouts::grace`]. No call waits without a bound: [`Timeouts`].
//!
//! # What is protected, and what is not
//!
//! Any process that knows the shared secret of a world ([`Token`], `RIVERRUN_WORLD_TOKEN`) may join it. [`Launch`] makes a random one;
//! for other launchers set it yourself, the same for all ranks. Both sides of every connection prove to know it, by an
//! HMAC-SHA256 over random numbers of both and over the greeting, before anything else is read; the secret never travels.
//! **Without a token, any process that can reach the ports and knows the run's name may join.**
//!
//! What follows on a connection is **not encrypted and not signed**: gradients, weights, the table of ranks, what rank 0 hands out.
//! Anyone with access to the network can read and change them. Run worlds in a network that you trust, or inside a tunnel.
//!
//! Rank 0 takes the first free one of [16 ports](environment::PORTS); each other rank takes a port that the system chooses.
//! Where all ranks are on one machine and its address is a loopback address, nothing listens outside of it.
//!
//! # Systems
//!
//! Linux and other Unixes; elsewhere this crate is empty.

#![cfg(unix)]

pub mod environment;
mod error;
mod fate;
mod handshake;
mod heartbeat;
mod launch;
#[cfg(feature = "nccl")]
pub mod nccl;
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
