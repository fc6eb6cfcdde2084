//! The GPU that the tests run on.

use cubecl::client::Client;

/// The default device's client, that of a software GPU too; where there is none, that is said by name.
pub fn client() -> Option<Client> {
    let client = std::panic::catch_unwind(|| cubecl::Device::default().client()).ok();
    if client.is_none() {
        println!("skipped: no GPU on this machine, not even a software one");
    }
    client
}
