//! The GPU that the tests run on.

#[cfg(feature = "cuda")]
mod simulated;
#[cfg(feature = "cuda")]
mod stand_in;

use cubecl::client::Client;

/// The default device's client, that of a software GPU too; where there is none, that is said by name. In a build with
/// `cuda`, `RIVERRUN_SIMULATED_GPU=1` asks for an NVIDIA GPU simulated on the CPU.
pub fn client() -> Option<Client> {
    #[cfg(feature = "cuda")]
    if std::env::var_os("RIVERRUN_SIMULATED_GPU").is_some() {
        return Some(simulated::client());
    }
    let client = std::panic::catch_unwind(|| cubecl::Device::default().client()).ok();
    if client.is_none() {
        println!("skipped: no GPU on this machine, not even a software one");
    }
    client
}
