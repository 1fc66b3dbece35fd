//! Tuning records: which configuration of a kernel family serves a class of shapes best, and what lowering chose.
//!
//! A record maps a family and a class of shapes to a configuration, all three as text. It can only pick what the
//! family offers for the shape at hand, so a line that is out of date or of another device does no harm: the default
//! stands.

use std::collections::BTreeMap;

/// Which configuration served best, by family and class of shapes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    lines: BTreeMap<(String, String), String>,
}

impl Record {
    /// A record without lines: every family takes its defaults.
    pub const fn new() -> Self {
        Record { lines: BTreeMap::new() }
    }

    /// The configuration of a class.
    pub fn get(&self, family: &str, class: &str) -> Option<&str> {
        // A pair of borrowed texts is no key; families are few and records short.
        self.lines.get(&(family.to_string(), class.to_string())).map(String::as_str)
    }

    /// Whether it has lines of a family.
    pub fn has_family(&self, family: &str) -> bool {
        self.lines.keys().any(|(known, _)| known == family)
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

#[cfg(test)]
mod tests {
    use super::*;

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
