//! Room on a disk.

use std::path::Path;

/// Bytes that this user may still write to the file system of `path`, where the system says so.
#[cfg(target_os = "linux")]
pub fn free_space(path: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(path).ok()?;
    disk.f_bavail.checked_mul(disk.f_frsize)
}

/// Unknown on this system.
#[cfg(not(target_os = "linux"))]
pub fn free_space(_: &Path) -> Option<u64> {
    None
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_disk_has_the_room_that_df_says() {
        let folder = tempfile::tempdir().unwrap();
        let out = std::process::Command::new("df")
            .args(["--output=avail", "-B1"])
            .arg(folder.path())
            .output();
        let out = String::from_utf8(out.unwrap().stdout).unwrap();
        let expected: u64 = out.lines().nth(1).unwrap().trim().parse().unwrap();
        let found = free_space(folder.path()).unwrap();
        // Other programs write meanwhile.
        assert!(found.abs_diff(expected) < 1 << 30, "{found} {expected}");
        assert_eq!(free_space(&folder.path().join("missing")), None);
    }
}
