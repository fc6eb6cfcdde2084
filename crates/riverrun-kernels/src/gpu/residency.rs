//! How many clusters of cubes a device runs at once, for launches whose cubes wait for each other.
//!
//! A cluster lies within one of the groups of multiprocessors that a device is made of, and these groups differ in size from
//! card to card: a device of 132 multiprocessors need not have room for 33 clusters of 4. The driver knows.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use cubecl::client::Client;
use cubecl_common::device::ServiceId;

use super::multiprocessors;

/// Groups of multiprocessors of a device, and the least number of multiprocessors by which one can be larger than another.
const GROUPS: usize = 8;
const PAIR: usize = 2;

type Known = HashMap<(ServiceId, usize), usize>;

fn known() -> MutexGuard<'static, Known> {
    static KNOWN: OnceLock<Mutex<Known>> = OnceLock::new();
    KNOWN
        .get_or_init(Default::default)
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

/// Clusters of so many cubes that the device runs at once where a multiprocessor has room for one cube.
pub(crate) fn clusters_at_once(client: &Client, cubes: usize) -> usize {
    *known()
        .entry((client.service_id(), cubes))
        .or_insert_with(|| match of_driver(client, cubes) {
            // No driver, no groups: a stand-in for a device.
            Ok(None) => multiprocessors(client) / cubes,
            answer => settle(client, cubes, answer.map(Option::unwrap_or_default)),
        })
}

fn settle(client: &Client, cubes: usize, answer: Result<usize, String>) -> usize {
    match answer {
        Ok(clusters) => clusters.min(multiprocessors(client) / cubes),
        Err(reason) => {
            let clusters = at_least(multiprocessors(client), cubes);
            tracing::debug!(reason, cubes, clusters, "clusters at once, estimated");
            clusters
        }
    }
}

/// Asks the driver how many clusters of `cubes` cubes the device of the current context runs at once, for a client that stands
/// in front of that device and is not CubeCL's own.
#[cfg(feature = "cuda")]
pub fn know_clusters(client: &Client, cubes: usize) {
    let shared = client.properties().hardware.max_shared_memory_size as i32;
    let clusters = settle(client, cubes, in_context(shared, cubes));
    known().insert((client.service_id(), cubes), clusters);
}

/// The number wherever the groups' multiprocessors come in pairs, whatever their sizes.
fn at_least(multiprocessors: usize, cubes: usize) -> usize {
    multiprocessors.saturating_sub(GROUPS * cubes.saturating_sub(PAIR)) / cubes
}

#[cfg(not(feature = "cuda"))]
fn of_driver(_client: &Client, _cubes: usize) -> Result<Option<usize>, String> {
    Ok(None)
}

#[cfg(feature = "cuda")]
fn of_driver(client: &Client, cubes: usize) -> Result<Option<usize>, String> {
    let Some(device) = super::cuda::device_of(client) else {
        return Ok(None);
    };
    let shared = client.properties().hardware.max_shared_memory_size as i32;
    super::cuda::Device::new(device)?.ask(move || in_context(shared, cubes).map(Some))
}

/// What the driver says of an empty kernel that takes all shared memory of a multiprocessor, in the current context.
#[cfg(feature = "cuda")]
fn in_context(shared: i32, cubes: usize) -> Result<usize, String> {
    use cudarc::driver::result::{function, module};
    use cudarc::driver::sys;

    const SOURCE: &std::ffi::CStr = c".version 7.8
.target sm_90
.address_size 64
.visible .entry nothing()
{
    ret;
}
";
    // SAFETY: the source is text that ends with 0; the device's context is current. The module stays loaded.
    let nothing = unsafe {
        module::load_data(SOURCE.as_ptr().cast())
            .and_then(|module| module::get_function(module, c"nothing".into()))
    };
    let nothing = nothing.map_err(|error| format!("no empty kernel: {error}"))?;
    let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    // SAFETY: the function is alive.
    unsafe { function::set_function_attribute(nothing, attribute, shared) }
        .map_err(|error| format!("no shared memory: {error}"))?;
    // SAFETY: all zeros are a value of this structure of numbers and unions of numbers.
    let mut cluster: sys::CUlaunchAttribute = unsafe { std::mem::zeroed() };
    cluster.id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    cluster.value.clusterDim = sys::CUlaunchAttributeValue_union__bindgen_ty_1 {
        x: cubes as u32,
        y: 1,
        z: 1,
    };
    let config = sys::CUlaunchConfig {
        gridDimX: cubes as u32,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 256,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: shared as u32,
        hStream: std::ptr::null_mut(),
        attrs: &raw mut cluster,
        numAttrs: 1,
    };
    let mut found = 0;
    // SAFETY: writes one number; the configuration and its attribute are alive.
    let status =
        unsafe { sys::cuOccupancyMaxActiveClusters(&raw mut found, nothing, &raw const config) };
    status
        .result()
        .map_err(|error| format!("no number of clusters: {error}"))?;
    usize::try_from(found).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::at_least;

    #[test]
    fn groups_of_any_even_size_have_room() {
        assert_eq!(at_least(132, 1), 132);
        assert_eq!(at_least(132, 2), 66);
        assert_eq!(at_least(132, 4), 29);
        assert_eq!(at_least(132, 8), 10);
        assert_eq!(at_least(10, 4), 0);
        // The least favourable of these groups, each with a pair left over by clusters of 4.
        let groups = [18, 18, 18, 18, 18, 14, 14, 14];
        assert_eq!(groups.iter().sum::<usize>(), 132);
        assert!(groups.iter().map(|group| group / 4).sum::<usize>() >= at_least(132, 4));
    }
}
