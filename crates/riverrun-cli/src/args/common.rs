//! The options that all measurements share.

use std::path::PathBuf;

use clap::Args;

/// Options of every measurement.
#[derive(Debug, Clone, Args)]
pub struct Common {
    /// Where: auto, cpu, cuda:0, vulkan, ...
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub device: String,
    /// Write the results here too
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Show the memory in use, its peak and the largest allocations at the end
    #[arg(long)]
    pub memory: bool,
}
