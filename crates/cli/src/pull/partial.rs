//! A file under construction: `.NAME.part` beside the file that it becomes, with what is known of its source.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::{Pulled, check, failed};
use crate::answer::Failure;

/// Bytes of the note about the source at most.
const LARGEST_NOTE: u64 = 1 << 16;
const BUFFER: usize = 1 << 20;

/// What a server says of the version that it sends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Version {
    pub(super) url: String,
    /// A strong ETag, or the time of the last change.
    pub(super) validator: Option<String>,
    pub(super) total: Option<u64>,
}

impl Version {
    fn json(&self) -> Value {
        json!({ "url": self.url, "validator": self.validator, "total": self.total })
    }

    fn parse(text: &str) -> Option<Version> {
        let json: Value = serde_json::from_str(text).ok()?;
        let text = |key: &str| json[key].as_str().map(str::to_string);
        Some(Version { url: text("url")?, validator: text("validator"), total: json["total"].as_u64() })
    }
}

/// A file under construction.
pub(super) struct Partial {
    target: PathBuf,
    part: PathBuf,
    note: PathBuf,
    file: File,
    hash: Sha256,
    length: u64,
}

impl Partial {
    /// Opens what an earlier run has left for a file, or begins. Nobody else may be at it.
    pub(super) fn open(target: &Path) -> Result<Self, Failure> {
        let name = target.file_name().map(|name| name.to_string_lossy().into_owned());
        let name =
            name.ok_or_else(|| Failure::new(format!("`{}` is no name for a file", target.display())))?;
        let (part, note) = (
            target.with_file_name(format!(".{name}.part")),
            target.with_file_name(format!(".{name}.part.json")),
        );
        // A link could lead anywhere.
        let linked = |path: &&PathBuf| path.symlink_metadata().is_ok_and(|meta| !meta.is_file());
        if let Some(path) = [&part, &note].into_iter().find(linked) {
            return Err(Failure::new(format!("`{}` is not a plain file", path.display())).hint("remove it"));
        }
        let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&part);
        let file = opened.map_err(|e| failed("write", &part, &e))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Failure::new(format!("another process is writing `{}`", part.display())));
            }
            Err(TryLockError::Error(error)) => return Err(failed("lock", &part, &error)),
        }
        let length = file.metadata().map_err(|e| failed("read", &part, &e))?.len();
        Ok(Partial { target: target.to_path_buf(), part, note, file, hash: Sha256::new(), length })
    }

    /// Bytes that are there.
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// The version that the bytes are of.
    pub(super) fn version(&self) -> Option<Version> {
        olivine_files::read_text(&self.note, LARGEST_NOTE).ok().and_then(|text| Version::parse(&text))
    }

    /// Hashes the bytes that are there; what comes next is appended.
    pub(super) fn resume(&mut self) -> Result<(), Failure> {
        let mut read = || {
            self.hash = Sha256::new();
            self.file.seek(SeekFrom::Start(0))?;
            let mut buffer = vec![0; BUFFER];
            let mut left = self.length;
            while left > 0 {
                let most = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                let count = self.file.read(&mut buffer[..most])?;
                if count == 0 {
                    return Err(std::io::ErrorKind::UnexpectedEof.into());
                }
                self.hash.update(&buffer[..count]);
                left -= count as u64;
            }
            Ok(())
        };
        read().map_err(|e| failed("read", &self.part, &e))
    }

    /// Forgets the bytes that are there.
    pub(super) fn restart(&mut self) -> Result<(), Failure> {
        let empty = self.file.set_len(0).and_then(|()| self.file.seek(SeekFrom::Start(0)));
        empty.map_err(|e| failed("write", &self.part, &e))?;
        (self.hash, self.length) = (Sha256::new(), 0);
        Ok(())
    }

    /// Notes which version follows.
    pub(super) fn begin(&self, version: &Version) -> Result<(), Failure> {
        std::fs::write(&self.note, version.json().to_string()).map_err(|e| failed("write", &self.note, &e))
    }

    pub(super) fn append(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.file.write_all(bytes).map_err(|e| failed("write", &self.part, &e))?;
        self.hash.update(bytes);
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Keeps what has come for another run; nothing is not kept.
    pub(super) fn leave(self) {
        if self.length == 0 {
            let _ = std::fs::remove_file(&self.part);
            let _ = std::fs::remove_file(&self.note);
        }
    }

    /// Gives the file its name if its digest is the one that was asked for; otherwise removes it.
    pub(super) fn finish(self, wanted: Option<&str>, resumed: u64) -> Result<Pulled, Failure> {
        let sha256 = hex(self.hash);
        if let Err(failure) = check(&self.target, &sha256, wanted) {
            let _ = std::fs::remove_file(&self.part);
            let _ = std::fs::remove_file(&self.note);
            return Err(failure.hint("what was pulled is removed; nothing was written under that name"));
        }
        self.file.sync_all().map_err(|e| failed("write", &self.part, &e))?;
        std::fs::rename(&self.part, &self.target).map_err(|e| failed("write", &self.target, &e))?;
        let _ = std::fs::remove_file(&self.note);
        Ok(Pulled { path: self.target, bytes: self.length, sha256, resumed })
    }
}

/// A digest in hexadecimal digits.
pub(super) fn hex(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
