//! Raised priority for threads that only pass messages on.
//!
//! The threads between an incoming message and SLAM, and between a pose and its outgoing messages,
//! do little work but must wake up; if all cores are busy (with the network or other programs),
//! they wait for one. A lower nice value schedules them first. On Linux this requires root,
//! CAP_SYS_NICE or RLIMIT_NICE; elsewhere it has no effect.

use std::marker::PhantomData;

/// Why latency may be higher.
pub const NOT_PERMITTED: &str =
    "threads that hand images and poses over may not have a raised priority (RLIMIT_NICE)";

/// The amount by which the nice value is lowered.
const BY: i32 = 10;

/// Raises the priority of the current thread, and of threads it starts, while it lives.
#[derive(Debug)]
pub struct RaisedPriority {
    /// The thread's previous nice value; `None` if the change was not permitted.
    before: Option<i32>,
    /// Not `Send`: the value belongs to one thread.
    _thread: PhantomData<*const ()>,
}

impl RaisedPriority {
    /// Raises the current thread's priority, if permitted.
    pub fn new() -> Self {
        let before = system::nice();
        Self {
            before: system::set_nice(before - BY).then_some(before),
            _thread: PhantomData,
        }
    }

    /// Whether raising the priority was permitted.
    pub fn permitted(&self) -> bool {
        self.before.is_some()
    }

    /// Runs `work`, including threads it starts, at normal priority.
    pub fn aside<T>(&self, work: impl FnOnce() -> T) -> T {
        if let Some(before) = self.before {
            system::set_nice(before);
        }
        let done = work();
        if let Some(before) = self.before {
            system::set_nice(before - BY);
        }
        done
    }
}

impl Default for RaisedPriority {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for RaisedPriority {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            system::set_nice(before);
        }
    }
}

#[cfg(target_os = "linux")]
mod system {
    use rustix::process::{getpriority_process, setpriority_process};

    /// The calling thread's nice value. On Linux, "no process" denotes the calling thread
    /// (setpriority(2), "C library/kernel differences").
    pub fn nice() -> i32 {
        getpriority_process(None).unwrap_or(0)
    }

    /// Sets the calling thread's nice value; returns whether that was permitted.
    pub fn set_nice(value: i32) -> bool {
        setpriority_process(None, value).is_ok()
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    pub fn nice() -> i32 {
        0
    }

    pub fn set_nice(_: i32) -> bool {
        false
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// Nice value of the calling thread: field 19 of its `stat`, in which the second field, the
    /// name, may contain anything.
    fn nice() -> i32 {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let (_, rest) = stat.rsplit_once(')').unwrap();
        rest.split_whitespace().nth(16).unwrap().parse().unwrap()
    }

    #[test]
    fn a_thread_comes_first_and_goes_back() {
        std::thread::spawn(|| {
            let usual = nice();
            let priority = RaisedPriority::new();
            let raised = match priority.permitted() {
                true => (usual - BY).max(-20),
                false => usual,
            };
            assert_eq!(nice(), raised);
            let child = std::thread::spawn(nice).join().unwrap();
            assert_eq!(child, raised, "threads inherit");
            let aside = priority.aside(|| (nice(), std::thread::spawn(nice).join().unwrap()));
            assert_eq!(aside, (usual, usual));
            assert_eq!(nice(), raised);
            drop(priority);
            assert_eq!(nice(), usual);
        })
        .join()
        .unwrap();
    }
}
