//! How much memory this process may use.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Bytes that this process may use: the least of the machine's memory, the limits of its control groups and its own
/// resource limits (`RLIMIT_AS`, `RLIMIT_DATA`). `usize::MAX` where the system does not say.
pub fn memory_limit() -> usize {
    static MACHINE: OnceLock<usize> = OnceLock::new();
    let machine = *MACHINE.get_or_init(|| {
        let read = |path: &Path| std::fs::read_to_string(path).ok();
        physical(&read).min(groups(&read))
    });
    // A process may lower its own limits at any time.
    machine.min(own(&std::fs::read_to_string("/proc/self/limits").unwrap_or_default()))
}

/// The machine's memory.
fn physical(read: &dyn Fn(&Path) -> Option<String>) -> usize {
    let text = read(Path::new("/proc/meminfo")).unwrap_or_default();
    text.lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))
        .and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<usize>().ok())
        .map_or(usize::MAX, |kib| kib.saturating_mul(1024))
}

/// The least limit of the control groups, of version 1 or 2, that the process is in, and of all above them.
fn groups(read: &dyn Fn(&Path) -> Option<String>) -> usize {
    let root = Path::new("/sys/fs/cgroup");
    let text = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
    let mut least = usize::MAX;
    for line in text.lines() {
        let mut fields = line.splitn(3, ':');
        let (_, Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let (folder, file) = match controllers {
            "" => (root.to_path_buf(), "memory.max"),
            names if names.split(',').any(|name| name == "memory") => {
                (root.join("memory"), "memory.limit_in_bytes")
            }
            _ => continue,
        };
        let mut group: PathBuf = folder.join(path.trim_start_matches('/'));
        // In a container the path may be the host's; the group that is mounted at the top counts all the same.
        loop {
            let limit = read(&group.join(file)).and_then(|text| text.trim().parse::<usize>().ok());
            least = least.min(limit.unwrap_or(usize::MAX));
            if group == folder || !group.pop() {
                break;
            }
        }
    }
    least
}

/// The least soft limit of address space and data segment in the text of `/proc/self/limits`.
fn own(limits: &str) -> usize {
    let soft = |line: &str| {
        let rest = line.strip_prefix("Max address space").or_else(|| line.strip_prefix("Max data size"))?;
        rest.split_whitespace().next()?.parse::<usize>().ok()
    };
    limits.lines().filter_map(soft).min().unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files<'a>(all: &'a [(&'a str, &'a str)]) -> impl Fn(&Path) -> Option<String> + 'a {
        |path| all.iter().find(|(name, _)| Path::new(name) == path).map(|(_, text)| text.to_string())
    }

    #[test]
    fn the_least_group_above_counts_in_both_versions() {
        let of = |all: &[(&str, &str)]| groups(&files(all));
        let two = [
            ("/proc/self/cgroup", "0::/a/b\n"),
            ("/sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("/sys/fs/cgroup/a/memory.max", "4096\n"),
            ("/sys/fs/cgroup/memory.max", "8192\n"),
        ];
        assert_eq!(of(&two), 4096);
        let one = [
            ("/proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/docker/7\n0::/\n"),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "123\n"),
        ];
        assert_eq!(of(&one), 123);
        assert_eq!(of(&[("/proc/self/cgroup", "0::/../..\n")]), usize::MAX);
        assert_eq!(of(&[]), usize::MAX);
    }

    #[test]
    fn the_least_resource_limit_counts() {
        let text = "Limit                     Soft Limit           Hard Limit           Units     \n\
                    Max cpu time              unlimited            unlimited            seconds   \n\
                    Max data size             700                  unlimited            bytes     \n\
                    Max address space         600                  900                  bytes     \n";
        assert_eq!(own(text), 600);
        assert_eq!(own(&text.replace("600 ", "unlimited")), 700);
        assert_eq!(own(""), usize::MAX);
    }

    #[test]
    fn the_machines_memory_is_read() {
        assert_eq!(
            physical(&files(&[("/proc/meminfo", "MemFree: 1 kB\nMemTotal:       24 kB\n")])),
            24 * 1024
        );
        assert_eq!(physical(&files(&[])), usize::MAX);
    }
}
