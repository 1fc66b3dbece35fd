//! `olivine pull` against servers that break off, ignore ranges, redirect forever and lie.
#![forbid(unsafe_code)]
#![cfg(feature = "pull")]
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed expectation is a failed test")]

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;

/// A server that answers each request by a function of its headers and its number.
struct Server {
    url: String,
    /// The headers of all requests, in lower case.
    requests: Arc<Mutex<Vec<String>>>,
}

impl Server {
    fn new(answer: impl Fn(&str, usize, &mut TcpStream) + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/model.bin", listener.local_addr().unwrap());
        let requests: Arc<Mutex<Vec<String>>> = Arc::default();
        let seen = requests.clone();
        std::thread::spawn(move || {
            for (n, stream) in listener.incoming().enumerate() {
                let mut stream = stream.unwrap();
                let head: String = BufReader::new(stream.try_clone().unwrap())
                    .lines()
                    .map_while(Result::ok)
                    .take_while(|line| !line.is_empty())
                    .map(|line| line.to_lowercase() + "\n")
                    .collect();
                seen.lock().unwrap().push(head.clone());
                answer(&head, n, &mut stream);
            }
        });
        Server { url, requests }
    }

    fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

/// A folder of a test, empty in the beginning and removed in the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("pull-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap();
        let mut names: Vec<String> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn pull(&self, source: &str, more: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_olivine"));
        command.args(["pull", source, "--json", "--timeout", "1"]).args(more).current_dir(&self.0);
        command.output().unwrap()
    }

    fn pulled(&self, source: &str, more: &[&str]) -> Value {
        let output = self.pull(source, more);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// What a pull that fails says; nothing is under the name.
    fn fails(&self, source: &str, more: &[&str]) -> String {
        let output = self.pull(source, more);
        assert_eq!(output.status.code(), Some(1));
        assert!(!self.names().contains(&"model.bin".to_string()), "{:?}", self.names());
        String::from_utf8(output.stderr).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn content() -> Vec<u8> {
    (0..200_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

/// By Python's hashlib.
const DIGEST: &str = "b979e17a4e147685e5c2df66ad2d316b7665ddb2896ff60fcab25cea0675b048";

fn send(stream: &mut TcpStream, head: &str, body: &[u8]) {
    // A client that has enough leaves.
    let _ = stream.write_all(format!("HTTP/1.1 {head}\r\nConnection: close\r\n\r\n").as_bytes());
    let _ = stream.write_all(body);
}

/// The first byte that a request asks for.
fn range(head: &str) -> Option<usize> {
    let line = head.lines().find_map(|line| line.strip_prefix("range: bytes="))?;
    line.trim_end_matches('-').parse().ok()
}

#[test]
fn a_file_comes_whole_under_its_name() {
    let server = Server::new(|_, _, stream| {
        let all = content();
        send(stream, &format!("200 OK\r\nContent-Length: {}\r\nETag: \"a\"", all.len()), &all);
    });
    let folder = Folder::new("whole");
    let json = folder.pulled(&server.url, &["--sha256", DIGEST]);
    assert_eq!(json["files"][0]["sha256"], DIGEST);
    assert_eq!(json["files"][0]["bytes"], 200_000);
    assert_eq!(std::fs::read(folder.0.join("model.bin")).unwrap(), content());
    assert_eq!(folder.names(), ["model.bin"]);
    // What is there is not replaced, and not fetched where its digest is known.
    let taken = folder.pull(&server.url, &[]);
    assert!(String::from_utf8_lossy(&taken.stderr).contains("is there already"));
    let before = server.requests().len();
    folder.pulled(&server.url, &["--sha256", DIGEST]);
    assert_eq!(server.requests().len(), before);
    folder.pulled(&server.url, &["--force"]);
    folder.pulled(&server.url, &["--out", "deep/er/other.bin"]);
    assert!(folder.0.join("deep/er/other.bin").is_file());
}

#[test]
fn a_connection_that_breaks_is_continued_from_where_it_broke() {
    // Every answer brings 60,000 bytes more and then breaks.
    let server = Server::new(|head, _, stream| {
        let all = content();
        let start = range(head).unwrap_or(0);
        let status = match start {
            0 => format!("200 OK\r\nContent-Length: {}", all.len()),
            _ => {
                let (end, left) = (all.len() - 1, all.len() - start);
                format!(
                    "206 Partial Content\r\nContent-Range: bytes {start}-{end}/{}\r\nContent-Length: {left}",
                    all.len()
                )
            }
        };
        send(stream, &format!("{status}\r\nETag: \"one\""), &all[start..all.len().min(start + 60_000)]);
    });
    let folder = Folder::new("continued");
    assert_eq!(folder.pulled(&server.url, &[])["files"][0]["sha256"], DIGEST);
    let requests = server.requests();
    assert_eq!(requests.len(), 4);
    assert!(requests[1..].iter().all(|head| head.contains("if-range: \"one\"")), "{requests:?}");
    assert_eq!(folder.names(), ["model.bin"]);
}

#[test]
fn a_later_run_resumes_and_a_file_that_changed_begins_anew() {
    let changed = Arc::new(Mutex::new(false));
    let its = changed.clone();
    let server = Server::new(move |head, n, stream| {
        let all = content();
        match (range(head), *its.lock().unwrap()) {
            // The first run gets half of it, and then nothing.
            (None, false) if n == 0 => {
                send(
                    stream,
                    &format!("200 OK\r\nContent-Length: {}\r\nETag: \"one\"", all.len()),
                    &all[..100_000],
                );
            }
            (_, false) if n < 5 => send(stream, "503 Busy\r\nContent-Length: 0", b""),
            (Some(start), false) => {
                let range = format!("bytes {start}-{}/{}", all.len() - 1, all.len());
                let head = format!(
                    "206 Partial\r\nContent-Range: {range}\r\nETag: \"one\"\r\nContent-Length: {}",
                    all.len() - start
                );
                send(stream, &head, &all[start..]);
            }
            // Another version: If-Range does not hold, and all of it comes.
            (_, true) => send(stream, "200 OK\r\nContent-Length: 3\r\nETag: \"two\"", b"new"),
            (None, false) => panic!("the later run asks for all"),
        }
    });
    let folder = Folder::new("resumed");
    let message = folder.fails(&server.url, &[]);
    assert!(message.contains("503") && message.contains("the same command goes on"), "{message}");
    assert_eq!(folder.names(), [".model.bin.part", ".model.bin.part.json"]);
    let copy = Folder::new("changed");
    for name in folder.names() {
        std::fs::copy(folder.0.join(&name), copy.0.join(&name)).unwrap();
    }
    let json = folder.pulled(&server.url, &["--sha256", DIGEST]);
    assert_eq!(json["files"][0]["resumed"], 100_000);
    assert_eq!(folder.names(), ["model.bin"]);
    *changed.lock().unwrap() = true;
    assert_eq!(copy.pulled(&server.url, &[])["files"][0]["bytes"], 3);
    assert_eq!(std::fs::read(copy.0.join("model.bin")).unwrap(), b"new");
}

#[test]
fn servers_that_ignore_ranges_or_lie_about_them_leave_no_wrong_file() {
    type Answer = fn(usize, &[u8]) -> (String, Vec<u8>);
    let lies: [Answer; 5] = [
        // All of it instead of the range.
        |_, all| (format!("200 OK\r\nContent-Length: {}\r\nETag: \"one\"", all.len()), all.to_vec()),
        // Another range.
        |start, all| {
            let head = format!(
                "206 P\r\nContent-Range: bytes {}-{}/{}\r\nETag: \"one\"",
                start + 7,
                all.len() - 1,
                all.len()
            );
            (head, all[start + 7..].to_vec())
        },
        // Another version, or another length.
        |start, all| {
            let head = format!(
                "206 P\r\nContent-Range: bytes {start}-{}/{}\r\nETag: \"two\"",
                all.len() - 1,
                all.len()
            );
            (head, vec![7; all.len() - start])
        },
        |start, _| {
            (
                format!("206 P\r\nContent-Range: bytes {start}-999999/1000000\r\nETag: \"one\""),
                vec![7; 1_000_000 - start],
            )
        },
        |_, _| ("416 None\r\nContent-Length: 0".to_string(), Vec::new()),
    ];
    for (i, lie) in lies.into_iter().enumerate() {
        let server = Server::new(move |head, n, stream| {
            let all = content();
            let full = format!("200 OK\r\nContent-Length: {}\r\nETag: \"one\"", all.len());
            match range(head) {
                None if n == 0 => send(stream, &full, &all[..50_000]),
                None => send(stream, &full, &all),
                Some(start) => {
                    let (head, body) = lie(start, &all);
                    send(stream, &head, &body);
                }
            }
        });
        let folder = Folder::new(&format!("lies-{i}"));
        assert_eq!(folder.pulled(&server.url, &[])["files"][0]["sha256"], DIGEST, "lie {i}");
        assert_eq!(folder.names(), ["model.bin"]);
    }
}

#[test]
fn a_range_of_another_date_is_of_another_file() {
    let server = Server::new(move |head, n, stream| {
        let all = content();
        let dated = |year: usize| format!("Last-Modified: Mon, 01 Jan {year} 00:00:00 GMT");
        let full = format!("200 OK\r\nContent-Length: {}\r\n{}", all.len(), dated(2024));
        match range(head) {
            None if n == 0 => send(stream, &full.replace("2024", "2001"), &[7; 50_000]),
            None => send(stream, &full, &all),
            Some(start) => {
                let (end, total) = (all.len() - 1, all.len());
                let head = format!("206 P\r\nContent-Range: bytes {start}-{end}/{total}\r\n{}", dated(2024));
                send(stream, &head, &all[start..]);
            }
        }
    });
    let folder = Folder::new("dates");
    assert_eq!(folder.pulled(&server.url, &[])["files"][0]["sha256"], DIGEST);
}

#[cfg(unix)]
#[test]
fn links_in_the_place_of_parts_are_not_followed() {
    let server = Server::new(|_, _, stream| send(stream, "200 OK\r\nContent-Length: 3", b"abc"));
    for name in [".model.bin.part", ".model.bin.part.json"] {
        let folder = Folder::new(&format!("linked{name}"));
        std::fs::write(folder.0.join("other"), "precious").unwrap();
        std::os::unix::fs::symlink("other", folder.0.join(name)).unwrap();
        assert!(folder.fails(&server.url, &[]).contains("not a plain file"), "{name}");
        assert_eq!(std::fs::read_to_string(folder.0.join("other")).unwrap(), "precious", "{name}");
    }
}

#[cfg(unix)]
#[test]
fn what_is_no_plain_file_is_not_replaced() {
    let folder = Folder::new("socket");
    let path = folder.0.join("socket");
    let _socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let server = Server::new(|_, _, stream| send(stream, "200 OK\r\nContent-Length: 3", b"abc"));
    assert!(folder.fails(&server.url, &["--out", "socket", "--force"]).contains("not a plain file"));
    assert!(!path.metadata().unwrap().is_file());
}

#[test]
fn times_that_no_clock_has_are_errors_of_the_command_line() {
    let folder = Folder::new("times");
    let mut command = Command::new(env!("CARGO_BIN_EXE_olivine"));
    command
        .args(["pull", "http://127.0.0.1:1/x", "--timeout", "18446744073709551615"])
        .current_dir(&folder.0);
    assert_eq!(command.output().unwrap().status.code(), Some(2));
}

#[test]
fn what_is_no_file_is_an_error_and_leaves_nothing() {
    type Answer = fn(&mut TcpStream);
    let cases: [(&str, Answer, &str); 6] = [
        ("missing", |s| send(s, "404 Not Found\r\nContent-Length: 0", b""), "404"),
        (
            "page",
            |s| send(s, "200 OK\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: 6", b"<html>"),
            "a web page",
        ),
        ("loop", |s| send(s, "302 Found\r\nLocation: /model.bin\r\nContent-Length: 0", b""), "redirect"),
        ("packed", |s| send(s, "200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3", b"abc"), "gzip"),
        (
            "range",
            |s| send(s, "206 Partial\r\nContent-Range: bytes 0-2/3\r\nContent-Length: 3", b"abc"),
            "206",
        ),
        (
            "noise",
            |s| {
                let _ = s.write_all(b"no HTTP at all\r\n\r\n");
            },
            "",
        ),
    ];
    for (name, answer, words) in cases {
        let server = Server::new(move |_, _, stream| answer(stream));
        let folder = Folder::new(name);
        let message = folder.fails(&server.url, &[]);
        assert!(message.contains(words), "{name}: {message}");
        assert_eq!(folder.names(), [""; 0], "{name}");
        assert!(server.requests().len() <= 10, "{name}: {} requests", server.requests().len());
    }
    let wrong = Server::new(|_, _, stream| send(stream, "200 OK\r\nContent-Length: 3", b"abc"));
    let folder = Folder::new("digest");
    assert!(folder.fails(&wrong.url, &["--sha256", DIGEST]).contains("SHA-256"));
    assert_eq!(folder.names(), [""; 0]);
    for source in ["ftp://a.example/x", "http://", "nowhere.gguf", "http://127.0.0.1:1/x%2f..%2f"] {
        assert_eq!(folder.pull(source, &[]).status.code(), Some(1), "{source}");
    }
    assert_eq!(folder.names(), [""; 0]);
}

#[test]
fn bodies_that_end_early_or_stall_are_not_taken_for_whole() {
    // Without a length, the end of chunks says whether all is there.
    let chunked =
        Server::new(|_, _, stream| send(stream, "200 OK\r\nTransfer-Encoding: chunked", b"5\r\nhello\r\n"));
    let folder = Folder::new("chunks");
    folder.fails(&chunked.url, &[]);
    let stalls = Server::new(|head, n, stream| {
        let all = content();
        let start = range(head).unwrap_or(0);
        let body = &all[start..];
        let status = match start {
            0 => format!("200 OK\r\nContent-Length: {}", all.len()),
            _ => format!(
                "206 P\r\nContent-Range: bytes {start}-{}/{}\r\nContent-Length: {}",
                all.len() - 1,
                all.len(),
                body.len()
            ),
        };
        let most = if n == 0 { 1000 } else { body.len() };
        send(stream, &format!("{status}\r\nLast-Modified: Wed, 18 Nov 2026 10:00:00 GMT"), &body[..most]);
        if n == 0 {
            // The connection stays open, and nothing comes.
            let open = stream.try_clone().unwrap();
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_secs(20));
                drop(open);
            });
        }
    });
    assert_eq!(folder.pulled(&stalls.url, &["--force"])["files"][0]["sha256"], DIGEST);
}

#[test]
fn files_and_folders_are_copied_or_hashed_where_they_are() {
    let folder = Folder::new("local");
    let source = folder.0.join("source");
    std::fs::create_dir_all(source.join("inner")).unwrap();
    std::fs::write(source.join("model.bin"), content()).unwrap();
    std::fs::write(source.join("inner/config.json"), "{}").unwrap();
    let hashed = folder.pulled("source/model.bin", &["--sha256", DIGEST]);
    assert_eq!(hashed["files"][0]["sha256"], DIGEST);
    assert_eq!(folder.names(), ["source"]);
    folder.pulled("source/model.bin", &["--out", "copy.bin", "--sha256", DIGEST]);
    assert_eq!(std::fs::read(folder.0.join("copy.bin")).unwrap(), content());
    let wrong = "0".repeat(64);
    assert_eq!(folder.pull("source/model.bin", &["--sha256", &wrong]).status.code(), Some(1));
    assert_eq!(
        folder.pull("source/model.bin", &["--out", "other.bin", "--sha256", &wrong]).status.code(),
        Some(1)
    );
    let json = folder.pulled("source", &["--out", "all"]);
    assert_eq!(json["files"].as_array().unwrap().len(), 2);
    assert_eq!(std::fs::read(folder.0.join("all/inner/config.json")).unwrap(), b"{}");
    assert_eq!(folder.names(), ["all", "copy.bin", "source"]);
    assert_eq!(folder.pull("source", &["--out", "source/again"]).status.code(), Some(1));
    assert_eq!(folder.pull("source", &["--out", "all"]).status.code(), Some(1));
    assert_eq!(folder.pull("nothing", &[]).status.code(), Some(1));
}
