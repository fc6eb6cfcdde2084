//! Kernels as libraries of this machine.

use std::collections::HashMap;
use std::ffi::{CString, c_char, c_int, c_void};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use super::translate::translate;

/// Buffers, scalars, cubes, threads; a cube that is held back, and for how many seconds.
type Launch =
    unsafe extern "C" fn(*const *mut c_void, *const c_void, *const u32, *const u32, u32, u64);

unsafe extern "C" {
    fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// What kernels are compiled after.
const RUNTIME: &str = include_str!("runtime.h");

/// Resolve everything at once.
const NOW: c_int = 2;

/// The kernels compiled so far, by their source.
#[derive(Default)]
pub struct Libraries(HashMap<u64, Launch>);

impl Libraries {
    /// The entry of a kernel.
    ///
    /// # Panics
    /// Where it cannot be translated or compiled.
    pub fn entry(&mut self, source: &str) -> Launch {
        let mut hasher = DefaultHasher::new();
        source.hash(&mut hasher);
        *self
            .0
            .entry(hasher.finish())
            .or_insert_with(|| compile(source, hasher.finish()))
    }
}

fn compile(source: &str, hash: u64) -> Launch {
    let text = translate(source).unwrap_or_else(|error| panic!("{error} in:\n{source}"));
    let place =
        |ending: &str| folder().join(format!("{hash:016x}-{}.{ending}", std::process::id()));
    let (code, library) = (place("cpp"), place("so"));
    std::fs::write(&code, text).expect("writing a kernel's source");
    let mut compiler = compiler();
    compiler.arg("-shared").arg("-include").arg(header());
    run(compiler.arg("-o").args([&library, &code]));
    let path = CString::new(library.to_string_lossy().as_bytes()).expect("a path without zeros");
    // SAFETY: the library has just been made; its only initialization is that of plain statics.
    let entry = unsafe { dlsym(dlopen(path.as_ptr(), NOW), c"sim_launch".as_ptr()) };
    assert!(!entry.is_null(), "{} has no entry", library.display());
    let _ = (std::fs::remove_file(code), std::fs::remove_file(library));
    // SAFETY: it is of this type, by `translate`.
    unsafe { std::mem::transmute::<*mut c_void, Launch>(entry) }
}

/// `runtime.h` with its precompiled form beside it: parsing the standard library takes longer than most kernels. The files
/// stay for the next process; a compiler that cannot use the precompiled form reads the header.
fn header() -> &'static Path {
    static HEADER: OnceLock<PathBuf> = OnceLock::new();
    HEADER.get_or_init(|| {
        let mut hasher = DefaultHasher::new();
        RUNTIME.hash(&mut hasher);
        let folder = folder().join(format!("runtime-{:016x}", hasher.finish()));
        let (header, compiled) = (folder.join("runtime.h"), folder.join("runtime.h.gch"));
        if !compiled.exists() {
            // Another process may do the same: each moves whole files.
            let own = |file: &Path| file.with_extension(std::process::id().to_string());
            std::fs::create_dir_all(&folder).expect("a folder for the runtime's header");
            std::fs::write(own(&header), RUNTIME).expect("writing the runtime's header");
            std::fs::rename(own(&header), &header).expect("moving the runtime's header");
            let mut compiler = compiler();
            compiler.args(["-x", "c++-header"]).arg(&header);
            run(compiler.arg("-o").arg(own(&compiled)));
            std::fs::rename(own(&compiled), &compiled).expect("moving the precompiled header");
        }
        header
    })
}

fn folder() -> PathBuf {
    let folder = std::env::temp_dir().join("riverrun-simulated");
    std::fs::create_dir_all(&folder).expect("a folder for compiled kernels");
    folder
}

/// The C++ compiler with the options that the header and the kernels share.
fn compiler() -> Command {
    let mut command = Command::new(std::env::var("CXX").unwrap_or_else(|_| "c++".into()));
    command.args(["-std=c++17", "-O1", "-mfma", "-mf16c", "-w", "-fPIC"]);
    command
}

fn run(compiler: &mut Command) {
    let name = compiler.get_program().to_owned();
    let done = compiler.output().unwrap_or_else(|error| {
        panic!(
            "the simulated device needs a C++ compiler ({}): {error}",
            name.display()
        )
    });
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{compiler:?}: {errors}");
}
