//! All steps of the RSSM in one launch.

pub mod check;
pub mod oracle;

pub use riverrun_kernels::rssm::sequence::*;
