//! Tests in processes of their own, so that as many run at a time as there are cores.
//!
//! In one process they could not: Debian 12's validation layer (1.3.239) corrupts its own memory when several threads
//! record at a time (without it the same runs are sound on any number of threads), and a software device compiles
//! kernels on one thread.

use std::process::Command;

/// Runs the calling test's work in a process of its own.
pub(crate) fn in_own_process(work: impl FnOnce()) {
    const CHILD: &str = "OLIVINE_TEST_IN_OWN_PROCESS";
    if std::env::var_os(CHILD).is_some() {
        return work();
    }
    let thread = std::thread::current();
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args([thread.name().unwrap(), "--exact", "--nocapture", "--test-threads=2"]).env(CHILD, "1");
    let output = again.output().unwrap();
    let (said, problems) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    println!("{said}");
    assert!(output.status.success() && said.contains("1 passed"), "{}\n{said}\n{problems}", output.status);
}
