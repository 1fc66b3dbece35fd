//! What was measured on a device, and how kernel families make use of it.
//!
//! ```text
//!   family ── class of shapes, default, candidates ──► Site::tuned ──► the record's pick, or the default
//!                                                          └── Decision, kept in the program
//!   shipped defaults + the user's file ── Record ── DeviceCaps::tuning
//! ```
//!
//! A record maps a family and a class of shapes to a configuration, all three as text. It can only pick what the
//! family offers for the shape at hand, so a line that is out of date, of another device or made up does no harm: the
//! default stands. Lowering stays a pure function of a graph and [`crate::DeviceCaps`], which hold the record.

mod defaults;
mod file;
mod text;

use std::collections::BTreeMap;

use crate::DeviceCaps;

pub use file::{Tuning, tuning_file};

/// Which configuration served best, by family and class of shapes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    lines: BTreeMap<(String, String), String>,
}

impl Record {
    /// What this version brings along for a device; nothing for those that nobody measured.
    pub fn shipped(caps: &DeviceCaps) -> Self {
        defaults::shipped(caps)
    }

    /// The configuration of a class.
    pub fn get(&self, family: &str, class: &str) -> Option<&str> {
        // A pair of borrowed texts is no key; families are few and records short.
        self.lines.get(&(family.to_string(), class.to_string())).map(String::as_str)
    }

    /// Sets the configuration of a class.
    pub fn set(&mut self, family: &str, class: &str, config: &str) {
        self.lines.insert((family.into(), class.into()), config.into());
    }

    /// Takes over all lines of another record.
    pub fn merge(&mut self, other: &Record) {
        self.lines.extend(other.lines.iter().map(|(key, config)| (key.clone(), config.clone())));
    }

    /// Family, class and configuration of every line.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str, &str)> {
        self.lines.iter().map(|((family, class), config)| (family.as_str(), class.as_str(), config.as_str()))
    }

    /// Lines.
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// Whether it has no lines.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }
}

/// A choice that was made for a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The node.
    pub node: String,
    /// The family of kernels.
    pub family: &'static str,
    /// The class of shapes.
    pub class: String,
    /// What it would be without a record.
    pub default: String,
    /// What it is.
    pub chosen: String,
    /// All it could be, the default among them.
    pub candidates: Vec<String>,
}

/// A size as classes know it: the nearest power of two, so that one measurement serves sizes up to 1.4 times away.
pub(crate) fn rounded(size: usize) -> usize {
    match size as u128 {
        0 => 0,
        size => 1 << ((2 * size * size).ilog2() / 2),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_go_to_the_nearest_power_of_two() {
        let pairs = [(0, 0), (1, 1), (2, 2), (3, 4), (5, 4), (6, 8), (520, 512), (724, 512), (725, 1024)];
        for (size, class) in pairs {
            assert_eq!(rounded(size), class, "{size}");
        }
        assert_eq!(rounded(u32::MAX as usize), 1 << 32);
    }

    #[test]
    fn later_lines_win_and_others_stay() {
        let mut record = Record::default();
        record.set("matmul", "f32 1x1x1", "tiles");
        record.set("attention", "f32", "a");
        let mut other = Record::default();
        other.set("matmul", "f32 1x1x1", "dots");
        record.merge(&other);
        assert_eq!(record.get("matmul", "f32 1x1x1"), Some("dots"));
        assert_eq!(record.get("attention", "f32"), Some("a"));
        assert_eq!((record.get("matmul", "f32"), record.len()), (None, 2));
    }
}
