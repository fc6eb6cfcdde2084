//! Products: the oracle against finite differences, the vendor's library against the oracle.

mod oracle;
#[cfg(feature = "cuda")]
mod vendor;
