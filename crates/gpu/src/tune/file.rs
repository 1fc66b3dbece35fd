//! The user's record: a file for each device and driver in the folder of built pipelines.

use std::io::{Error, ErrorKind, Result};
use std::path::{Path, PathBuf};

use olivine_files::{CacheFolder, cache_file_name};
use olivine_program::{Addressing, DeviceCaps, Record};

use super::defaults;
use super::text::{self, Head};

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
    pub fn load(caps: &DeviceCaps, folder: Option<&CacheFolder>) -> Self {
        let mut tuning = Tuning { record: defaults::shipped(caps), ..Tuning::default() };
        let Some(folder) = folder else { return tuning };
        let path = tuning_file(caps, folder.path());
        match read(folder, caps) {
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
    pub fn save(caps: &DeviceCaps, folder: &CacheFolder, lines: &Record) -> Result<PathBuf> {
        let name = file_name(caps);
        // The lock has a file of its own: the record's is replaced under it.
        let _lock = folder.lock(&name.replace(".txt", ".lock"))?;
        let mut all = match read(folder, caps) {
            Ok((record, _)) => record,
            // What cannot be read is replaced.
            Err(_) => Record::default(),
        };
        all.merge(lines);
        folder.clear_leftovers(&name);
        folder.replace(&name, text::print(&head(caps), &all).as_bytes())?;
        Ok(folder.path().join(name))
    }
}

/// Where the user's record for a device is.
pub fn tuning_file(caps: &DeviceCaps, dir: &Path) -> PathBuf {
    dir.join(file_name(caps))
}

fn file_name(caps: &DeviceCaps) -> String {
    let Head { device, driver } = head(caps);
    cache_file_name("tuning", &device, &driver, "txt")
}

/// Whose record it is. Kernels with pointers and kernels with bindings are measured apart.
fn head(caps: &DeviceCaps) -> Head {
    let way = if matches!(caps.addressing, Addressing::Pointers) { "pointers" } else { "bindings" };
    let plain = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    Head { device: plain(&caps.name), driver: plain(&format!("{} ({way})", caps.driver)) }
}

fn read(folder: &CacheFolder, caps: &DeviceCaps) -> Result<(Record, Vec<String>)> {
    let bytes = folder.read(&file_name(caps), LARGEST)?;
    let parsed = text::parse(&String::from_utf8_lossy(&bytes));
    let (head_read, record, notes) = parsed.ok_or_else(|| {
        Error::new(ErrorKind::InvalidData, format!("it does not begin with `{}`", text::FORMAT))
    })?;
    if head_read != head(caps) {
        return Err(Error::new(ErrorKind::InvalidData, "it is of another device or driver"));
    }
    Ok((record, notes))
}
