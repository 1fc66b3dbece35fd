//! Records shipped with the library, for devices that were measured.

use olivine_program::{DeviceCaps, DeviceKind, Record};

use super::text;

/// Records measured on an H200, for NVIDIA's cards of that generation.
const HOPPER: &str = include_str!("defaults/nvidia-hopper.txt");
/// Records for software GPUs.
const SOFTWARE: &str = include_str!("defaults/software.txt");

/// Words that the names of cards like the H200 contain.
const HOPPER_NAMES: [&str; 5] = ["H100", "H200", "H800", "H20", "GH200"];

/// The record that this version ships for a device; empty for those that nobody measured.
pub fn shipped(caps: &DeviceCaps) -> Record {
    let is_hopper = || {
        let mut words = caps.name.split(|c: char| !c.is_ascii_alphanumeric());
        caps.name.contains("NVIDIA") && words.any(|word| HOPPER_NAMES.contains(&word))
    };
    let found = match caps.kind {
        DeviceKind::Cpu => Some(SOFTWARE),
        DeviceKind::Discrete if is_hopper() => Some(HOPPER),
        _ => None,
    };
    found.and_then(text::parse).map_or_else(Record::default, |(_, record, _)| record)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shipped_records_have_no_bad_lines() {
        for file in [HOPPER, SOFTWARE] {
            let notes = text::parse(file).map(|(_, _, notes)| notes);
            assert_eq!(notes, Some(Vec::new()));
        }
    }
}
