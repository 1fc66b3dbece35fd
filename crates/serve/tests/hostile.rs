//! Requests that are made to take long, to take much, or to come from elsewhere: each is answered, and the server goes on.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says what it expects")]

mod common;

use std::time::{Duration, Instant};

use common::client::{get, post, posted, send};
use common::{NAME, loaded, options, serve};
use olivine_serve::Server;
use serde_json::{Map, Value, json};

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";
/// What one request may take, on a machine that does other things too.
const LONG: Duration = Duration::from_secs(60);

fn with_schema(schema: &Value) -> Value {
    let format = json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": schema } });
    json!({ "model": NAME, "prompt": "x", "max_tokens": 3, "seed": 1, "response_format": format })
}

/// Entries by numbered names.
fn numbered(name: &str, count: usize, value: impl Fn(usize) -> Value) -> Value {
    Value::Object((0..count).map(|i| (format!("{name}{i}"), value(i))).collect::<Map<_, _>>())
}

#[test]
fn costly_schemas_are_answered_and_the_server_goes_on() {
    let server = serve(2, options());
    let mut either = vec![json!({ "$ref": "#" }); 8];
    either.push(json!({ "type": "integer" }));
    let circle = json!({ "anyOf": either });
    let mut links = numbered("a", 9000, |i| json!({ "$ref": format!("#/$defs/a{}", i + 1) }));
    links["a9000"] = json!({ "const": 1 });
    let chain = json!({ "$ref": "#/$defs/a0", "$defs": links });
    let words: Vec<String> = (0..100_000).map(|i| format!("word {i}")).collect();
    let missing: Vec<String> = (0..200_000).map(|i| format!("a{}", i % 500)).collect();
    let required = json!({ "properties": numbered("k", 9000, |_| json!(true)), "required": missing });
    let lengths: Vec<Value> = (0..2000).map(|i| json!({ "type": "string", "maxLength": 1000 + i })).collect();
    for (what, schema) in [
        ("a circle", circle),
        ("a chain", chain),
        ("an enum", json!({ "enum": words })),
        ("required", required),
        ("many ways", json!({ "anyOf": lengths })),
    ] {
        let begun = Instant::now();
        let reply = post(&server, TEXT, &with_schema(&schema));
        assert_eq!(reply.status, 200, "{what}: {}", reply.text());
        assert!(begun.elapsed() < LONG, "{what} took {:?}", begun.elapsed());
    }
    assert_eq!(get(&server, "/health").status, 200);
}

#[test]
fn tools_with_very_many_definitions_are_read_at_once() {
    let template = "<tool_call>{% for m in messages %}{{ m.content }}{% endfor %}";
    let server = Server::start(loaded(2).with_chat_template(template).unwrap(), options()).unwrap();
    let definitions = numbered("definition", 60_000, |_| json!({}));
    let parameters = json!({ "type": "object", "properties": { "a": { "$ref": "#/$defs/definition59999" } }, "$defs": definitions });
    let tool = json!({ "type": "function", "function": { "name": "f", "parameters": parameters } });
    let begun = Instant::now();
    let body = json!({ "model": NAME, "messages": [{ "role": "user", "content": "hi" }], "max_tokens": 2, "tools": [tool], "tool_choice": "required" });
    posted(&server, CHAT, &body);
    assert!(begun.elapsed() < LONG, "{:?}", begun.elapsed());
}

#[test]
fn pages_whose_names_lead_to_this_machine_are_refused() {
    let evil = "Host: evil.example\r\n";
    let server = serve(1, options());
    for path in ["/", "/health", "/v1/models", "/metrics"] {
        let reply = send(&server, "GET", path, evil, b"").receive();
        assert_eq!((reply.status, &reply.error()["code"]), (421, &json!("unknown_host")), "{path}");
        assert_eq!(get(&server, path).status, 200, "{path}");
    }
    let known = serve(1, options().hosts(["evil.example".to_string()]));
    assert_eq!(send(&known, "GET", "/v1/models", evil, b"").receive().status, 200);
    let keys = serve(1, options().api_keys(["key".to_string()]));
    let headers = format!("{evil}Authorization: Bearer key\r\n");
    assert_eq!(send(&keys, "GET", "/v1/models", &headers, b"").receive().status, 200);
    assert_eq!(send(&keys, "GET", "/v1/models", evil, b"").receive().status, 401);
}

#[test]
fn paths_that_are_no_text_are_errors_in_json() {
    let server = serve(1, options());
    let reply = get(&server, "/v1/models/%ff");
    assert_eq!((reply.status, reply.error()["type"].clone()), (400, json!("invalid_request_error")));
    assert_eq!(get(&server, "/v1/models/%20").error()["code"], json!("model_not_found"));
}

#[test]
fn clients_may_be_waited_for_without_an_end() {
    let server = serve(1, options().client_timeout(Duration::MAX).drain(Duration::MAX));
    posted(&server, TEXT, &json!({ "model": NAME, "prompt": "x", "max_tokens": 2 }));
    server.stop();
}
