//! Plain text tables with aligned columns.

use std::fmt;

/// Which side of its column a cell keeps to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Align {
    Left,
    Right,
}

/// Rows under a heading; columns are as wide as their widest cell.
pub(crate) struct Table {
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with headings; those that begin with `>` head a column of numbers, aligned to the right.
    pub(crate) fn new(headings: &[&str]) -> Self {
        let columns = headings
            .iter()
            .map(|h| match h.strip_prefix('>') {
                Some(heading) => (heading.to_string(), Align::Right),
                None => (h.to_string(), Align::Left),
            })
            .collect();
        Table { columns, rows: Vec::new() }
    }

    /// Adds a row; missing cells are empty.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().map(|cell| printable(&cell)).collect());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headings: Vec<String> = self.columns.iter().map(|(h, _)| h.clone()).collect();
        let lines: Vec<&Vec<String>> = std::iter::once(&headings).chain(&self.rows).collect();
        let cell = |line: &[String], i: usize| line.get(i).cloned().unwrap_or_default();
        let widths: Vec<usize> = (0..self.columns.len())
            .map(|i| lines.iter().map(|line| width(&cell(line, i))).max().unwrap_or(0))
            .collect();
        for line in lines {
            let mut text = String::new();
            for (i, ((_, align), width_of_column)) in self.columns.iter().zip(&widths).enumerate() {
                let cell = cell(line, i);
                let space = " ".repeat(width_of_column - width(&cell));
                text += if i > 0 { "  " } else { "" };
                match align {
                    Align::Left => text.extend([cell, space]),
                    Align::Right => text.extend([space, cell]),
                }
            }
            writeln!(f, "{}", text.trim_end())?;
        }
        Ok(())
    }
}

/// The text without control characters, which would move the cursor.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Columns that a text takes on a terminal.
fn width(text: &str) -> usize {
    text.chars().map(char_width).sum()
}

/// 0 for marks on the letter before, 2 for East Asian wide letters and pictures, 1 for the rest.
fn char_width(c: char) -> usize {
    match u32::from(c) {
        0x0300..=0x036f | 0x200b..=0x200d | 0xfe00..=0xfe0f => 0,
        0x1100..=0x115f | 0x2e80..=0xa4cf | 0xac00..=0xd7a3 | 0xf900..=0xfaff | 0xfe30..=0xfe6f => 2,
        0xff00..=0xff60 | 0xffe0..=0xffe6 | 0x1f300..=0x1faff | 0x20000..=0x3fffd => 2,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell_and_numbers_keep_right() {
        let mut table = Table::new(&["op", ">ms", "note"]);
        table.row(["softmax".into(), "1.5".into(), "ok".into()]);
        table.row(["add".into(), "12.25".into(), String::new()]);
        assert_eq!(
            table.to_string(),
            "op          ms  note\n\
             softmax    1.5  ok\n\
             add      12.25\n"
        );
    }

    #[test]
    fn wide_letters_count_two_and_accents_none() {
        assert_eq!(width("GPU"), 3);
        assert_eq!(width("显卡"), 4);
        assert_eq!(width("e\u{301}"), 1);
        assert_eq!(width("ms·µs"), 5);
    }

    #[test]
    fn a_name_with_escapes_cannot_move_the_cursor() {
        let mut table = Table::new(&["name"]);
        table.row(["a\u{1b}[2Jb\nc".into()]);
        assert!(!table.to_string().contains('\u{1b}'));
        assert_eq!(table.to_string().lines().count(), 2);
    }

    #[test]
    fn short_rows_leave_cells_empty() {
        let mut table = Table::new(&["a", "b"]);
        table.row(["x".into()]);
        assert_eq!(table.to_string(), "a  b\nx\n");
    }
}
