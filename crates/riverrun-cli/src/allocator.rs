//! Settings and counts of the memory allocator.
//!
//! A training step on the CPU frees and allocates the same tensors, megabytes each, thousands of times.
//! glibc gives blocks of that size back to the kernel when they are freed and asks for them again, zeroed
//! page by page, a moment later: on two cores that was nearly half of a small model's step.

/// Makes the allocator keep freed memory. Only glibc needs this.
pub fn keep_freed() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: mallopt only sets numbers in the allocator, before any thread is started. A number that
    // it refuses leaves it as it was.
    unsafe {
        // No block has a mapping of its own, which would end with it,
        libc::mallopt(libc::M_MMAP_MAX, 0);
        // the heap does not shrink,
        libc::mallopt(libc::M_TRIM_THRESHOLD, libc::c_int::MAX);
        // and grows in steps of 64 MiB.
        libc::mallopt(libc::M_TOP_PAD, 64 << 20);
    }
}

/// Bytes of the process's heap in use, if the allocator reports them: glibc does from 2.33 on.
pub fn in_use() -> Option<u64> {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        type Counts = unsafe extern "C" fn() -> libc::mallinfo2;
        // Looked up, not linked: the program starts with an older glibc too.
        // SAFETY: the name ends with a zero. In glibc it is a function of this type, which only reads the allocator's counts.
        let info = unsafe {
            let found = libc::dlsym(libc::RTLD_DEFAULT, c"mallinfo2".as_ptr());
            std::mem::transmute::<*mut libc::c_void, Option<Counts>>(found)?()
        };
        Some((info.uordblks + info.hblkhd) as u64)
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    None
}
