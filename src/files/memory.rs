//! Memory of this process and this machine, if the system reports it.

pub use system::{available, peak, resident};

#[cfg(windows)]
mod system {
    use windows_sys::Win32::System::ProcessStatus::{
        K32GetProcessMemoryInfo, PROCESS_MEMORY_COUNTERS,
    };
    use windows_sys::Win32::System::SystemInformation::{GlobalMemoryStatusEx, MEMORYSTATUSEX};
    use windows_sys::Win32::System::Threading::GetCurrentProcess;

    /// Peak resident memory in bytes.
    pub fn peak() -> Option<u64> {
        u64::try_from(counters()?.PeakWorkingSetSize).ok()
    }

    /// Resident memory in bytes.
    pub fn resident() -> Option<u64> {
        u64::try_from(counters()?.WorkingSetSize).ok()
    }

    fn counters() -> Option<PROCESS_MEMORY_COUNTERS> {
        let size = u32::try_from(size_of::<PROCESS_MEMORY_COUNTERS>()).ok()?;
        let mut counters = PROCESS_MEMORY_COUNTERS {
            cb: size,
            ..Default::default()
        };
        // SAFETY: the handle of the current process is always valid and need not be closed; `counters` is valid for
        // writes of `size` bytes during the call.
        let done = unsafe { K32GetProcessMemoryInfo(GetCurrentProcess(), &mut counters, size) };
        (done != 0).then_some(counters)
    }

    /// Memory that this machine can still give to programs, in bytes.
    pub fn available() -> Option<u64> {
        let mut status = MEMORYSTATUSEX {
            dwLength: u32::try_from(size_of::<MEMORYSTATUSEX>()).ok()?,
            ..Default::default()
        };
        // SAFETY: `status` says its own size and is valid for writes during the call.
        let done = unsafe { GlobalMemoryStatusEx(&mut status) };
        (done != 0).then_some(status.ullAvailPhys)
    }
}

#[cfg(not(windows))]
mod system {
    /// Peak resident memory in bytes.
    pub fn peak() -> Option<u64> {
        entry("/proc/self/status", "VmHWM:")
    }

    /// Resident memory in bytes.
    pub fn resident() -> Option<u64> {
        entry("/proc/self/status", "VmRSS:")
    }

    /// Memory that this machine can still give to programs, in bytes.
    pub fn available() -> Option<u64> {
        entry("/proc/meminfo", "MemAvailable:")
    }

    /// The bytes of a line `NAME: N kB` of a file of Linux.
    fn entry(file: &str, name: &str) -> Option<u64> {
        let text = std::fs::read_to_string(file).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        kilobytes.checked_mul(1024)
    }
}

#[cfg(all(test, any(windows, target_os = "linux")))]
mod tests {
    #[test]
    fn memory_that_is_written_to_is_resident() {
        const BYTES: usize = 64 << 20;
        let memory = std::hint::black_box(vec![1u8; BYTES]);
        assert!(super::resident().expect("a figure") >= BYTES as u64);
        assert!(super::peak().expect("a figure") >= BYTES as u64);
        drop(memory);
        assert!(super::available().expect("a figure") > 0);
    }
}
