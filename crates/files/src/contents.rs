//! The bytes of a whole file: mapped, or in memory.

use std::io::Result;
use std::ops::Deref;
use std::path::Path;

use crate::open_plain;

/// A file's bytes.
pub enum Contents {
    /// In memory.
    Owned(Vec<u8>),
    /// Mapped, read when they are used.
    Mapped(memmap2::Mmap),
}

impl Contents {
    /// Maps a plain file.
    #[allow(unsafe_code, reason = "the compiler cannot check what other processes do to a file")]
    pub fn map(path: &Path) -> Result<Self> {
        let file = open_plain(path)?;
        // SAFETY: the mapping is private and read-only. Another process that changes the file changes numbers; one that
        // truncates it ends this process when those pages are read, as with every mapped file.
        unsafe { memmap2::Mmap::map(&file) }.map(Contents::Mapped)
    }
}

impl AsRef<[u8]> for Contents {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Deref for Contents {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Contents::Owned(bytes) => bytes,
            Contents::Mapped(map) => map,
        }
    }
}
