//! The page of the command line: it names every command and every option that the program has, and no other.
#![forbid(unsafe_code)]
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed expectation is a failed test")]

use std::collections::BTreeSet;
use std::process::Command;

const PAGE: &str = include_str!("../../../docs/cli.md");

/// What `--help` prints for a command.
fn help(command: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_olivine")).args(command).arg("--help").output().unwrap();
    assert!(output.status.success(), "{command:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The commands that a help lists.
fn commands(help: &str) -> Vec<String> {
    let (_, list) = help.split_once("Commands:\n").unwrap();
    let names = list.lines().take_while(|line| !line.is_empty()).filter_map(|l| l.split_whitespace().next());
    names.filter(|name| *name != "help").map(str::to_string).collect()
}

/// The long options that a text names, in its order.
fn options(text: &str) -> impl Iterator<Item = String> {
    let named = text.split("--").skip(1).map(|rest| {
        let end = rest.find(|c: char| !(c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'));
        rest[..end.unwrap_or(rest.len())].trim_end_matches('-').to_string()
    });
    named.filter(|name| !name.is_empty())
}

/// The options that a help declares: the first of each line that begins with one.
fn declared(help: &str) -> BTreeSet<String> {
    let lines = help.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
    lines.filter_map(|line| options(line).next()).collect()
}

#[test]
fn the_page_names_every_command_and_option_and_no_other() {
    let mut all = declared(&help(&[]));
    for command in commands(&help(&[])) {
        assert!(PAGE.contains(&format!("`{command}`")), "{command}");
        let text = help(&[&command]);
        all.extend(declared(&text));
        if text.contains("Commands:\n") {
            for inner in commands(&text) {
                assert!(PAGE.contains(&format!("`{command} {inner}")), "{command} {inner}");
                all.extend(declared(&help(&[&command, &inner])));
            }
        }
    }
    assert_eq!(options(PAGE).collect::<BTreeSet<_>>(), all);
}
