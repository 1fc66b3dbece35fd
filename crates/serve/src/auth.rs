//! Who may use the server: API keys, pages of other origins, and the names by which it is reached.

use std::net::{IpAddr, SocketAddr};

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use blake3::Hash;

/// API keys, of which only hashes are kept.
pub(crate) struct Keys(Vec<Hash>);

impl Keys {
    pub(crate) fn new(keys: &[String]) -> Self {
        Keys(keys.iter().map(|key| blake3::hash(key.as_bytes())).collect())
    }

    /// Whether a request has one of the keys, or none is needed. The time that takes does not depend on the keys: hashes
    /// are compared in constant time, and all of them.
    pub(crate) fn allow(&self, headers: &HeaderMap) -> bool {
        let header = headers.get(header::AUTHORIZATION).map_or(&b""[..], HeaderValue::as_bytes);
        let given = match header.split_at_checked(7) {
            Some((scheme, key)) if scheme.eq_ignore_ascii_case(b"bearer ") => key.trim_ascii(),
            _ => b"",
        };
        let given = blake3::hash(given);
        let found = self.0.iter().fold(false, |found, key| found | (*key == given));
        found || self.0.is_empty()
    }
}

/// Origins whose pages may use the server.
pub(crate) struct Origins(Vec<String>);

impl Origins {
    pub(crate) fn new(origins: &[String]) -> Self {
        Origins(origins.to_vec())
    }

    /// The answer to a browser that asks whether it may send a request; `None` if that is not what it asks.
    pub(crate) fn preflight(&self, request: &Request<Body>) -> Option<Response<Body>> {
        let asks = request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
        if request.method() != Method::OPTIONS || !asks {
            return None;
        }
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NO_CONTENT;
        if self.allowed(request.headers()).is_some() {
            let headers = response.headers_mut();
            let (methods, names) = ("GET, POST, OPTIONS", "authorization, content-type");
            headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(methods));
            // The clients of OpenAI send headers of their own, which change with their versions.
            let asked = request.headers().get(header::ACCESS_CONTROL_REQUEST_HEADERS);
            let names = asked.cloned().unwrap_or(HeaderValue::from_static(names));
            headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, names);
            headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
        }
        Some(response)
    }

    /// The origin of a request, if its page may read the response.
    pub(crate) fn allowed(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let origin = headers.get(header::ORIGIN)?;
        if self.0.iter().any(|allowed| allowed == "*") {
            return Some(HeaderValue::from_static("*"));
        }
        self.0.iter().any(|allowed| allowed.as_bytes() == origin.as_bytes()).then(|| origin.clone())
    }
}

/// Names by which the server may be reached. A page can let its own name lead to this machine (DNS rebinding); to browsers the server then
/// is of the page's origin, so that [`Origins`] does not count.
pub(crate) struct Hosts(Option<Vec<String>>);

impl Hosts {
    /// Any name will do for a server that others reach or that asks for keys.
    pub(crate) fn new(names: &[String], address: IpAddr, has_keys: bool) -> Self {
        Hosts((address.is_loopback() && !has_keys).then(|| names.to_vec()))
    }

    /// Whether a request may be for the server. Addresses lead nowhere else; what is no browser may name none.
    pub(crate) fn allow(&self, request: &Request<Body>) -> bool {
        let Some(names) = &self.0 else { return true };
        let headers = request.headers().get_all(header::HOST).into_iter();
        let headers = headers.map(|host| host.to_str().unwrap_or_default());
        headers.chain(request.uri().authority().map(|host| host.as_str())).all(|host| {
            let is_address =
                host.parse::<SocketAddr>().is_ok() || host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
            let name = host.rsplit_once(':').map_or(host, |(name, _)| name).trim_end_matches('.');
            let is_local = |name: &str| name == "localhost" || name.ends_with(".localhost");
            is_address
                || is_local(&name.to_ascii_lowercase())
                || names.iter().any(|known| known.eq_ignore_ascii_case(name))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_whose_names_lead_to_this_machine_get_nothing() {
        let for_host =
            |host: &str| Request::builder().header(header::HOST, host).body(Body::empty()).unwrap();
        let own = [IpAddr::from([127, 0, 0, 1]), "::1".parse().unwrap()];
        let hosts = Hosts::new(&["models.example".into()], own[0], false);
        for good in [
            "localhost",
            "LOCALHOST:8080",
            "a.localhost:1",
            "localhost.",
            "127.0.0.1:8080",
            "127.0.0.1",
            "[::1]:80",
            "[::1]",
            "Models.Example:8080",
        ] {
            assert!(hosts.allow(&for_host(good)), "{good}");
        }
        for bad in [
            "evil.example",
            "evil.example:8080",
            "localhost.evil.example",
            "127.0.0.1.evil.example:1",
            "xlocalhost",
            "",
            ":8080",
            "localhost@evil.example",
        ] {
            assert!(!hosts.allow(&for_host(bad)), "{bad}");
        }
        assert!(hosts.allow(&Request::new(Body::empty())));
        let absolute =
            Request::builder().uri("http://evil.example/v1/models").header(header::HOST, "localhost");
        assert!(!hosts.allow(&absolute.body(Body::empty()).unwrap()));
        assert!(!Hosts::new(&[], own[1], false).allow(&for_host("evil.example")));
        assert!(Hosts::new(&[], own[0], true).allow(&for_host("evil.example")));
        assert!(Hosts::new(&[], IpAddr::from([0, 0, 0, 0]), false).allow(&for_host("evil.example")));
    }

    fn with(value: &str) -> HeaderMap {
        HeaderMap::from_iter([(header::AUTHORIZATION, HeaderValue::from_str(value).unwrap())])
    }

    #[test]
    fn a_request_needs_one_of_the_keys() {
        let keys = Keys::new(&["one".into(), "two".into()]);
        assert!(keys.allow(&with("Bearer one")) && keys.allow(&with("bearer two")));
        for wrong in ["", "Bearer", "Bearer ", "Bearer on", "Bearer onee", "Basic one", "one", "é"] {
            assert!(!keys.allow(&with(wrong)), "{wrong}");
        }
        assert!(!keys.allow(&HeaderMap::new()));
        assert!(Keys::new(&[]).allow(&HeaderMap::new()));
    }

    #[test]
    fn pages_of_origins_that_are_not_named_get_nothing() {
        let from =
            |origin: &'static str| HeaderMap::from_iter([(header::ORIGIN, HeaderValue::from_static(origin))]);
        let origins = Origins::new(&["https://a.example".into()]);
        assert_eq!(origins.allowed(&from("https://a.example")).unwrap(), "https://a.example");
        assert_eq!(origins.allowed(&from("https://b.example")), None);
        assert_eq!(origins.allowed(&HeaderMap::new()), None);
        assert_eq!(Origins::new(&["*".into()]).allowed(&from("https://b.example")).unwrap(), "*");
        assert_eq!(Origins::new(&[]).allowed(&from("https://a.example")), None);
    }
}
