//! A file by HTTP: ranges that continue what is there, and nothing that a server says is believed unchecked.

use std::io::Read as _;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use ureq::http::{HeaderMap, Response, header};
use ureq::{Agent, Body};

use super::Pulled;
use super::partial::{Partial, Version};
use crate::answer::Failure;
use crate::progress::Bytes;

/// Redirects at most.
const MOST_REDIRECTS: u32 = 5;
/// Attempts that bring nothing, in a row, at most.
const ATTEMPTS: u32 = 4;
const BUFFER: usize = 256 << 10;

/// A file to fetch.
pub(super) struct Fetch<'a> {
    pub(super) url: &'a str,
    /// How long a connection may bring nothing.
    pub(super) silence: Duration,
    pub(super) quiet: bool,
}

/// Why an attempt ended.
enum Problem {
    /// The connection; another attempt may go on.
    Broken(String),
    /// Nothing that another attempt would change.
    Final(Failure),
}

impl From<Failure> for Problem {
    fn from(failure: Failure) -> Self {
        Problem::Final(failure)
    }
}

impl Fetch<'_> {
    /// Fetches the file and gives it its name.
    pub(super) fn run(&self, target: &Path, wanted: Option<&str>) -> Result<Pulled, Failure> {
        let agent = self.agent()?;
        let mut partial = Partial::open(target)?;
        match self.fetch(&agent, &mut partial) {
            Ok(resumed) => partial.finish(wanted, resumed),
            Err(failure) => {
                partial.leave();
                Err(failure.context(format!("cannot pull `{}`", self.url)))
            }
        }
    }

    /// Requests until all of it is there; how much of it an earlier run has left.
    fn fetch(&self, agent: &Agent, partial: &mut Partial) -> Result<u64, Failure> {
        let left = partial.length();
        let mut resumed = None;
        let mut attempt = 0;
        loop {
            let before = partial.length();
            match self.attempt(agent, partial, &mut resumed) {
                Ok(()) => return Ok(resumed.unwrap_or(0).min(left)),
                Err(Problem::Final(failure)) => return Err(failure),
                Err(Problem::Broken(why)) => {
                    attempt = if partial.length() > before { 1 } else { attempt + 1 };
                    if attempt >= ATTEMPTS {
                        let hint = "what has come is kept; the same command goes on from there";
                        return Err(Failure::new(why).hint(hint));
                    }
                    std::thread::sleep(Duration::from_millis(250 << attempt));
                }
            }
        }
    }

    fn agent(&self) -> Result<Agent, Failure> {
        let secure = self.url.to_ascii_lowercase().starts_with("https://");
        if secure && !cfg!(feature = "https") {
            return Err(Failure::new("this program was built without its feature `https`"));
        }
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(MOST_REDIRECTS)
            // Encrypted sources do not redirect to plain ones.
            .https_only(secure)
            .timeout_connect(Some(self.silence))
            .timeout_recv_response(Some(self.silence))
            .user_agent(concat!("olivine/", env!("CARGO_PKG_VERSION")))
            .build();
        Ok(config.into())
    }

    /// One request, which continues what is there if its version is known and still the same.
    fn attempt(
        &self,
        agent: &Agent,
        partial: &mut Partial,
        resumed: &mut Option<u64>,
    ) -> Result<(), Problem> {
        let have = partial.length();
        let known = partial.version().filter(|version| version.url == self.url && have > 0);
        let known = known.filter(|version| version.validator.is_some());
        if known.as_ref().is_some_and(|version| version.total == Some(have)) {
            return Ok(partial.resume()?);
        }
        let mut request = agent.get(self.url).header(header::ACCEPT_ENCODING, "identity");
        if let Some(Version { validator: Some(validator), .. }) = &known {
            request =
                request.header(header::RANGE, format!("bytes={have}-")).header(header::IF_RANGE, validator);
        }
        let response = request.call().map_err(|error| broken(&error))?;
        let headers = response.headers();
        match (response.status().as_u16(), known) {
            (206, Some(version)) => {
                let (start, total) =
                    content_range(headers).ok_or_else(|| wrong("sent a range without its place"))?;
                let same = version.total.is_none() || version.total == Some(total);
                if start != have || !same || changed(headers, &version) {
                    // The next attempt asks for all of it.
                    partial.restart()?;
                    return Err(Problem::Broken("the server sent another range, or of another file".into()));
                }
                partial.resume()?;
                resumed.get_or_insert(have);
                self.receive(response, partial, Some(total))
            }
            (416, Some(_)) => {
                // Either all of it is there, or the file has changed; the whole answers both.
                partial.restart()?;
                Err(Problem::Broken("the server has no bytes after those that are there".into()))
            }
            (200, _) => {
                refuse_pages(headers)?;
                let total = length(headers)?;
                partial.restart()?;
                partial.begin(&Version {
                    url: self.url.to_string(),
                    validator: validator(headers),
                    total,
                })?;
                self.receive(response, partial, total)
            }
            (status @ (408 | 429 | 500 | 502 | 503 | 504), _) => {
                Err(Problem::Broken(format!("the server answered with status {status}")))
            }
            (status, _) => Err(Failure::new(format!("the server answered with status {status}")).into()),
        }
    }

    /// Appends a body, and checks that it is as long as was said.
    fn receive(
        &self,
        response: Response<Body>,
        partial: &mut Partial,
        total: Option<u64>,
    ) -> Result<(), Problem> {
        let parts = parts(response);
        let mut progress = Bytes::new(total, partial.length(), self.quiet);
        loop {
            let part = match parts.recv_timeout(self.silence) {
                Ok(Some(Ok(part))) => part,
                Ok(Some(Err(error))) => {
                    return Err(Problem::Broken(format!("the connection broke: {error}")));
                }
                Ok(None) => break,
                Err(RecvTimeoutError::Timeout) => {
                    let seconds = self.silence.as_secs();
                    return Err(Problem::Broken(format!("the server sent nothing for {seconds} s")));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Problem::Broken("the connection ended".into()));
                }
            };
            if total.is_some_and(|total| partial.length() + part.len() as u64 > total) {
                partial.restart()?;
                return Err(wrong("sent more than it had said").into());
            }
            partial.append(&part)?;
            progress.add(part.len());
        }
        match total {
            Some(total) if partial.length() < total => Err(Problem::Broken(format!(
                "the connection ended after {} of {total} bytes",
                partial.length()
            ))),
            _ => Ok(()),
        }
    }
}

/// Reads a body on a thread of its own, so that a server that sends nothing is noticed. `None` is its end.
fn parts(response: Response<Body>) -> Receiver<Option<std::io::Result<Vec<u8>>>> {
    let (sender, receiver) = sync_channel(4);
    let mut reader = response.into_body().into_reader();
    std::thread::spawn(move || {
        loop {
            let mut buffer = vec![0; BUFFER];
            let part = match reader.read(&mut buffer) {
                Ok(0) => None,
                Ok(count) => {
                    buffer.truncate(count);
                    Some(Ok(buffer))
                }
                Err(error) => Some(Err(error)),
            };
            let last = !matches!(part, Some(Ok(_)));
            if sender.send(part).is_err() || last {
                return;
            }
        }
    });
    receiver
}

fn wrong(what: &str) -> Failure {
    Failure::new(format!("the server {what}"))
}

fn broken(error: &ureq::Error) -> Problem {
    use ureq::Error as E;
    match error {
        E::Io(_) | E::Timeout(_) | E::ConnectionFailed | E::HostNotFound => {
            Problem::Broken(error.to_string())
        }
        _ => Problem::Final(Failure::new(error.to_string())),
    }
}

fn text(headers: &HeaderMap, name: header::HeaderName) -> Option<&str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// A strong ETag, or the time of the last change: with one of them a range is of the same version.
fn validator(headers: &HeaderMap) -> Option<String> {
    let tag = text(headers, header::ETAG).filter(|tag| tag.starts_with('"'));
    tag.or(text(headers, header::LAST_MODIFIED)).map(str::to_string)
}

/// Whether a range is of another version than the bytes before.
fn changed(headers: &HeaderMap, version: &Version) -> bool {
    let known = version.validator.as_deref();
    let found = match known.is_some_and(|known| known.starts_with('"')) {
        true => text(headers, header::ETAG).filter(|tag| tag.starts_with('"')),
        false => text(headers, header::LAST_MODIFIED),
    };
    known.zip(found).is_some_and(|(known, found)| known != found)
}

/// The first byte of a range, and how many the file has.
fn content_range(headers: &HeaderMap) -> Option<(u64, u64)> {
    let (range, total) = text(headers, header::CONTENT_RANGE)?.strip_prefix("bytes ")?.split_once('/')?;
    let (start, end) = range.split_once('-')?;
    let (start, end, total): (u64, u64, u64) = (start.parse().ok()?, end.parse().ok()?, total.parse().ok()?);
    (start <= end && end < total).then_some((start, total))
}

/// The length of a body; an encoding would make it another.
fn length(headers: &HeaderMap) -> Result<Option<u64>, Failure> {
    if let Some(encoding) = text(headers, header::CONTENT_ENCODING).filter(|encoding| *encoding != "identity")
    {
        return Err(wrong(&format!("sent the file in the encoding `{encoding}`, which was not asked for")));
    }
    match text(headers, header::CONTENT_LENGTH) {
        None => Ok(None),
        Some(length) => length.parse().map(Some).map_err(|_| wrong("sent a length that is no number")),
    }
}

/// Pages that ask for a login come with status 200, too.
fn refuse_pages(headers: &HeaderMap) -> Result<(), Failure> {
    match text(headers, header::CONTENT_TYPE) {
        Some(kind) if kind.trim_start().to_ascii_lowercase().starts_with("text/html") => {
            Err(wrong("sent a web page, not a file").hint("the URL has to be that of the file itself"))
        }
        _ => Ok(()),
    }
}

/// The name of a URL's file, if that is a name that can be written anywhere.
pub(super) fn file_name(url: &str) -> Option<String> {
    let (_, rest) = url.split_once("://")?;
    let path = rest.split(['?', '#']).next()?;
    let (_, last) = path.rsplit_once('/')?;
    let mut bytes = Vec::new();
    let mut left = last.bytes();
    while let Some(byte) = left.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [left.next()?, left.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            byte => byte,
        });
    }
    let name = String::from_utf8(bytes).ok()?;
    let bad = |c: char| c.is_control() || matches!(c, '/' | '\\' | ':' | '*' | '?' | '"' | '<' | '>' | '|');
    (!name.is_empty() && name.len() <= 200 && !name.starts_with('.') && !name.contains(bad)).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_from_the_path_and_never_leave_the_folder() {
        for (url, name) in [
            ("http://a.example/models/x.gguf", Some("x.gguf")),
            ("https://a.example/x%20y.gguf?download=true#top", Some("x y.gguf")),
            ("https://a.example/", None),
            ("https://a.example", None),
            ("https://a.example/..", None),
            ("https://a.example/%2e%2e", None),
            ("https://a.example/a%2Fb", None),
            ("https://a.example/a%5cb", None),
            ("https://a.example/.profile", None),
            ("https://a.example/a%00", None),
            ("https://a.example/a%zz", None),
            ("https://a.example/%ff", None),
        ] {
            assert_eq!(file_name(url).as_deref(), name, "{url}");
        }
    }

    #[test]
    fn ranges_that_contradict_themselves_are_no_ranges() {
        let of = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_RANGE, value.parse().unwrap());
            content_range(&headers)
        };
        assert_eq!(of("bytes 5-9/10"), Some((5, 10)));
        for wrong in ["bytes 5-10/10", "bytes 6-5/10", "bytes 5-9/*", "5-9/10", "bytes 5-/10", "bytes -9/10"]
        {
            assert_eq!(of(wrong), None, "{wrong}");
        }
    }
}
