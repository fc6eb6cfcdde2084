//! CUDA C++ to machine code, by NVRTC.

use std::ffi::{CStr, CString};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use cudarc::nvrtc::sys;

use crate::plan::Kernel;

/// The folders that were named for the compiler's headers.
static HEADERS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Names folders with CUDA's headers, such as those of the package `nvidia-cuda-runtime`. They are asked after `CUDA_PATH`
/// and before the places where a toolkit is usually installed.
pub fn add_header_folders(headers: impl IntoIterator<Item = PathBuf>) {
    let mut known = HEADERS.lock().unwrap_or_else(PoisonError::into_inner);
    for folder in headers {
        if !known.contains(&folder) {
            known.push(folder);
        }
    }
}

/// The folders with CUDA's headers.
fn headers() -> Result<Vec<PathBuf>, String> {
    let toolkit = |root: &Path| root.join("include");
    let named = HEADERS.lock().unwrap_or_else(PoisonError::into_inner);
    let variable = std::env::var_os("CUDA_PATH").map(|path| toolkit(Path::new(&path)));
    let usual = ["/usr/local/cuda", "/opt/cuda"].map(|path| toolkit(Path::new(path)));
    let all = variable.into_iter().chain(named.iter().cloned());
    let all: Vec<PathBuf> = all.chain(usual).collect();
    let Some(found) = all.iter().find(|path| path.join("cuda_fp16.h").exists()) else {
        let all: Vec<String> = all.iter().map(|path| path.display().to_string()).collect();
        return Err(format!(
            "no CUDA headers: cuda_fp16.h is in none of {}; install a CUDA toolkit or the package nvidia-cuda-runtime, or set CUDA_PATH",
            all.join(", ")
        ));
    };
    Ok([found.clone(), found.join("cccl")]
        .into_iter()
        .filter(|path| path.exists())
        .collect())
}

/// The compiler, for one architecture.
pub struct Compiler {
    architecture: String,
    /// The version of NVRTC.
    pub version: (i32, i32),
    options: Vec<CString>,
}

impl Compiler {
    /// The compiler for a compute capability times ten.
    ///
    /// # Errors
    /// NVRTC or CUDA's headers are missing.
    pub fn new(capability: u32) -> Result<Self, String> {
        // SAFETY: it tries to open libraries by their names.
        if !unsafe { sys::is_culib_present() } {
            return Err(
                "NVRTC is missing: there is no libnvrtc.so of CUDA 12 or 13; install a CUDA toolkit or the package nvidia-cuda-nvrtc".into(),
            );
        }
        let (mut major, mut minor) = (0, 0);
        // SAFETY: two integers that outlive the call.
        let status = unsafe { sys::nvrtcVersion(&raw mut major, &raw mut minor) };
        check(status, "the version of NVRTC")?;
        // The kernels may use what an architecture of its own has.
        let own = if capability >= 90 { "a" } else { "" };
        let architecture = format!("sm_{capability}{own}");
        let headers = headers()?;
        let mut options = vec![format!("--gpu-architecture={architecture}")];
        options.extend(
            headers
                .iter()
                .map(|path| format!("--include-path={}", path.display())),
        );
        let options = options.into_iter().map(CString::new);
        Ok(Self {
            architecture,
            version: (major, minor),
            options: options
                .collect::<Result<_, _>>()
                .map_err(|error| error.to_string())?,
        })
    }

    /// What machine code is found by, beside the source.
    pub fn name(&self) -> String {
        let (major, minor) = self.version;
        format!("{}-nvrtc-{major}.{minor}", self.architecture)
    }

    /// Machine code of a kernel.
    ///
    /// # Errors
    /// The compiler's own text.
    pub fn compile(&self, kernel: &Kernel) -> Result<Vec<u8>, String> {
        let source = CString::new(kernel.source.as_str()).map_err(|error| error.to_string())?;
        let name = c"kernel.cu";
        let mut program = Program(std::ptr::null_mut());
        let options: Vec<_> = self.options.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: strings that outlive the calls; sizes are asked for before the buffers of those sizes are written.
        unsafe {
            let none = std::ptr::null();
            let status = sys::nvrtcCreateProgram(
                &raw mut program.0,
                source.as_ptr(),
                name.as_ptr(),
                0,
                none,
                none,
            );
            check(status, &kernel.name)?;
            let compiled =
                sys::nvrtcCompileProgram(program.0, options.len() as i32, options.as_ptr());
            if compiled != sys::nvrtcResult::NVRTC_SUCCESS {
                return Err(format!("{}: {}", kernel.name, program.log()));
            }
            let mut size = 0;
            check(
                sys::nvrtcGetCUBINSize(program.0, &raw mut size),
                &kernel.name,
            )?;
            let mut code = vec![0; size];
            check(
                sys::nvrtcGetCUBIN(program.0, code.as_mut_ptr().cast()),
                &kernel.name,
            )?;
            Ok(code)
        }
    }
}

struct Program(sys::nvrtcProgram);

impl Program {
    fn log(&self) -> String {
        let mut size = 0;
        // SAFETY: as in `compile`.
        unsafe {
            if sys::nvrtcGetProgramLogSize(self.0, &raw mut size) != sys::nvrtcResult::NVRTC_SUCCESS
            {
                return "no log".into();
            }
            let mut log = vec![0u8; size.max(1)];
            sys::nvrtcGetProgramLog(self.0, log.as_mut_ptr().cast());
            let text = CStr::from_bytes_until_nul(&log).unwrap_or(c"");
            text.to_string_lossy().into_owned()
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: the program was made, and is not used after this.
            unsafe { sys::nvrtcDestroyProgram(&raw mut self.0) };
        }
    }
}

fn check(status: sys::nvrtcResult, what: &str) -> Result<(), String> {
    match status {
        sys::nvrtcResult::NVRTC_SUCCESS => Ok(()),
        status => Err(format!("{what}: NVRTC fails with {status:?}")),
    }
}
