//! A world of processes for distributed training.

#![cfg(unix)]

pub mod environment;
mod error;

pub use environment::{Launcher, Place};
pub use error::{Error, Result};
