//! Products: the oracle against finite differences, the CPU and the vendor's library against the oracle.

mod cpu;
mod oracle;
mod quantized;
#[cfg(feature = "cuda")]
mod vendor;
