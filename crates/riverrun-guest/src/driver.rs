//! The CUDA driver: the device's context, kept memory, loaded code and launches.

use std::ffi::{CString, c_void};
use std::mem::MaybeUninit;

use cudarc::driver::result;
use cudarc::driver::sys::{self, CUcontext, CUdevice_attribute, CUfunction, CUstream};

use crate::Card;
use crate::plan::{Kernel, Launch, Memory};

/// The most arguments of a launch that need no allocation.
const ARGUMENTS: usize = 48;

/// A device and its primary context, which every CUDA library of the process shares.
#[derive(Clone, Copy)]
pub struct Context {
    context: CUcontext,
    device: sys::CUdevice,
}

// SAFETY: a CUDA context is a name that any thread may make current.
unsafe impl Send for Context {}
// SAFETY: as above; nothing here changes.
unsafe impl Sync for Context {}

/// A context that is the calling thread's, and the one to go back to, if it is another.
#[must_use]
pub struct Entered(Option<CUcontext>);

impl Drop for Entered {
    fn drop(&mut self) {
        if let Some(before) = self.0 {
            // SAFETY: it was the thread's, or is none.
            let _ = unsafe { result::ctx::set_current(before) };
        }
    }
}

/// A loaded kernel.
#[derive(Clone, Copy)]
pub struct Function(CUfunction);

// SAFETY: as for `Context`; code stays loaded.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

fn failed(what: &str) -> impl Fn(result::DriverError) -> String + '_ {
    move |error| format!("{what}: {error}")
}

impl Context {
    /// The context of a device.
    ///
    /// # Errors
    /// No driver, or no such device.
    pub fn of(ordinal: u16) -> Result<Self, String> {
        // SAFETY: it tries to open libraries by their names.
        if !unsafe { sys::is_culib_present() } {
            return Err("there is no NVIDIA driver: libcuda.so is missing".into());
        }
        let what = format!("CUDA device {ordinal}");
        result::init().map_err(failed("the NVIDIA driver"))?;
        let device = result::device::get(i32::from(ordinal)).map_err(failed(&what))?;
        // SAFETY: the device is one of the driver's. The context, once retained, lives as long as the process.
        let context = unsafe { result::primary_ctx::retain(device) }.map_err(failed(&what))?;
        Ok(Self { context, device })
    }

    /// Makes the context that of the calling thread, until the result is dropped: the thread's own library goes on with the device
    /// that it had.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn enter(self) -> Result<Entered, String> {
        let failed = failed("the device's context");
        let before = result::ctx::get_current().map_err(&failed)?;
        if before == Some(self.context) {
            return Ok(Entered(None));
        }
        // SAFETY: the context is retained for ever.
        unsafe { result::ctx::set_current(self.context) }.map_err(&failed)?;
        Ok(Entered(Some(before.unwrap_or(std::ptr::null_mut()))))
    }

    fn attribute(self, attribute: CUdevice_attribute) -> Result<u32, String> {
        // SAFETY: the device is one of the driver's.
        let value = unsafe { result::device::get_attribute(self.device, attribute) };
        let value = value.map_err(failed("an attribute of the device"))?;
        u32::try_from(value).map_err(|error| error.to_string())
    }

    /// What kernels ask of the device.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn card(self) -> Result<Card, String> {
        use CUdevice_attribute as Of;
        let major = self.attribute(Of::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = self.attribute(Of::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        let shared = self.attribute(Of::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
        Ok(Card::new(
            10 * major + minor,
            self.attribute(Of::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            shared as usize >> 10,
        ))
    }

    /// Loads machine code. The context is current.
    ///
    /// # Errors
    /// Code that is not for this device; too little shared memory.
    pub fn load(self, kernel: &Kernel, code: &[u8]) -> Result<Function, String> {
        let name = CString::new(kernel.name.as_str()).map_err(|error| error.to_string())?;
        let shared = kernel.shared as i32;
        let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the code is a whole file of the compiler, and stays loaded.
        let function = unsafe {
            result::module::load_data(code.as_ptr().cast())
                .and_then(|module| result::module::get_function(module, name))
                .and_then(|function| {
                    result::function::set_function_attribute(function, attribute, shared)?;
                    Ok(function)
                })
        };
        function.map(Function).map_err(failed(&kernel.name))
    }
}

/// Puts a launch on a stream. The context is current.
///
/// # Safety
/// The buffers have the sizes that the launch was recorded with.
///
/// # Errors
/// Those of the driver.
pub unsafe fn launch(
    function: Function,
    launch: &Launch,
    stream: u64,
    addresses: impl Iterator<Item = u64>,
) -> Result<(), String> {
    let mut values = [0u64; ARGUMENTS];
    let mut count = 0;
    for address in addresses {
        *values.get_mut(count).ok_or("too many buffers")? = address;
        count += 1;
    }
    let mut arguments = [MaybeUninit::<*mut c_void>::uninit(); ARGUMENTS + 1];
    for (argument, value) in arguments.iter_mut().zip(&values[..count]) {
        argument.write(std::ptr::from_ref(value).cast_mut().cast());
    }
    arguments[count].write(launch.scalars.as_ptr().cast_mut().cast());
    let ([x, y, z], [across, down, deep]) = (launch.cubes, launch.kernel.threads);
    // SAFETY: as many arguments as the kernel has, then its scalars; the driver copies them before it returns.
    let status = unsafe {
        sys::cuLaunchKernel(
            function.0,
            x,
            y,
            z,
            across,
            down,
            deep,
            launch.kernel.shared as u32,
            stream as CUstream,
            arguments.as_mut_ptr().cast(),
            std::ptr::null_mut(),
        )
    };
    status.result().map_err(failed(&launch.kernel.name))
}

/// A time in which the thread may allocate and load although a stream of the process records a graph.
pub struct Relaxed(sys::CUstreamCaptureMode);

impl Relaxed {
    /// Begins. The context is current.
    pub fn begin() -> Self {
        let mut mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: it swaps one number.
        unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut mode) };
        Self(mode)
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut self.0) };
    }
}

/// Kept memory on the device. Copies go by a stream of their own and are waited for.
pub struct DeviceMemory {
    pub context: Context,
    pub stream: Option<u64>,
}

impl DeviceMemory {
    /// The stream of the copies. The context is current.
    fn stream(&mut self) -> Result<CUstream, String> {
        if let Some(stream) = self.stream {
            return Ok(stream as CUstream);
        }
        let kind = result::stream::StreamKind::NonBlocking;
        let stream = result::stream::create(kind).map_err(failed("a stream"))?;
        self.stream = Some(stream as u64);
        Ok(stream)
    }

    fn copied(stream: CUstream, copy: Result<(), result::DriverError>) -> Result<(), String> {
        copy.map_err(failed("a copy"))?;
        // SAFETY: the stream is this memory's.
        unsafe { result::stream::synchronize(stream) }.map_err(failed("a copy"))
    }
}

impl Memory for DeviceMemory {
    fn keep(&mut self, content: &[u8]) -> Result<u64, String> {
        let _entered = self.context.enter()?;
        let _relaxed = Relaxed::begin();
        // SAFETY: new memory, which nothing frees.
        let address = unsafe { result::malloc_sync(content.len().max(1)) };
        let address = address.map_err(failed("memory for an operation's own words"))?;
        self.write(address, content)?;
        Ok(address)
    }

    fn write(&mut self, address: u64, content: &[u8]) -> Result<(), String> {
        let _entered = self.context.enter()?;
        let _relaxed = Relaxed::begin();
        let stream = self.stream()?;
        // SAFETY: kept memory of at least this size; the copy is waited for.
        let copy = unsafe { result::memcpy_htod_async(address, content, stream) };
        Self::copied(stream, copy)
    }

    fn read(&mut self, address: u64, content: &mut [u8]) -> Result<(), String> {
        let _entered = self.context.enter()?;
        let _relaxed = Relaxed::begin();
        let stream = self.stream()?;
        // SAFETY: as above.
        let copy = unsafe { result::memcpy_dtoh_async(content, address, stream) };
        Self::copied(stream, copy)
    }
}
