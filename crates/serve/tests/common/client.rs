//! HTTP by hand: what is sent is exactly what a test says.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use olivine_serve::Server;
use serde_json::Value;

/// A response.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }

    /// The error of a response that has one, in OpenAI's shape.
    pub(crate) fn error(&self) -> Value {
        let error = self.json()["error"].clone();
        assert!(error["message"].is_string() && error["type"].is_string(), "{}", self.text());
        assert!(error.get("param").is_some() && error.get("code").is_some(), "{}", self.text());
        error
    }
}

/// A connection with a request on its way.
pub(crate) struct Connection {
    pub(crate) stream: BufReader<TcpStream>,
    /// Bytes that are left of the chunk in progress, of a body in chunks.
    chunk: usize,
    ended: bool,
}

/// Connects to a server.
pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// Sends a request; headers end with `\r\n` each.
pub(crate) fn send(server: &Server, method: &str, path: &str, headers: &str, body: &[u8]) -> Connection {
    send_to(server.address(), method, path, headers, body)
}

pub(crate) fn send_to(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &str,
    body: &[u8],
) -> Connection {
    let mut stream = connect(address);
    let length = if body.is_empty() { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
    let head =
        format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{length}{headers}\r\n");
    stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
    Connection { stream: BufReader::new(stream), chunk: 0, ended: false }
}

impl Connection {
    /// Status and headers.
    pub(crate) fn head(&mut self) -> (u16, Vec<(String, String)>) {
        let mut line = String::new();
        self.stream.read_line(&mut line).unwrap();
        let status =
            line.split(' ').nth(1).unwrap_or_else(|| panic!("no status in {line:?}")).parse().unwrap();
        let mut headers = Vec::new();
        loop {
            let mut line = String::new();
            self.stream.read_line(&mut line).unwrap();
            match line.trim_end().split_once(": ") {
                Some((key, value)) => headers.push((key.to_lowercase(), value.to_string())),
                None => return (status, headers),
            }
        }
    }

    /// All of the response.
    pub(crate) fn receive(mut self) -> Reply {
        let (status, headers) = self.head();
        let mut body = Vec::new();
        let chunked = headers.iter().any(|(key, value)| key == "transfer-encoding" && value == "chunked");
        if chunked {
            while let Some(byte) = self.byte() {
                body.push(byte);
            }
        } else {
            self.stream.read_to_end(&mut body).unwrap();
        }
        Reply { status, headers, body }
    }

    /// A byte of a body in chunks.
    fn byte(&mut self) -> Option<u8> {
        if self.ended {
            return None;
        }
        if self.chunk == 0 {
            let mut line = String::new();
            self.stream.read_line(&mut line).unwrap();
            self.chunk =
                usize::from_str_radix(line.trim(), 16).unwrap_or_else(|_| panic!("no chunk: {line:?}"));
            if self.chunk == 0 {
                self.ended = true;
                return None;
            }
            self.chunk += 2;
        }
        let mut byte = [0];
        self.stream.read_exact(&mut byte).unwrap();
        self.chunk -= 1;
        if self.chunk == 2 {
            let mut end = [0; 2];
            self.stream.read_exact(&mut end).unwrap();
            self.chunk = 0;
        }
        Some(byte[0])
    }

    /// The data of the next event; `None` at the end of the stream.
    pub(crate) fn event(&mut self) -> Option<String> {
        loop {
            let mut line = Vec::new();
            loop {
                match self.byte()? {
                    b'\n' => break,
                    byte => line.push(byte),
                }
            }
            // Every line is UTF-8 by itself, and characters are whole.
            let line = String::from_utf8(line).unwrap();
            match line.strip_prefix("data: ") {
                Some(data) => return Some(data.to_string()),
                None => assert!(line.is_empty() || line.starts_with(':'), "{line:?} is no event"),
            }
        }
    }

    /// All events of a stream that ends as it should, as JSON.
    pub(crate) fn events(mut self) -> Vec<Value> {
        let (status, headers) = self.head();
        assert_eq!(status, 200);
        assert!(headers.iter().any(|(key, value)| key == "content-type" && value == "text/event-stream"));
        let mut all = Vec::new();
        loop {
            let data = self.event().unwrap_or_else(|| panic!("no [DONE] after {} events", all.len()));
            if data == "[DONE]" {
                assert_eq!(self.event(), None);
                return all;
            }
            all.push(serde_json::from_str(&data).unwrap());
        }
    }
}

pub(crate) fn get(server: &Server, path: &str) -> Reply {
    send(server, "GET", path, "", b"").receive()
}

/// A POST of JSON on its way.
pub(crate) fn begin(server: &Server, path: &str, json: &Value) -> Connection {
    send(server, "POST", path, "Content-Type: application/json\r\n", json.to_string().as_bytes())
}

pub(crate) fn post(server: &Server, path: &str, json: &Value) -> Reply {
    begin(server, path, json).receive()
}

/// A response that has to be a success.
pub(crate) fn posted(server: &Server, path: &str, json: &Value) -> Value {
    let reply = post(server, path, json);
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()
}
