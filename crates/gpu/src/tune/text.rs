//! Records as text: a head that says whose it is, then one line to a class.
//!
//! ```text
//!   olivine-tuning 2
//!   device NVIDIA H200
//!   driver NVIDIA 580.159.04
//!   matmul f16 128x1024x1024 b1 k4n4 = coop 64x64/32x32 s4
//! ```
//! What begins with `#` is a comment. A line that cannot be read is passed over, and said to be.

use olivine_program::Record;

/// Changes when classes or configurations change their meaning; older records are not read then.
pub(super) const FORMAT: &str = "olivine-tuning 2";
/// Notes on bad lines are cut off after so many.
const MOST_NOTES: usize = 5;
/// Lines longer than this are none of ours.
const LONGEST: usize = 400;

/// Whose record a text is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) device: String,
    pub(super) driver: String,
}

/// Reads a text: its head, its lines, and notes on what was passed over. `None` if it is no record of this format.
pub(super) fn parse(text: &str) -> Option<(Head, Record, Vec<String>)> {
    let mut lines = text.lines().enumerate().filter(|(_, line)| {
        let line = line.trim();
        !line.is_empty() && !line.starts_with('#')
    });
    if lines.next()?.1.trim() != FORMAT {
        return None;
    }
    let (mut head, mut record, mut bad) = (Head::default(), Record::default(), Vec::new());
    for (number, line) in lines {
        let line = line.trim();
        match line.split_once(char::is_whitespace) {
            Some(("device", name)) => head.device = name.trim().into(),
            Some(("driver", name)) => head.driver = name.trim().into(),
            _ => match entry(line) {
                Some((family, class, config)) => record.set(&family, &class, &config),
                None => bad.push(number + 1),
            },
        }
    }
    let mut notes: Vec<String> =
        bad.iter().take(MOST_NOTES).map(|n| format!("line {n} cannot be read and is passed over")).collect();
    if let Some(more) = bad.len().checked_sub(MOST_NOTES).filter(|more| *more > 0) {
        notes.push(format!("and {more} more"));
    }
    Some((head, record, notes))
}

/// Family, class and configuration, each with single spaces.
fn entry(line: &str) -> Option<(String, String, String)> {
    if line.len() > LONGEST || line.chars().any(char::is_control) {
        return None;
    }
    let (what, config) = line.split_once('=')?;
    let mut what = what.split_whitespace();
    let family = what.next()?.to_string();
    let join = |words: &mut dyn Iterator<Item = &str>| words.collect::<Vec<_>>().join(" ");
    let (class, config) = (join(&mut what), join(&mut config.split_whitespace()));
    (!class.is_empty() && !config.is_empty() && !config.contains('=')).then_some((family, class, config))
}

/// Writes a record.
pub(super) fn print(head: &Head, record: &Record) -> String {
    let plain = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut text = format!("{FORMAT}\ndevice {}\ndriver {}\n", plain(&head.device), plain(&head.driver));
    for (family, class, config) in record.iter() {
        text.push_str(&format!("{family} {class} = {config}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_is_read_again() {
        let mut record = Record::default();
        record.set("matmul", "f16 128x1024x1024 b1 k4n4", "tiled 64x64x16/8x4 s2");
        record.set("attention", "f32 64", "8x4");
        let head = Head { device: "A card".into(), driver: "1.2 (x)".into() };
        let text = print(&head, &record);
        assert_eq!(parse(&text), Some((head, record, Vec::new())));
    }

    #[test]
    fn bad_lines_are_passed_over_and_told() {
        let long = "x".repeat(500);
        let text = format!(
            "# a comment\n{FORMAT}\n\n= tiles\nmatmul = tiles\nmatmul f32 =\nno sign\nmatmul a = b = c\n\
             matmul f32 {long} = tiles\nmatmul f32 \u{7} = tiles\nmatmul   f32  1 = gemv-dot   s1\n"
        );
        let (head, record, notes) = parse(&text).unwrap_or_default();
        assert_eq!(head, Head::default());
        assert_eq!(record.iter().collect::<Vec<_>>(), [("matmul", "f32 1", "gemv-dot s1")]);
        assert_eq!(notes.len(), MOST_NOTES + 1);
        assert_eq!(notes.last().map(String::as_str), Some("and 2 more"));
    }

    #[test]
    fn other_formats_and_other_files_are_none() {
        assert_eq!(parse(""), None);
        assert_eq!(parse("olivine-tuning 1\nmatmul f32 = x"), None);
        assert_eq!(parse("\u{0}\u{1}\u{2}"), None);
    }
}
