//! Filters out a line that drivers print to the standard error of a headless process.

/// Calls a graphics driver, and keeps one line that looks like a failure and is none from standard error:
/// `error: XDG_RUNTIME_DIR is invalid or not set in the environment`. A layer of Mesa asks for a window system when devices
/// are listed, and the library it asks prints that line in processes that have none.
///
/// What else is written to standard error meanwhile, by other threads too, is written when the call is over.
pub fn without_stray_lines<T>(call: impl FnOnce() -> T) -> T {
    #[cfg(target_os = "linux")]
    {
        let has_window_system =
            std::env::var_os("XDG_RUNTIME_DIR").is_some_and(|folder| std::path::Path::new(&folder).is_dir());
        if !has_window_system && let Some(captured) = linux::Captured::begin() {
            let result = call();
            drop(captured);
            return result;
        }
    }
    call()
}

#[cfg(target_os = "linux")]
#[allow(unsafe_code, reason = "file descriptors of the process are exchanged by system calls")]
mod linux {
    use std::fs::File;
    use std::io::{Read, Seek, Write};
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
    use std::sync::{Mutex, MutexGuard, PoisonError};

    /// The line, as libwayland prints it.
    const STRAY: &str = "XDG_RUNTIME_DIR is invalid or not set in the environment";

    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

    /// Standard error as it was, and the memory that it goes to meanwhile.
    pub(super) struct Captured {
        before: OwnedFd,
        memory: File,
        _turn: MutexGuard<'static, ()>,
    }

    impl Captured {
        /// `None` where the system does not let go of standard error: then lines go where they always went.
        pub(super) fn begin() -> Option<Self> {
            let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
            // Safety: the name is a string of C, and a descriptor that is not negative is new and ours.
            let memory = unsafe {
                let fd = libc::memfd_create(c"olivine-stderr".as_ptr(), libc::MFD_CLOEXEC);
                (fd >= 0).then(|| File::from_raw_fd(fd))
            }?;
            // Safety: duplicating a descriptor touches no memory; the copy is new and ours.
            let before = unsafe {
                let fd = libc::fcntl(libc::STDERR_FILENO, libc::F_DUPFD_CLOEXEC, 3);
                (fd >= 0).then(|| OwnedFd::from_raw_fd(fd))
            }?;
            // Safety: both descriptors are open; standard error stays open all the time.
            let exchanged = unsafe { libc::dup2(memory.as_raw_fd(), libc::STDERR_FILENO) };
            (exchanged >= 0).then_some(Captured { before, memory, _turn: turn })
        }
    }

    impl Drop for Captured {
        fn drop(&mut self) {
            // Safety: both descriptors are open.
            unsafe { libc::dup2(self.before.as_raw_fd(), libc::STDERR_FILENO) };
            let mut text = Vec::new();
            if self.memory.rewind().and_then(|()| self.memory.read_to_end(&mut text)).is_err() {
                return;
            }
            for line in text.split_inclusive(|byte| *byte == b'\n') {
                if !String::from_utf8_lossy(line).contains(STRAY) {
                    // Nobody is left to report to.
                    let _ = std::io::stderr().write_all(line);
                }
            }
        }
    }
}
