//! Errors of a device at run time, as one typed error with a message of one line.

use burn::backend::ExecutionError;
use burn::tensor::kind::Basic;
use burn::tensor::{Device, Tensor, TensorData};

use super::memory;
use crate::Error;

/// The text that a runtime writes before the size of a failed allocation.
const ALLOCATIONS: [&str; 2] = [
    "out of device memory allocating ",
    "can't allocate buffer of size: ",
];

/// The text that CubeCL writes before the log of a compiler.
const COMPILATION: &str = "[Compilation Error]";

/// Reads a tensor, waiting for the work that makes it.
///
/// # Errors
/// [`Error::OutOfMemory`] if the device had no memory for the tensor or something it depends on: the device stays usable, and
/// other tensors keep their values. [`Error::Execution`] for any other failure.
pub fn read<const D: usize, K: Basic>(tensor: Tensor<D, K>) -> Result<TensorData, Error> {
    let device = tensor.device();
    tensor
        .try_into_data()
        .map_err(|error| execution_error(&device, &error))
}

/// The error of this crate for a failure that a device reports.
#[doc(hidden)]
pub fn execution_error(device: &Device, error: &ExecutionError) -> Error {
    match allocation(error.reason()) {
        Some(requested) => Error::OutOfMemory {
            requested,
            free: memory(device).map(|memory| memory.free),
        },
        None => Error::Execution(one_line(error.reason())),
    }
}

/// The size of a failed allocation in bytes, if the text reports one.
fn allocation(text: &str) -> Option<u64> {
    let after = ALLOCATIONS
        .iter()
        .find_map(|start| text.split_once(start))?
        .1;
    let digits = after.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}

/// A runtime's text without backtraces and line ends; of a kernel that does not compile, the first error.
pub(crate) fn one_line(text: &str) -> String {
    // The log follows, and then the whole source.
    if let Some((_, log)) = text.split_once(COMPILATION) {
        let mut lines = log.lines().map(str::trim);
        let first = lines.find(|line| line.contains("error"));
        let first = first.unwrap_or("no reason was given");
        return format!("a kernel does not compile with NVRTC of CUDA 12 or 13: {first}");
    }
    let noise = |line: &&str| {
        !line.is_empty()
            && ![
                "No backtrace available",
                "Asked at",
                "Backtrace",
                "Caused by:",
            ]
            .iter()
            .any(|start| line.starts_with(start))
    };
    // A backtrace is numbered frames, each followed by its location.
    let frame = |line: &str| {
        line.starts_with("at ")
            || line
                .split_once(':')
                .is_some_and(|(number, _)| number.parse::<u32>().is_ok())
    };
    let lines: Vec<&str> = text
        .lines()
        .map(str::trim)
        .filter(noise)
        .filter(|line| !frame(line))
        .collect();
    lines.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "The bytes were never written (failure #1, still claiming 2 buffer(s))\n  hop\nCaused by:\n  An IO error happened\nCaused by:\n  out of device memory allocating 34360786944 bytes\nNo backtrace available\nAsked at:\n   0: somewhere\n             at /src/lib.rs:1\n";

    #[test]
    fn an_allocation_that_failed_is_told_by_its_size() {
        assert_eq!(allocation(TEXT), Some(34_360_786_944));
        assert_eq!(allocation("can't allocate buffer of size: 7\n"), Some(7));
        assert_eq!(allocation("a launch error"), None);
    }

    #[test]
    fn a_text_becomes_one_line_without_backtraces() {
        let line = one_line(TEXT);
        assert!(
            !line.contains('\n') && !line.contains("backtrace"),
            "{line}"
        );
        assert!(
            line.ends_with("out of device memory allocating 34360786944 bytes"),
            "{line}"
        );
    }

    #[test]
    fn of_a_kernel_that_does_not_compile_the_first_error_is_told() {
        let text = "An error occurred during the compilation of the kernel\n[Compilation Error] \n    \
                    default_program(3): warning: unused\n    default_program(7): error: `x` is undefined\n    \
                    default_program(9): error: `y` is undefined\n[Source]  \nextern \"C\" __global__ void f() {}\n";
        assert_eq!(
            one_line(text),
            "a kernel does not compile with NVRTC of CUDA 12 or 13: default_program(7): error: `x` is undefined"
        );
    }
}
