//! Many clients at once, clients that leave, that send slowly or do not read, and the end of a server.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says what it expects")]

mod common;

use std::io::{Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::client::{begin, connect, get, post, posted, send_to};
use common::model::CONTEXT;
use common::{NAME, metric, options, serve, wait_until};
use olivine_serve::Server;
use serde_json::{Value, json};

const TEXT: &str = "/v1/completions";

/// A request that fills the context if nobody stops it.
fn endless(seed: usize) -> Value {
    json!({ "model": NAME, "prompt": "go on", "max_tokens": CONTEXT, "ignore_eos": true, "seed": seed })
}

fn short(seed: usize) -> Value {
    json!({ "model": NAME, "prompt": format!("prompt {seed}"), "max_tokens": 4 + seed % 9, "ignore_eos": true, "seed": seed })
}

fn streamed(mut request: Value) -> Value {
    request["stream"] = json!(true);
    request
}

fn busy(server: &Server) -> f64 {
    metric(server, "olivine_slots_busy")
}

#[test]
fn a_client_that_leaves_frees_its_slot_within_a_second() {
    let server = serve(2, options());
    let second = Duration::from_secs(1);
    for stream in [true, false] {
        for read_some in [true, false] {
            let request = if stream { streamed(endless(1)) } else { endless(1) };
            let mut client = begin(&server, TEXT, &request);
            wait_until(second, "the request has a slot", || busy(&server) == 1.0);
            if stream && read_some {
                assert_eq!(client.head().0, 200);
                client.event().unwrap();
            }
            let before = metric(&server, "olivine_cancelled_sequences_total");
            drop(client);
            wait_until(second, "the slot is free", || busy(&server) == 0.0);
            assert_eq!(
                metric(&server, "olivine_cancelled_sequences_total"),
                before + 1.0,
                "stream: {stream}"
            );
        }
    }
    // Those that leave the queue, too, and all choices of one request.
    let running = begin(&server, TEXT, &endless(2));
    let mut many = endless(3);
    many["n"] = json!(6);
    let waiting = begin(&server, TEXT, &many);
    wait_until(second, "the queue is filled", || metric(&server, "olivine_queue_length") == 5.0);
    drop(waiting);
    wait_until(second, "the queue is empty", || {
        metric(&server, "olivine_queue_length") == 0.0 && busy(&server) == 1.0
    });
    drop(running);
    wait_until(second, "all slots are free", || busy(&server) == 0.0);
}

#[test]
fn a_client_that_leaves_after_a_further_request_frees_its_slot() {
    let server = serve(2, options());
    let second = Duration::from_secs(1);
    let body = endless(1).to_string();
    let request = format!(
        "POST {TEXT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut client = connect(server.address());
    client.write_all(request.repeat(2).as_bytes()).unwrap();
    wait_until(second, "the first has a slot", || busy(&server) == 1.0);
    drop(client);
    wait_until(second, "the slot is free", || busy(&server) == 0.0);
}

#[test]
fn what_does_not_fit_in_the_queue_is_told_when_to_come_again() {
    let server = serve(1, options().queue(2));
    let clients: Vec<_> = (0..3).map(|seed| begin(&server, TEXT, &streamed(endless(seed)))).collect();
    wait_until(Duration::from_secs(2), "slot and queue are full", || {
        busy(&server) == 1.0 && metric(&server, "olivine_queue_length") == 2.0
    });
    let reply = post(&server, TEXT, &short(1));
    assert_eq!(reply.status, 429, "{}", reply.text());
    assert!((1..=60).contains(&reply.header("retry-after").unwrap().parse::<u64>().unwrap()));
    assert_eq!(reply.error()["code"], json!("queue_full"));
    drop(clients);
    wait_until(Duration::from_secs(1), "there is room", || post(&server, TEXT, &short(1)).status == 200);
}

#[test]
fn a_thousand_requests_at_once_are_all_answered() {
    let server = serve(8, options().queue(300));
    let address = server.address();
    let (done, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let body = |seed: usize| short(seed).to_string();
    let gate = std::sync::Barrier::new(1000);
    thread::scope(|scope| {
        for seed in 0..1000 {
            let (done, refused, body, gate) = (&done, &refused, &body, &gate);
            let work = move || {
                gate.wait();
                let headers = "Content-Type: application/json\r\n";
                let reply = send_to(address, "POST", TEXT, headers, body(seed).as_bytes()).receive();
                match reply.status {
                    200 => {
                        let json = reply.json();
                        assert_eq!(json["usage"]["completion_tokens"], json!(4 + seed % 9));
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                    429 => {
                        assert!(reply.header("retry-after").is_some());
                        refused.fetch_add(1, Ordering::Relaxed);
                    }
                    other => panic!("status {other}: {}", reply.text()),
                }
            };
            thread::Builder::new().stack_size(256 << 10).spawn_scoped(scope, work).unwrap();
        }
    });
    let (done, refused) = (done.into_inner(), refused.into_inner());
    assert_eq!(done + refused, 1000);
    assert!(done >= 308, "{done} were served");
    assert_eq!(get(&server, "/health").status, 200);
    wait_until(Duration::from_secs(1), "nothing is left", || {
        busy(&server) == 0.0 && metric(&server, "olivine_queue_length") == 0.0
    });
    let steps = metric(&server, "olivine_step_errors_total");
    assert_eq!(steps, 0.0);
}

#[test]
fn text_does_not_depend_on_who_shares_the_batch() {
    let server = serve(5, options());
    let watched = json!({ "model": NAME, "prompt": "the same", "max_tokens": 60, "ignore_eos": true, "seed": 7, "temperature": 1.2,
        "top_p": 0.95, "logprobs": 0 });
    let alone = posted(&server, TEXT, &watched)["choices"].clone();
    let stop = std::sync::atomic::AtomicBool::new(false);
    thread::scope(|scope| {
        for other in 0..4 {
            let (server, stop) = (&server, &stop);
            scope.spawn(move || {
                for round in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    posted(server, TEXT, &short(other * 31 + round));
                }
            });
        }
        let mut same = true;
        for _ in 0..12 {
            same &= posted(&server, TEXT, &watched)["choices"] == alone;
        }
        stop.store(true, Ordering::Relaxed);
        assert!(same);
    });
}

#[test]
fn parallel_streams_make_fair_progress() {
    const STREAMS: usize = 24;
    let server = serve(STREAMS, options());
    let address = server.address();
    thread::scope(|scope| {
        for seed in 0..STREAMS {
            scope.spawn(move || {
                let mut request = streamed(endless(seed));
                (request["max_tokens"], request["logprobs"]) = (json!(400), json!(0));
                let headers = "Content-Type: application/json\r\n";
                let client = send_to(address, "POST", TEXT, headers, request.to_string().as_bytes());
                let tokens =
                    |event: &Value| event["choices"][0]["logprobs"]["tokens"].as_array().map_or(0, Vec::len);
                assert_eq!(client.events().iter().map(tokens).sum::<usize>(), 400);
            });
        }
    });
    // No stream waited for a token while the others had theirs: a step takes milliseconds, and all together take seconds.
    let within = metric(&server, "olivine_token_seconds_bucket{le=\"0.5\"}");
    assert_eq!(metric(&server, "olivine_token_seconds_count"), (STREAMS * 399) as f64);
    assert_eq!(within, (STREAMS * 399) as f64);
}

#[test]
fn clients_that_are_slow_or_silent_lose_their_connection() {
    let server = serve(1, options().client_timeout(Duration::from_millis(300)));
    let long = Duration::from_secs(5);
    let closed = |sent: &str| {
        let mut stream = connect(server.address());
        stream.write_all(sent.as_bytes()).unwrap();
        let begun = Instant::now();
        let mut reply = String::new();
        let _ = stream.read_to_string(&mut reply);
        assert!(begun.elapsed() < long, "{sent:?} was waited for");
        reply
    };
    closed("");
    closed("POST /v1/completions HT");
    closed("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n");
    let reply = closed(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n{\"prompt\": ",
    );
    assert!(reply.starts_with("HTTP/1.1 408"), "{reply}");
    assert!(closed("nonsense\r\n\r\n").starts_with("HTTP/1.1 400"));
    // One that sends and never reads: its text waits, and nobody else does.
    let lazy = begin(&server, TEXT, &streamed(endless(1)));
    wait_until(long, "it has a slot", || busy(&server) == 1.0);
    posted(&server, TEXT, &short(1));
    drop(lazy);
}

#[test]
fn a_server_that_stops_finishes_what_it_has_begun() {
    let server = serve(1, options().drain(Duration::from_secs(20)));
    let address = server.address();
    let mut request = streamed(endless(1));
    request["max_tokens"] = json!(600);
    let client = begin(&server, TEXT, &request);
    wait_until(Duration::from_secs(2), "it has a slot", || busy(&server) == 1.0);
    let reader = thread::spawn(move || client.events());
    server.stop();
    assert_eq!(reader.join().unwrap().last().unwrap()["choices"][0]["finish_reason"], json!("length"));
    assert!(std::net::TcpStream::connect(address).is_err());
    // What takes longer than the time to drain ends with an error instead.
    let server = serve(1, options().drain(Duration::ZERO));
    let mut client = begin(&server, TEXT, &streamed(endless(1)));
    assert_eq!(client.head().0, 200);
    client.event().unwrap();
    let begun = Instant::now();
    server.stop();
    assert!(begun.elapsed() < Duration::from_secs(5));
    let mut last = String::new();
    while let Some(data) = client.event() {
        last = data;
    }
    assert!(last.contains("shutting down"), "{last}");
}
