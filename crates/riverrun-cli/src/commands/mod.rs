//! The commands, one file each.

pub mod bench;
pub mod devices;
pub mod generate;
pub mod train;
pub mod verify;
