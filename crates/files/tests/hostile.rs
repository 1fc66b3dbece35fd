//! Paths that an attacker could choose or prepare: none of them blocks, is read without end, or leads elsewhere.
#![cfg(unix)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed expectation is a failed test"
)]

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use olivine_files::{CacheFolder, open_plain, read_plain};

/// A folder of this test's own, gone at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        mode(&path, 0o700);
        Folder(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn cache(&self) -> CacheFolder {
        CacheFolder::open(&self.0).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// The result of what must come to an end soon.
fn soon<T: Send + 'static>(what: impl FnOnce() -> T + Send + 'static) -> T {
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || send.send(what()));
    receive.recv_timeout(Duration::from_secs(20)).expect("it must not hang")
}

/// Everything that is no plain file: pipes, devices, folders, and links to them.
fn odd_ones(folder: &Folder) -> Vec<PathBuf> {
    pipe(&folder.path("pipe"));
    std::fs::create_dir(folder.path("folder")).unwrap();
    symlink("/dev/zero", folder.path("endless")).unwrap();
    symlink("pipe", folder.path("link to a pipe")).unwrap();
    symlink("itself", folder.path("itself")).unwrap();
    let here = ["pipe", "folder", "endless", "link to a pipe", "itself"].map(|name| folder.path(name));
    here.into_iter().chain(["/dev/zero".into(), "/dev/null".into(), "/".into()]).collect()
}

#[test]
fn only_plain_files_are_opened_and_nothing_blocks() {
    let folder = Folder::new("odd");
    for path in odd_ones(&folder) {
        let shown = path.display().to_string();
        let error = soon(move || (open_plain(&path).map(drop), read_plain(&path, 1 << 20).map(drop)));
        assert!(error.0.is_err() && error.1.is_err(), "{shown}");
    }
    std::fs::write(folder.path("plain"), b"text").unwrap();
    symlink("plain", folder.path("link")).unwrap();
    assert_eq!(read_plain(&folder.path("link"), 4).unwrap(), b"text");
    assert!(read_plain(&folder.path("plain"), 3).unwrap_err().to_string().contains("more than 3 bytes"));
    // Its length is 0, and yet it has bytes.
    assert!(read_plain(Path::new("/proc/self/status"), 16).is_err());
}

#[test]
fn a_cache_reads_no_links_pipes_devices_or_large_files() {
    let folder = Folder::new("cache-odd");
    for path in odd_ones(&folder).into_iter().filter(|p| p.starts_with(&folder.0)) {
        let (cache, name) = (folder.cache(), path.file_name().unwrap().to_str().unwrap().to_string());
        let shown = name.clone();
        assert!(soon(move || cache.read(&name, 1 << 20)).is_err(), "{shown}");
        let (cache, name) = (folder.cache(), shown.clone());
        assert!(soon(move || cache.lock(&name).map(drop)).is_err(), "{shown}");
    }
    let cache = folder.cache();
    cache.replace("file", b"bytes").unwrap();
    assert_eq!(cache.read("file", 5).unwrap(), b"bytes");
    assert!(cache.read("file", 4).is_err());
    symlink("file", folder.path("link")).unwrap();
    assert!(cache.read("link", 5).is_err());
    assert_eq!(std::fs::metadata(folder.path("file")).unwrap().mode() & 0o777, 0o600);
}

#[test]
fn a_link_in_place_of_a_file_is_replaced_and_not_followed() {
    let folder = Folder::new("cache-link");
    std::fs::write(folder.path("precious"), b"mine").unwrap();
    symlink("precious", folder.path("file")).unwrap();
    symlink("nothing", folder.path("lock")).unwrap();
    // The names that earlier versions wrote under.
    for i in 0..64 {
        symlink("precious", folder.path(&format!("file.{}-{i}.tmp", std::process::id()))).unwrap();
    }
    let cache = folder.cache();
    cache.replace("file", b"new").unwrap();
    assert!(cache.lock("lock").is_err());
    assert!(!folder.path("nothing").exists());
    assert_eq!(std::fs::read(folder.path("precious")).unwrap(), b"mine");
    assert_eq!(cache.read("file", 3).unwrap(), b"new");
    let temporary = std::fs::read_dir(&folder.0).unwrap().flatten();
    let plain = temporary.filter(|e| e.file_type().is_ok_and(|t| t.is_file())).count();
    assert_eq!(plain, 2, "`precious` and `file`, nothing is left beside them");
}

#[test]
fn folders_and_files_that_others_can_write_are_not_used() {
    let folder = Folder::new("cache-modes");
    folder.cache().replace("file", b"bytes").unwrap();
    for (bits, good) in [(0o700, true), (0o755, true), (0o775, false), (0o777, false), (0o1777, false)] {
        mode(&folder.0, bits);
        let opened = CacheFolder::open(&folder.0);
        assert_eq!(opened.is_ok(), good, "{bits:o}");
        let words = opened.err().map_or("others may write".into(), |e| e.to_string());
        assert!(words.contains("others may write"), "{words}");
    }
    mode(&folder.0, 0o700);
    let cache = folder.cache();
    mode(&folder.path("file"), 0o666);
    assert!(cache.read("file", 5).is_err());
    mode(&folder.0, 0o777);
    assert!(cache.replace("file", b"other").is_err(), "the folder was opened to others meanwhile");
    mode(&folder.0, 0o700);
    assert!(CacheFolder::open(folder.path("file")).is_err(), "a file is no folder");
}

#[test]
fn folders_and_files_of_another_user_are_not_used() {
    let folder = Folder::new("cache-owner");
    // Only the administrator can give files away.
    if std::os::unix::fs::chown(&folder.0, Some(12345), None).is_err() {
        let root = std::fs::metadata("/").unwrap().uid() == 0;
        assert!(root && CacheFolder::open("/").is_ok(), "the administrator's folders are trusted");
        return;
    }
    let error = CacheFolder::open(&folder.0).unwrap_err().to_string();
    assert!(error.contains("user 12345"), "{error}");
    std::os::unix::fs::chown(&folder.0, Some(0), None).unwrap();
    let cache = folder.cache();
    cache.replace("file", b"bytes").unwrap();
    std::os::unix::fs::chown(folder.path("file"), Some(12345), None).unwrap();
    assert!(cache.read("file", 5).unwrap_err().to_string().contains("user 12345"));
}

#[test]
fn a_new_folder_is_for_this_user_alone_and_locks_exclude_each_other() {
    let folder = Folder::new("cache-new");
    let cache = CacheFolder::open(folder.path("made/here")).unwrap();
    let held = cache.lock("lock").unwrap();
    assert_eq!(std::fs::metadata(cache.path()).unwrap().mode() & 0o777, 0o700);
    let (send, receive) = mpsc::channel();
    let other = cache.clone();
    let waits = std::thread::spawn(move || {
        let _held = other.lock("lock").unwrap();
        send.send(()).unwrap();
    });
    assert!(receive.recv_timeout(Duration::from_millis(50)).is_err());
    drop(held);
    receive.recv_timeout(Duration::from_secs(9)).unwrap();
    waits.join().unwrap();
}
