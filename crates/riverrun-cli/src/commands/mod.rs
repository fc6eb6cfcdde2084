//! The commands, one file each.

pub mod devices;
pub mod generate;
pub mod train;
