//! The user's record: a file for each device and driver in the folder of built pipelines.

use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Result};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::text::{self, Head};
use super::{Record, defaults};
use crate::DeviceCaps;
use crate::caps::Addressing;

/// A larger file is none of ours.
const LARGEST: u64 = 16 << 20;

/// What a device is tuned by.
#[derive(Clone, Debug, Default)]
pub struct Tuning {
    /// Shipped defaults, overruled by the user's lines.
    pub record: Record,
    /// Lines of the user's file alone.
    pub own: usize,
    /// What of the user's file was passed over, for the user to read.
    pub notes: Vec<String>,
}

impl Tuning {
    /// The shipped defaults and, if a folder is given and has one, the user's record.
    pub fn load(caps: &DeviceCaps, dir: Option<&Path>) -> Self {
        let mut tuning = Tuning { record: defaults::shipped(caps), ..Tuning::default() };
        let Some(path) = dir.map(|dir| tuning_file(caps, dir)) else { return tuning };
        match read(&path, caps) {
            Ok((own, notes)) => {
                tuning.own = own.len();
                tuning.record.merge(&own);
                tuning.notes = notes.into_iter().map(|note| format!("{}: {note}", path.display())).collect();
            }
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(e) => tuning.notes.push(format!("{} is passed over: {e}", path.display())),
        }
        tuning
    }

    /// Adds lines to the user's record. Processes that do so at once wait for each other, and readers see the old file
    /// or the new one.
    pub fn save(caps: &DeviceCaps, dir: &Path, lines: &Record) -> Result<PathBuf> {
        let path = tuning_file(caps, dir);
        std::fs::create_dir_all(dir)?;
        // The lock has a file of its own: the record's is replaced under it.
        let lock: File =
            OpenOptions::new().create(true).truncate(false).write(true).open(path.with_extension("lock"))?;
        match lock.lock() {
            // Some network file systems have no locks; the last writer wins there.
            Err(e) if e.kind() != ErrorKind::Unsupported => return Err(e),
            _ => {}
        }
        let mut all = match read(&path, caps) {
            Ok((record, _)) => record,
            // What cannot be read is replaced.
            Err(_) => Record::default(),
        };
        all.merge(lines);
        replace(&path, text::print(&head(caps), &all).as_bytes())?;
        Ok(path)
    }
}

/// Where the user's record for a device is.
pub fn tuning_file(caps: &DeviceCaps, dir: &Path) -> PathBuf {
    let Head { device, driver } = head(caps);
    let plain: String = device.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let plain: String = plain.split('-').filter(|s| !s.is_empty()).collect::<Vec<_>>().join("-");
    let plain = plain.get(..plain.len().min(40)).unwrap_or_default();
    let hash = format!("{device}\n{driver}")
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3));
    dir.join(format!("tuning-{plain}-{hash:016x}.txt"))
}

/// Whose record it is. Kernels with pointers and kernels with bindings are measured apart.
fn head(caps: &DeviceCaps) -> Head {
    let way = if matches!(caps.addressing, Addressing::Pointers) { "pointers" } else { "bindings" };
    let plain = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    Head { device: plain(&caps.name), driver: plain(&format!("{} ({way})", caps.driver)) }
}

fn read(path: &Path, caps: &DeviceCaps) -> Result<(Record, Vec<String>)> {
    if std::fs::metadata(path)?.len() > LARGEST {
        return Err(Error::new(ErrorKind::InvalidData, "it is too large to be a record"));
    }
    let bytes = std::fs::read(path)?;
    let parsed = text::parse(&String::from_utf8_lossy(&bytes));
    let (head_read, record, notes) = parsed.ok_or_else(|| {
        Error::new(ErrorKind::InvalidData, format!("it does not begin with `{}`", text::FORMAT))
    })?;
    if head_read != head(caps) {
        return Err(Error::new(ErrorKind::InvalidData, "it is of another device or driver"));
    }
    Ok((record, notes))
}

/// Writes beside the file and renames.
fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let beside = path.with_extension(format!("{}-{number}.tmp", std::process::id()));
    std::fs::write(&beside, bytes).and_then(|()| std::fs::rename(&beside, path)).inspect_err(|_| {
        let _ = std::fs::remove_file(&beside);
    })
}
