//! What became of a trial, kept on disk: a device and driver that were right once need no trial at every start, which takes more
//! than a second, and one that never came back is not asked again.

use std::path::Path;

use olivine_files::{CacheFolder, seal, unseal};
use olivine_kernel::ptx::Capability;

use crate::context::Context;

/// The format of the file.
const FORMAT: &[u8; 8] = b"OLVPTX_2";
/// Files of more bytes are not ours.
const LARGEST: u64 = 1 << 12;

/// What is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// Known kernels were right, and those of warpgroups too or not: of floats, and of integers.
    Right { capability: Capability, warpgroups: bool, int8_warpgroups: bool },
    /// The device was lost or did not come back.
    Gone(String),
}

/// The file of a device and driver.
pub(crate) struct Outcomes {
    folder: CacheFolder,
    name: String,
}

impl Outcomes {
    /// In a folder of caches; none if there is none that can be used.
    pub(crate) fn open(context: &Context, dir: Option<&Path>) -> Option<Self> {
        let folder = CacheFolder::open(dir?).ok()?;
        let uuid: String = context.facts.uuid.iter().map(|b| format!("{b:02x}")).collect();
        let (driver, version) = (context.facts.properties.driver_version, env!("CARGO_PKG_VERSION"));
        Some(Outcomes { folder, name: format!("ptx-{uuid}-{driver:x}-{version}.bin") })
    }

    /// What is known; nothing if the file is not there or damaged.
    pub(crate) fn read(&self) -> Option<Known> {
        let file = self.folder.read(&self.name, LARGEST).ok()?;
        parse(std::str::from_utf8(unseal(FORMAT, &file)?).ok()?)
    }

    /// Keeps an outcome. A disk that is full or read-only costs the next start time, no more.
    pub(crate) fn write(&self, known: &Known) {
        let _ = self.folder.replace(&self.name, &seal(FORMAT, print(known).as_bytes()));
    }
}

fn print(known: &Known) -> String {
    match known {
        Known::Right { capability, warpgroups, int8_warpgroups } => {
            format!("right {capability} {warpgroups} {int8_warpgroups}")
        }
        Known::Gone(problem) => format!("gone {problem}"),
    }
}

fn parse(text: &str) -> Option<Known> {
    let (kind, rest) = text.split_once(' ')?;
    match kind {
        "gone" => Some(Known::Gone(rest.to_string())),
        "right" => {
            let (number, rest) = rest.split_once(' ')?;
            let capability = super::GENERATIONS.into_iter().find(|known| known.to_string() == number)?;
            let (floats, integers) = rest.split_once(' ')?;
            let (warpgroups, int8_warpgroups) = (floats.parse().ok()?, integers.parse().ok()?);
            Some(Known::Right { capability, warpgroups, int8_warpgroups })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_read_as_they_were_written() {
        let right = |warpgroups, int8_warpgroups| Known::Right {
            capability: Capability::HOPPER,
            warpgroups,
            int8_warpgroups,
        };
        for known in [right(true, true), right(true, false), Known::Gone("it hangs for 10 s".into())] {
            assert_eq!(parse(&print(&known)), Some(known));
        }
        for damaged in [
            "",
            "right",
            "right 9.0",
            "right 7 true true",
            "right 9.0 true",
            "right 9.0 true maybe",
            "left 9.0 true true",
        ] {
            assert_eq!(parse(damaged), None, "{damaged}");
        }
    }
}
