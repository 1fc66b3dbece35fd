//! A driver's stray line is kept from standard error; everything else is written.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a failed expectation is a failed test")]

use std::process::Command;

const STRAY: &str = "error: XDG_RUNTIME_DIR is invalid or not set in the environment.";

/// What the child of the test below does.
#[test]
fn child() {
    if std::env::var_os("OLIVINE_STRAY_LINES").is_none() {
        return;
    }
    let result = olivine_files::without_stray_lines(|| {
        eprintln!("{STRAY}");
        eprintln!("the driver says something else");
        std::thread::spawn(|| eprintln!("another thread")).join().unwrap();
        eprint!("no line end");
        7
    });
    eprintln!(", {result}");
    let panicked = std::panic::catch_unwind(|| {
        olivine_files::without_stray_lines(|| std::panic::resume_unwind(Box::new("gone")))
    });
    eprintln!("after a panic: {}", panicked.map(|()| 0).is_err());
}

#[test]
fn one_line_is_caught_and_the_rest_is_written() {
    let run = |with_folder: bool| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "child", "--nocapture"]).env("OLIVINE_STRAY_LINES", "1");
        match with_folder {
            true => command.env("XDG_RUNTIME_DIR", std::env::temp_dir()),
            false => command.env_remove("XDG_RUNTIME_DIR"),
        };
        let output = command.output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let text = run(false);
    assert!(!text.contains("XDG_RUNTIME_DIR"), "{text}");
    for line in ["the driver says something else\n", "another thread\n", "no line end, 7\n", "panic: true\n"]
    {
        assert!(text.contains(line), "{line:?} is missing from {text}");
    }
    assert!(run(true).contains(STRAY), "a process with a window system is left alone");
}
