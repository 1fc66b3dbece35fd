//! A cache folder of this user. Another user who could write to it could choose the code that a driver runs, so such a
//! folder or file is not used; links are not followed, and a file is replaced whole.

use std::collections::hash_map::RandomState;
use std::ffi::OsStr;
use std::fs::{DirBuilder, File, Metadata, OpenOptions, TryLockError};
use std::hash::{BuildHasher, Hasher};
use std::io::{Error, ErrorKind, Result, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::plain;

/// A temporary file older than this was left by a process that was killed.
const STALE: Duration = Duration::from_secs(3600);
/// How long to wait for another process to give up its lock.
const LOCK_WAIT: Duration = Duration::from_secs(10);

/// A folder of cache files that only this user, or the administrator, can write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheFolder {
    path: PathBuf,
}

/// Why a folder is not used as a cache.
#[derive(Debug)]
pub struct Untrusted {
    path: PathBuf,
    problem: String,
}

impl std::fmt::Display for Untrusted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the cache folder `{}` is not used: {}", self.path.display(), self.problem)
    }
}

impl std::error::Error for Untrusted {}

/// Olivine's folder among the user's caches; `None` where the system has no such place.
pub fn default_cache_dir() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let own = || {
        if cfg!(windows) {
            set("LOCALAPPDATA")
        } else if cfg!(target_os = "macos") {
            set("HOME").map(|home| home.join("Library/Caches"))
        } else {
            set("HOME").map(|home| home.join(".cache"))
        }
    };
    let base = set("XDG_CACHE_HOME").or_else(own)?;
    base.is_absolute().then(|| base.join("olivine"))
}

/// The name of a cache file of some kind for a device and its driver: readable, and another for every pair.
pub fn cache_file_name(kind: &str, device: &str, driver: &str, extension: &str) -> String {
    let plain: String = device.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let plain: String = plain.split('-').filter(|s| !s.is_empty()).collect::<Vec<_>>().join("-");
    let plain = plain.get(..plain.len().min(40)).unwrap_or_default();
    let hash = format!("{device}\n{driver}")
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3));
    format!("{kind}-{plain}-{hash:016x}.{extension}")
}

impl CacheFolder {
    /// A folder that is trusted, or does not exist yet; it is made when the first file is written.
    pub fn open(path: impl Into<PathBuf>) -> std::result::Result<Self, Untrusted> {
        let path = path.into();
        let problem = match std::fs::metadata(&path) {
            Ok(about) if !about.is_dir() => Some("it is no folder".to_string()),
            Ok(about) => trust(&about).err(),
            Err(e) if e.kind() == ErrorKind::NotFound => None,
            Err(e) => Some(e.to_string()),
        };
        match problem {
            None => Ok(CacheFolder { path }),
            Some(problem) => Err(Untrusted { path, problem }),
        }
    }

    /// Where the folder is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The bytes of a file of this folder: a plain file of a trusted owner, no link, no larger than `limit`.
    pub fn read(&self, name: &str, limit: u64) -> Result<Vec<u8>> {
        let file = plain::open_unlinked(&self.path.join(name))?;
        let about = file.metadata()?;
        trust(&about).map_err(refused)?;
        plain::read_bounded(file, about.len(), limit)
    }

    /// Replaces a file: readers see the old one or the new one.
    pub fn replace(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.create()?;
        let (temporary, mut file) = self.temporary(name)?;
        let written = file.write_all(bytes).and_then(|()| {
            drop(file);
            std::fs::rename(&temporary, self.path.join(name))
        });
        written.inspect_err(|_| {
            let _ = std::fs::remove_file(&temporary);
        })
    }

    /// Waits until no other process holds the lock of a name, and holds it.
    pub fn lock(&self, name: &str) -> Result<Lock> {
        self.create()?;
        let mut options = private();
        let file = plain::open(options.create(true).truncate(false), &self.path.join(name), true)?;
        let file = plain::checked(file)?;
        trust(&file.metadata()?).map_err(refused)?;
        let begun = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Lock { _file: file }),
                // Some network file systems have no locks; the last writer wins there.
                Err(TryLockError::Error(e)) if e.kind() == ErrorKind::Unsupported => {
                    return Ok(Lock { _file: file });
                }
                Err(TryLockError::Error(e)) => return Err(e),
                Err(TryLockError::WouldBlock) if begun.elapsed() > LOCK_WAIT => {
                    let problem = format!("another process holds `{name}`");
                    return Err(Error::new(ErrorKind::TimedOut, problem));
                }
                Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    /// Removes temporary files of a name that killed processes left.
    pub fn clear_leftovers(&self, name: &str) {
        let Some(stem) = Path::new(name).file_stem().and_then(OsStr::to_str) else { return };
        let Ok(entries) = std::fs::read_dir(&self.path) else { return };
        for path in entries.flatten().map(|entry| entry.path()) {
            let named = path.file_name().and_then(OsStr::to_str).is_some_and(|n| n.starts_with(stem));
            let ours = named && path.extension().is_some_and(|e| e == "tmp");
            let age = || std::fs::symlink_metadata(&path).ok()?.modified().ok()?.elapsed().ok();
            if ours && age().is_some_and(|age| age > STALE) {
                let _ = std::fs::remove_file(&path);
            }
        }
    }

    /// Makes the folder, for this user alone, and looks at it again: it may have been made by another in the meantime.
    fn create(&self) -> Result<()> {
        let mut builder = DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(&self.path)?;
        trust(&std::fs::metadata(&self.path)?).map_err(refused)
    }

    /// A new file beside `name`. The name cannot be guessed, and what exists under it is never opened.
    fn temporary(&self, name: &str) -> Result<(PathBuf, File)> {
        loop {
            let random = RandomState::new().build_hasher().finish();
            let path = self.path.join(name).with_extension(format!("{random:016x}.tmp"));
            match plain::open(private().create_new(true), &path, true) {
                Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
                other => return Ok((path, other?)),
            }
        }
    }
}

/// Holds a lock until it is dropped.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

/// Options to write a file that only this user can read.
fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

fn refused(problem: String) -> Error {
    Error::new(ErrorKind::PermissionDenied, problem)
}

/// Whether only this user, or the administrator, can write to a folder or file.
#[cfg(unix)]
fn trust(about: &Metadata) -> std::result::Result<(), String> {
    use std::os::unix::fs::MetadataExt;
    let (owner, mode) = (about.uid(), about.mode() & 0o7777);
    if owner != user::id() && owner != 0 {
        return Err(format!("it belongs to user {owner}, not to user {}", user::id()));
    }
    if mode & 0o022 != 0 {
        return Err(format!("others may write to it (mode {mode:o}); `chmod go-w` changes that"));
    }
    Ok(())
}

/// Elsewhere the user's folders are protected by the lists of the system, which are not read here.
#[cfg(not(unix))]
fn trust(_: &Metadata) -> std::result::Result<(), String> {
    Ok(())
}

#[cfg(unix)]
#[allow(unsafe_code)]
mod user {
    /// The user whose rights this process has.
    pub(super) fn id() -> u32 {
        // Safety: the call takes nothing, changes nothing and cannot fail.
        unsafe { libc::geteuid() }
    }
}
