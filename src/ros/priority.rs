//! Which threads come first when the processor is short: those that only hand things over.
//!
//! Between a message and SLAM, and between a pose and its messages, there is hardly any work, but a thread that is
//! woken; where all cores are busy (with the network, with others), it waits for one. A better nice value lets it in
//! first. Linux permits that to root, with CAP_SYS_NICE, or by RLIMIT_NICE; elsewhere nothing changes.

use std::marker::PhantomData;

/// By how much the nice value is lowered.
const BY: i32 = 10;

/// As long as it lives, the thread comes first, and so do the threads that it starts.
#[derive(Debug)]
pub struct First {
    /// The thread's nice value before; `None` where another one was not permitted.
    before: Option<i32>,
    /// It is of one thread.
    _thread: PhantomData<*const ()>,
}

impl First {
    /// The thread comes first from now on, where that is permitted.
    pub fn new() -> Self {
        let before = system::nice();
        Self {
            before: system::set_nice(before - BY).then_some(before),
            _thread: PhantomData,
        }
    }

    /// Whether it was permitted.
    pub fn permitted(&self) -> bool {
        self.before.is_some()
    }

    /// Runs `work` as any other thread, with what it starts.
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

impl Default for First {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for First {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            system::set_nice(before);
        }
    }
}

#[cfg(target_os = "linux")]
mod system {
    use std::ffi::c_int;

    const PRIO_PROCESS: c_int = 0;

    unsafe extern "C" {
        fn getpriority(which: c_int, who: u32) -> c_int;
        fn setpriority(which: c_int, who: u32, nice: c_int) -> c_int;
    }

    /// The calling thread's nice value.
    pub fn nice() -> i32 {
        // SAFETY: POSIX's function with its types; it takes numbers only. On Linux `who` of 0 is the calling
        // thread (setpriority(2), "C library/kernel differences").
        unsafe { getpriority(PRIO_PROCESS, 0) }
    }

    /// Sets the calling thread's nice value; whether that was permitted.
    pub fn set_nice(value: i32) -> bool {
        // SAFETY: as above.
        unsafe { setpriority(PRIO_PROCESS, 0, value) == 0 }
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    /// Not known.
    pub fn nice() -> i32 {
        0
    }

    /// Not known how.
    pub fn set_nice(_: i32) -> bool {
        false
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// Of the calling thread: the 19th field of its `stat`, whose second, the name, may hold anything.
    fn nice() -> i32 {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let (_, rest) = stat.rsplit_once(')').unwrap();
        rest.split_whitespace().nth(16).unwrap().parse().unwrap()
    }

    #[test]
    fn a_thread_comes_first_and_goes_back() {
        std::thread::spawn(|| {
            let usual = nice();
            let first = First::new();
            let raised = match first.permitted() {
                true => (usual - BY).max(-20),
                false => usual,
            };
            assert_eq!(nice(), raised);
            let child = std::thread::spawn(nice).join().unwrap();
            assert_eq!(child, raised, "threads inherit");
            let aside = first.aside(|| (nice(), std::thread::spawn(nice).join().unwrap()));
            assert_eq!(aside, (usual, usual));
            assert_eq!(nice(), raised);
            drop(first);
            assert_eq!(nice(), usual);
        })
        .join()
        .unwrap();
    }
}
