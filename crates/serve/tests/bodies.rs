//! Memory for large bodies that come at once, which is measured for the whole process: nothing else runs in this one.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says what it expects")]

mod common;

use std::thread;

use common::client::send;
use common::{options, serve};

/// The most bytes of this process that were in memory.
fn peak() -> usize {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
}

#[test]
fn the_values_of_bodies_that_wait_are_not_in_memory() {
    let server = serve(1, options());
    // Each value takes 16 times its text.
    let body = format!("{{\"prompt\": \"x\", \"metadata\": [{}0]}}", "0,".repeat(2_000_000));
    let before = peak();
    thread::scope(|scope| {
        for _ in 0..32 {
            scope.spawn(|| {
                let headers = "Content-Type: application/json\r\n";
                let reply = send(&server, "POST", "/v1/completions", headers, body.as_bytes()).receive();
                assert_eq!(reply.error()["param"], "metadata");
            });
        }
    });
    let grown = peak() - before;
    assert!(grown < 1280 << 20, "memory grew by {grown} bytes for {} bytes of bodies", 32 * body.len());
}
