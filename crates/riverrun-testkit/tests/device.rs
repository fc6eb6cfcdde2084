//! The GPU that the tests run on.

use cubecl::client::Client;
use riverrun_kernels::gpu::Dtype;

/// The default device's client, that of a software GPU too; where there is none, that is said by name.
pub fn client() -> Option<Client> {
    let client = std::panic::catch_unwind(|| cubecl::Device::default().client()).ok();
    if client.is_none() {
        println!("skipped: no GPU on this machine, not even a software one");
    }
    client
}

/// Whether the device has the type; where it does not, that is said by name.
#[allow(dead_code, reason = "some tests have one type only")]
pub fn supports(client: &Client, dtype: Dtype) -> bool {
    let supported = dtype.supported(client);
    if !supported {
        let (dtype, device) = (dtype.name(), client.name());
        println!("skipped: {dtype} is not supported on {device}");
    }
    supported
}
