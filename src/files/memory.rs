//! Memory of this process, if the system reports it.

/// Peak resident memory in bytes.
pub fn peak() -> Option<u64> {
    entry("VmHWM:")
}

/// Resident memory in bytes.
pub fn resident() -> Option<u64> {
    entry("VmRSS:")
}

fn entry(name: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix(name))?;
    let kilobytes: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kilobytes * 1024)
}

/// Memory that this machine can still give to programs, in bytes, where the system says so.
pub fn available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}
