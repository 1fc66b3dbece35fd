//! Memory, which is measured for the whole process: nothing else runs in this one.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says what it expects")]

mod common;

use std::thread;

use common::client::{begin, posted};
use common::{NAME, options, serve};
use serde_json::{Value, json};

const TEXT: &str = "/v1/completions";

fn short(seed: usize, stream: bool) -> Value {
    json!({ "model": NAME, "prompt": format!("prompt {seed}"), "max_tokens": 4 + seed % 9, "ignore_eos": true, "seed": seed, "stream": stream })
}

/// Bytes of this process that are in memory.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[test]
fn memory_stays_flat() {
    let server = serve(4, options());
    let round = |offset: usize| {
        thread::scope(|scope| {
            for client in 0..8 {
                let server = &server;
                scope.spawn(move || {
                    for i in 0..12 {
                        let request = |stream: bool| short(offset + client * 100 + i, stream);
                        match i % 3 {
                            0 => drop(begin(server, TEXT, &request(true))),
                            1 => drop(begin(server, TEXT, &request(true)).events()),
                            _ => drop(posted(server, TEXT, &request(false))),
                        }
                    }
                });
            }
        });
    };
    (0..3).for_each(round);
    let before = resident();
    (3..15).for_each(round);
    let grown = resident().saturating_sub(before);
    assert!(grown < 16 << 20, "memory grew by {grown} bytes in 1152 requests");
}
