//! Opening and reading plain files. A pipe would block, a device would never end, a folder has no bytes.

use std::fs::{File, FileType, Metadata, OpenOptions};
use std::io::{Error, ErrorKind, Read, Result};
use std::path::Path;

/// Opens a plain file for reading. Links are followed; what is no plain file is an error, and opening never blocks.
pub fn open_plain(path: &Path) -> Result<File> {
    // Asked first because opening a device can have effects, and again of the open file because the path may have
    // changed in between.
    check_plain(&std::fs::metadata(path)?)?;
    checked(open(OpenOptions::new().read(true), path, false)?)
}

/// Opens a plain file for reading; a link is an error.
pub fn open_unlinked(path: &Path) -> Result<File> {
    check_plain(&std::fs::symlink_metadata(path)?)?;
    checked(open(OpenOptions::new().read(true), path, true)?)
}

/// The bytes of a plain file that has no more than `limit`.
pub fn read_plain(path: &Path, limit: u64) -> Result<Vec<u8>> {
    let file = open_plain(path)?;
    let length = file.metadata()?.len();
    read_bounded(file, length, limit)
}

/// The first bytes of a plain file, enough to know its format by, and how many it has.
pub fn read_start(path: &Path) -> Result<(Vec<u8>, u64)> {
    const START: u64 = 4096;
    let file = open_plain(path)?;
    let length = file.metadata()?.len();
    let mut bytes = Vec::new();
    file.take(START).read_to_end(&mut bytes)?;
    Ok((bytes, length))
}

/// The text of a plain file that has no more than `limit` bytes.
pub fn read_text(path: &Path, limit: u64) -> Result<String> {
    String::from_utf8(read_plain(path, limit)?)
        .map_err(|_| Error::new(ErrorKind::InvalidData, "it is not UTF-8 text"))
}

/// All bytes of a reader, which are expected to be `length` and must not be more than `limit`.
pub fn read_bounded(reader: impl Read, length: u64, limit: u64) -> Result<Vec<u8>> {
    let too_large = || Error::new(ErrorKind::FileTooLarge, format!("it has more than {limit} bytes"));
    if length > limit {
        return Err(too_large());
    }
    let mut bytes = Vec::new();
    let expected = usize::try_from(length).map_err(|_| too_large())?;
    bytes.try_reserve_exact(expected).map_err(|_| Error::from(ErrorKind::OutOfMemory))?;
    reader.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit { Err(too_large()) } else { Ok(bytes) }
}

/// Opens without blocking on a pipe without a writer, and without following a link if so asked.
pub(crate) fn open(options: &mut OpenOptions, path: &Path, no_link: bool) -> Result<File> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        let link = if no_link { libc::O_NOFOLLOW } else { 0 };
        options.custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY | link);
    }
    #[cfg(not(unix))]
    let _ = no_link;
    options.open(path)
}

pub(crate) fn checked(file: File) -> Result<File> {
    check_plain(&file.metadata()?)?;
    Ok(file)
}

fn check_plain(about: &Metadata) -> Result<()> {
    let kind = about.file_type();
    if kind.is_file() {
        return Ok(());
    }
    let problem = format!("it is {}, not a plain file", describe(kind));
    Err(Error::new(ErrorKind::InvalidInput, problem))
}

fn describe(kind: FileType) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        if kind.is_fifo() {
            return "a pipe";
        }
        if kind.is_socket() {
            return "a socket";
        }
        if kind.is_block_device() || kind.is_char_device() {
            return "a device";
        }
    }
    if kind.is_dir() {
        "a folder"
    } else if kind.is_symlink() {
        "a link"
    } else {
        "something else"
    }
}
