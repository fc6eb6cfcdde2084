//! Plans on this machine's memory: what another library's GPU would run on its own.

use std::ffi::c_void;

use riverrun_guest::{Card, Memory, Plan, Recorder};

use super::library::Libraries;
use super::memory::{HELD_SECONDS, Line};

/// Kept memory, which nothing frees.
struct HostMemory;

impl Memory for HostMemory {
    fn keep(&mut self, content: &[u8]) -> Result<u64, String> {
        let lines = vec![Line([0; 512]); content.len().div_ceil(512).max(1)];
        let address = lines.leak().as_mut_ptr() as u64;
        self.write(address, content)?;
        Ok(address)
    }

    fn write(&mut self, address: u64, content: &[u8]) -> Result<(), String> {
        // SAFETY: `keep` made it, as large at least.
        unsafe { (address as *mut u8).copy_from_nonoverlapping(content.as_ptr(), content.len()) };
        Ok(())
    }

    fn read(&mut self, address: u64, content: &mut [u8]) -> Result<(), String> {
        // SAFETY: as above.
        unsafe {
            content
                .as_mut_ptr()
                .copy_from_nonoverlapping(address as *const u8, content.len())
        };
        Ok(())
    }
}

/// Records plans for a simulated GPU. A program may call it once.
pub fn recorder() -> Recorder {
    Recorder::new(Card::H200, 0, HostMemory)
}

/// Runs a plan on the caller's memory.
///
/// # Safety
/// Buffers of the plan's sizes are at these addresses, each at a multiple of 16 bytes.
pub unsafe fn run(plan: &Plan, arguments: &[u64]) {
    let mut libraries = Libraries::default();
    let mut scratch = vec![Line([0x7f; 512]); (plan.scratch as usize).div_ceil(512).max(1)];
    let scratch = scratch.as_mut_ptr() as u64;
    for launch in &plan.launches {
        let entry = libraries.entry(&launch.kernel.source);
        let addresses = launch.addresses(arguments, scratch);
        let buffers: Vec<*mut c_void> = addresses.map(|address| address as *mut c_void).collect();
        // SAFETY: the kernel's own arguments, in their order; the caller's promise.
        unsafe {
            entry(
                buffers.as_ptr(),
                launch.scalars.as_ptr().cast(),
                launch.cubes.as_ptr(),
                launch.kernel.threads.as_ptr(),
                u32::MAX,
                HELD_SECONDS,
            );
        }
    }
}
