//! What the API answers: the shapes of responses, streams, stop strings, and each class of bad input.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says what it expects")]

mod common;

use common::client::{begin, get, post, posted, send};
use common::model::{CONTEXT, VOCABULARY};
use common::{NAME, options, serve};
use olivine_serve::Server;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

fn chat(content: &str, more: Value) -> Value {
    let mut json = json!({ "model": NAME, "messages": [{ "role": "user", "content": content }], "max_tokens": 24, "seed": 5 });
    json.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json
}

fn text(prompt: Value, more: Value) -> Value {
    let mut json = json!({ "model": NAME, "prompt": prompt, "max_tokens": 24, "seed": 5 });
    json.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json
}

/// The text of each choice of a stream, and why it ended.
fn joined(events: &[Value], choices: usize) -> Vec<(String, String)> {
    let mut all = vec![(String::new(), String::new()); choices];
    for choice in events.iter().flat_map(|event| event["choices"].as_array().unwrap()) {
        let (text, reason) = &mut all[choice["index"].as_u64().unwrap() as usize];
        let delta = &choice["delta"]["content"];
        *text += delta.as_str().or(choice["text"].as_str()).unwrap_or_default();
        if let Some(why) = choice["finish_reason"].as_str() {
            assert!(reason.is_empty(), "a choice ends once");
            *reason = why.to_string();
        }
    }
    all
}

#[test]
fn responses_have_the_shapes_of_the_api() {
    let server = serve(2, options());
    let answer = posted(&server, CHAT, &chat("Hello", json!({ "n": 2 })));
    assert_eq!((&answer["object"], &answer["model"]), (&json!("chat.completion"), &json!(NAME)));
    assert!(answer["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert_eq!(answer["choices"].as_array().unwrap().len(), 2);
    for (i, choice) in answer["choices"].as_array().unwrap().iter().enumerate() {
        assert_eq!((&choice["index"], &choice["message"]["role"]), (&json!(i), &json!("assistant")));
        assert!(choice["message"]["content"].is_string() && choice["logprobs"].is_null());
        assert!(["stop", "length"].contains(&choice["finish_reason"].as_str().unwrap()));
    }
    assert_ne!(answer["choices"][0]["message"]["content"], answer["choices"][1]["message"]["content"]);
    let usage = &answer["usage"];
    let sum = usage["prompt_tokens"].as_u64().unwrap() + usage["completion_tokens"].as_u64().unwrap();
    assert_eq!(usage["total_tokens"], json!(sum));
    // "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n" in control tokens and bytes.
    assert_eq!(usage["prompt_tokens"], json!(3 + 5 + 5 + 1 + 10));

    let answer =
        posted(&server, TEXT, &text(json!(["ab", "cde"]), json!({ "n": 2, "echo": true, "max_tokens": 0 })));
    let texts: Vec<&str> =
        answer["choices"].as_array().unwrap().iter().map(|c| c["text"].as_str().unwrap()).collect();
    assert_eq!(texts, ["ab", "ab", "cde", "cde"]);
    assert_eq!(answer["usage"], json!({ "prompt_tokens": 5, "completion_tokens": 0, "total_tokens": 5 }));
    let ids = posted(&server, TEXT, &text(json!([97, 98]), json!({})));
    assert_eq!(ids["choices"], posted(&server, TEXT, &text(json!("ab"), json!({})))["choices"]);

    let models = get(&server, "/v1/models").json();
    assert_eq!(models["data"][0]["id"], json!(NAME));
    assert_eq!(get(&server, "/v1/models/other/name").json()["id"], json!("other/name"));
    assert_eq!(get(&server, "/health").json()["status"], json!("ok"));
    let page = get(&server, "/");
    assert!(page.status == 200 && page.header("content-type").unwrap().starts_with("text/html"));
}

#[test]
fn streams_bring_what_whole_responses_do() {
    let server = serve(3, options());
    for (path, request, choices) in [
        (CHAT, chat("Hi", json!({ "n": 3, "max_tokens": 60 })), 3),
        (TEXT, text(json!(["x", "yz"]), json!({ "n": 2, "temperature": 0.7, "echo": true })), 4),
        (TEXT, text(json!("q"), json!({ "temperature": 0, "max_tokens": 200, "ignore_eos": true })), 1),
    ] {
        let whole = posted(&server, path, &request);
        let mut streamed = request.clone();
        (streamed["stream"], streamed["stream_options"]) = (json!(true), json!({ "include_usage": true }));
        let events = begin(&server, path, &streamed).events();
        let found = joined(&events, choices);
        for (choice, (text, reason)) in whole["choices"].as_array().unwrap().iter().zip(found) {
            let want = choice["message"]["content"].as_str().or(choice["text"].as_str()).unwrap();
            assert_eq!((text.as_str(), &json!(reason)), (want, &choice["finish_reason"]));
        }
        let (last, before) = events.split_last().unwrap();
        assert_eq!((&last["usage"], &last["choices"]), (&whole["usage"], &json!([])));
        assert!(before.iter().all(|event| event["usage"].is_null() && event.get("usage").is_some()));
        assert!(events.iter().all(|event| event["id"] == last["id"]));
    }
    let plain = begin(&server, CHAT, &chat("Hi", json!({ "stream": true }))).events();
    assert!(plain.iter().all(|event| event.get("usage").is_none()));
    assert_eq!(plain[0]["choices"][0]["delta"], json!({ "role": "assistant", "content": "" }));
}

#[test]
fn a_stop_string_ends_the_text_and_is_never_part_of_it() {
    let server = serve(2, options());
    let request = |more: Value| {
        text(
            json!("tell me"),
            json!({ "max_tokens": 80, "ignore_eos": true, "logprobs": 0 })
                .as_object()
                .unwrap()
                .iter()
                .chain(more.as_object().unwrap())
                .map(|(k, v)| (k.clone(), v.clone()))
                .collect(),
        )
    };
    let whole = posted(&server, TEXT, &request(json!({})));
    let all: Vec<char> = whole["choices"][0]["text"].as_str().unwrap().chars().collect();
    assert!(all.len() > 20);
    // Strings of the text itself, of one to seven characters, alone and beside one that never comes.
    for (at, length) in [(0, 1), (3, 2), (5, 7), (10, 4), (17, 3)] {
        let stop: String = all[at..at + length].iter().collect();
        let joined_text: String = all.iter().collect();
        let want = &joined_text[..joined_text.find(&stop).unwrap()];
        for stops in [json!(stop), json!(["\u{1}never\u{1}", stop])] {
            let stopped = posted(&server, TEXT, &request(json!({ "stop": stops })));
            assert_eq!(stopped["choices"][0]["text"], json!(want), "{stop:?}");
            assert_eq!(stopped["choices"][0]["finish_reason"], json!("stop"));
            assert!(stopped["usage"]["completion_tokens"].as_u64() < Some(80));
            let events = begin(&server, TEXT, &request(json!({ "stop": stops, "stream": true }))).events();
            assert_eq!(joined(&events, 1), [(want.to_string(), "stop".to_string())]);
        }
    }
}

#[test]
fn sampling_parameters_reach_the_engine() {
    let server = serve(2, options());
    let of = |more: Value| posted(&server, TEXT, &text(json!("abc"), more))["choices"][0]["text"].clone();
    assert_eq!(of(json!({ "seed": 9 })), of(json!({ "seed": 9 })));
    assert_ne!(of(json!({ "seed": 9 })), of(json!({ "seed": 10 })));
    let greedy = of(json!({ "temperature": 0 }));
    assert_eq!(of(json!({ "top_k": 1, "seed": 3 })), greedy);
    assert_eq!(of(json!({ "min_p": 1.0, "seed": 3 })), greedy);
    assert_eq!(of(json!({ "top_p": 0.0, "seed": 3 })), greedy);
    assert_eq!(of(json!({ "logit_bias": { "97": 100 }, "max_tokens": 3 })), json!("aaa"));
    assert_eq!(of(json!({ "logit_bias": { "97": 100 }, "max_completion_tokens": 2 })), json!("aa"));
    let banned: serde_json::Map<String, Value> =
        (0..VOCABULARY).filter(|id| *id != 98).map(|id| (id.to_string(), json!(-100))).collect();
    assert_eq!(of(json!({ "logit_bias": banned, "max_tokens": 4 })), json!("bbbb"));
    let varied = of(
        json!({ "logit_bias": { "97": 3 }, "presence_penalty": 2, "frequency_penalty": 2, "temperature": 0 }),
    );
    assert_ne!(varied, of(json!({ "logit_bias": { "97": 3 }, "temperature": 0 })));
}

#[test]
fn log_probabilities_belong_to_the_tokens_of_the_text() {
    let server = serve(2, options());
    let plain = text(json!("abc"), json!({ "logprobs": 0, "ignore_eos": true }));
    let found = posted(&server, TEXT, &plain);
    let logprobs = &found["choices"][0]["logprobs"];
    let values = logprobs["token_logprobs"].as_array().unwrap();
    assert_eq!((values.len(), logprobs["tokens"].as_array().unwrap().len()), (24, 24));
    assert!(values.iter().all(|value| value.as_f64().unwrap() <= 0.0));
    let found = posted(&server, CHAT, &chat("abc", json!({ "logprobs": true, "ignore_eos": true })));
    let content = found["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(content.len(), 24);
    let bytes: Vec<u8> = content
        .iter()
        .flat_map(|t| t["bytes"].as_array().unwrap())
        .map(|b| b.as_u64().unwrap() as u8)
        .collect();
    let want = found["choices"][0]["message"]["content"].as_str().unwrap();
    assert_eq!(without_control(&bytes), want);
}

#[test]
fn the_likeliest_tokens_come_in_order_and_hold_the_greedy_one() {
    let server = serve(2, options());
    let greedy = json!({ "logprobs": true, "top_logprobs": 4, "temperature": 0, "ignore_eos": true });
    let found = posted(&server, CHAT, &chat("abc", greedy.clone()));
    let content = found["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(content.len(), 24);
    for token in content {
        let top = token["top_logprobs"].as_array().unwrap();
        let values: Vec<f64> = top.iter().map(|top| top["logprob"].as_f64().unwrap()).collect();
        assert!(top.len() == 4 && values.is_sorted_by(|a, b| a >= b), "{token}");
        assert_eq!((&top[0]["bytes"], &top[0]["logprob"]), (&token["bytes"], &token["logprob"]));
        assert!(values.iter().map(|x| x.exp()).sum::<f64>() <= 1.0 + 1e-5);
    }
    // A stream has the same.
    let mut streamed = chat("abc", greedy);
    streamed["stream"] = json!(true);
    let events = begin(&server, CHAT, &streamed).events();
    let tokens = |event: &Value| event["choices"][0]["logprobs"]["content"].as_array().cloned();
    assert_eq!(&events.iter().filter_map(tokens).flatten().collect::<Vec<_>>(), content);
    // Of completions, by text, with the one that was chosen.
    let drawn = json!({ "logprobs": 2, "temperature": 2, "ignore_eos": true });
    let found = posted(&server, TEXT, &text(json!("abc"), drawn));
    let logprobs = &found["choices"][0]["logprobs"];
    let top = logprobs["top_logprobs"].as_array().unwrap();
    assert_eq!(top.len(), 24);
    for (i, top) in top.iter().map(|top| top.as_object().unwrap()).enumerate() {
        // Tokens that are no characters have the same text.
        assert!((1..=3).contains(&top.len()) && top.contains_key(logprobs["tokens"][i].as_str().unwrap()));
    }
}

/// The text of bytes in which control tokens are written out.
fn without_control(bytes: &[u8]) -> String {
    let mut text = String::from_utf8_lossy(bytes).into_owned();
    for token in ["<|im_start|>", "<|im_end|>", "<|endoftext|>"] {
        text = text.replace(token, "");
    }
    text
}

#[test]
fn json_is_json_whatever_the_model_would_say() {
    let server = serve(3, options());
    let mut complete = 0;
    for seed in 0..6 {
        let more = json!({ "response_format": { "type": "json_object" }, "seed": seed, "n": 2, "max_tokens": 600, "ignore_eos": true,
            "logit_bias": { "34": 4, "125": 8 } });
        for request in [chat("give me JSON", more.clone()), text(json!("{"), more)] {
            let path = if request.get("prompt").is_some() { TEXT } else { CHAT };
            for choice in posted(&server, path, &request)["choices"].as_array().unwrap() {
                let said = choice["message"]["content"].as_str().or(choice["text"].as_str()).unwrap();
                assert!(said.trim_start().starts_with('{'), "{said:?}");
                if choice["finish_reason"] == "stop" {
                    let value: Value = serde_json::from_str(said).unwrap_or_else(|e| panic!("{e}: {said:?}"));
                    assert!(value.is_object());
                    complete += 1;
                }
            }
        }
    }
    assert!(complete > 5, "{complete} of 24 are complete");
}

#[test]
fn a_schema_holds_whatever_the_model_would_say() {
    let server = serve(3, options());
    let schema = json!({ "type": "object", "additionalProperties": false, "required": ["kind", "on"],
        "properties": { "kind": { "enum": ["left", "right"] }, "on": { "type": "boolean" } } });
    let format = |schema: &Value| json!({ "type": "json_schema", "json_schema": { "name": "turn", "strict": true, "schema": schema } });
    for seed in 0..5 {
        let request = chat(
            "turn",
            json!({ "response_format": format(&schema), "seed": seed, "max_tokens": 300, "temperature": 1.3 }),
        );
        let answer = posted(&server, CHAT, &request);
        let said = answer["choices"][0]["message"]["content"].as_str().unwrap();
        assert_eq!(answer["choices"][0]["finish_reason"], "stop", "{said:?}");
        let value: Value = serde_json::from_str(said).unwrap();
        assert!(["left", "right"].contains(&value["kind"].as_str().unwrap()), "{said}");
        assert!(value["on"].is_boolean() && value.as_object().unwrap().len() == 2, "{said}");
    }
    for (format, words) in [
        (json!({ "type": "json_schema" }), "`response_format.json_schema` is missing"),
        (
            json!({ "type": "json_schema", "json_schema": { "name": "x" } }),
            "`response_format.json_schema.schema` is missing",
        ),
        (format(&json!({ "type": "strange" })), "schema"),
        (format(&json!({ "$ref": "#/nowhere" })), "schema"),
        (format(&json!(7)), "schema"),
    ] {
        refused(&server, CHAT, &chat("a", json!({ "response_format": format })), 400, words);
    }
}

fn refused(server: &Server, path: &str, body: &Value, status: u16, words: &str) {
    let reply = post(server, path, body);
    assert_eq!(reply.status, status, "{body}: {}", reply.text());
    let message = reply.error()["message"].as_str().unwrap().to_string();
    assert!(message.contains(words), "{message:?} does not say {words:?}");
}

#[test]
fn bad_requests_are_errors_of_the_client_that_name_the_field() {
    let server = serve(2, options().queue(6));
    let long = "x".repeat(CONTEXT);
    let cases = [
        (json!([]), 400, "an object"),
        (json!({}), 400, "`messages` is missing"),
        (chat("a", json!({ "messages": [] })), 400, "1 to"),
        (chat("a", json!({ "messages": "hello" })), 400, "`messages` has to be an array, not a string"),
        (chat("a", json!({ "messages": [1] })), 400, "`messages[0]` has to be an object"),
        (chat("a", json!({ "messages": [{ "content": "a" }] })), 400, "`messages[0].role` is missing"),
        (chat("a", json!({ "messages": [{ "role": "alien", "content": "a" }] })), 400, "not `alien`"),
        (chat("a", json!({ "messages": [{ "role": "user" }] })), 400, "`messages[0].content` is missing"),
        (chat("a", json!({ "messages": [{ "role": "user", "content": 7 }] })), 400, "a string or an array"),
        (
            chat("a", json!({ "messages": [{ "role": "user", "content": [{ "type": "image_url" }] }] })),
            400,
            "text only",
        ),
        (chat("refuse", json!({})), 400, "no such talk"),
        (chat("loop", json!({})), 400, "template"),
        (chat(&long, json!({})), 400, "the context holds"),
        (chat("a", json!({ "model": "gpt-9" })), 404, "`gpt-9` is not here"),
        (chat("a", json!({ "model": 4 })), 400, "`model` has to be a string"),
        (chat("a", json!({ "temperature": "hot" })), 400, "`temperature` has to be a number, not a string"),
        (chat("a", json!({ "temperature": -1 })), 400, "from 0 to 2"),
        (chat("a", json!({ "top_p": 1.5 })), 400, "from 0 to 1"),
        (chat("a", json!({ "top_k": 1.5 })), 400, "an integer"),
        (chat("a", json!({ "n": 0 })), 400, "from 1 to"),
        (chat("a", json!({ "n": 9 })), 400, "slots and queue hold 8"),
        (chat("a", json!({ "max_tokens": -1 })), 400, "`max_tokens`"),
        (chat("a", json!({ "seed": "x" })), 400, "an integer"),
        (chat("a", json!({ "stop": 3 })), 400, "`stop`"),
        (chat("a", json!({ "stop": [""] })), 400, "`stop`"),
        (chat("a", json!({ "stream": "yes" })), 400, "true or false"),
        (chat("a", json!({ "stream_options": { "include_usage": true } })), 400, "with `stream`"),
        (chat("a", json!({ "logit_bias": { "x": 1 } })), 400, "a token's number"),
        (chat("a", json!({ "logit_bias": { "1": 101 } })), 400, "-100 to 100"),
        (chat("a", json!({ "logit_bias": { "99999": 1 } })), 400, "not below"),
        (chat("a", json!({ "tools": [{ "type": "function" }] })), 400, "`tools[0].function` is missing"),
        (
            chat("a", json!({ "tools": [{ "type": "function", "function": { "name": "f" } }] })),
            400,
            "template does not say how tools are called",
        ),
        (chat("a", json!({ "tool_choice": "required" })), 400, "needs `tools`"),
        (chat("a", json!({ "logprobs": true, "top_logprobs": 21 })), 400, "from 0 to 20"),
        (chat("a", json!({ "top_logprobs": 3 })), 400, "needs `logprobs`"),
        (chat("a", json!({ "tempreature": 1 })), 400, "`tempreature` is not supported"),
        (chat("a", json!({ "reasoning_effort": "low" })), 400, "`reasoning_effort` is not supported"),
        (chat("a", json!({ "functions": [{ "name": "f" }] })), 400, "`functions` is not supported"),
        (chat("a", json!({ "service_tier": "priority" })), 400, "one tier"),
        (
            chat("a", json!({ "stream": true, "stream_options": { "include_all": true } })),
            400,
            "`stream_options.include_all` is not supported",
        ),
        (chat("a", json!({ "response_format": { "type": "xml" } })), 400, "`response_format.type`"),
    ];
    for (body, status, words) in cases {
        refused(&server, CHAT, &body, status, words);
    }
    let cases = [
        (json!({ "model": NAME }), "`prompt` is missing"),
        (text(json!(""), json!({})), "no tokens"),
        (text(json!([]), json!({})), "empty"),
        (text(json!([1, "a"]), json!({})), "`prompt` has to be"),
        (text(json!([1, VOCABULARY]), json!({})), "not below"),
        (text(json!([-1]), json!({})), "not below"),
        (text(json!({ "a": 1 }), json!({})), "`prompt` has to be"),
        (text(json!(long), json!({})), "the context holds"),
        (text(json!("a"), json!({ "suffix": "b" })), "not supported"),
        (text(json!("a"), json!({ "best_of": 3 })), "best_of"),
        (text(json!("a"), json!({ "logprobs": 6 })), "from 0 to 5"),
        (text(json!("a"), json!({ "messages": [] })), "`messages` is not supported"),
    ];
    for (body, words) in cases {
        refused(&server, TEXT, &body, 400, words);
    }
    refused(&server, "/v1/embeddings", &json!({ "model": NAME, "input": "a" }), 400, "no embeddings");
    // None of it has harmed the server.
    posted(&server, CHAT, &chat("still there?", json!({})));
}

#[test]
fn bodies_that_are_no_json_are_refused() {
    let server = serve(1, options().body_limit(2000));
    let typed = "Content-Type: application/json; charset=utf-8\r\n";
    let cases: [(&[u8], &str, u16); 8] = [
        (b"{", typed, 400),
        (b"", typed, 400),
        (b"\xff\xfe", typed, 400),
        (b"{\"messages\": [\"\xc3\"]}", typed, 400),
        (&[b'['; 1500], typed, 400),
        (&[b' '; 2001], typed, 413),
        (b"{}", "", 415),
        (b"{}", "Content-Type: text/plain\r\n", 415),
    ];
    for (body, headers, status) in cases {
        let reply = send(&server, "POST", CHAT, headers, body).receive();
        assert_eq!(reply.status, status, "{}", reply.text());
        reply.error();
    }
    for (method, path, status) in [
        ("GET", CHAT, 405),
        ("POST", "/health", 405),
        ("GET", "/nothing", 404),
        ("GET", "/v1/models/none", 404),
    ] {
        let reply = send(&server, method, path, "", b"").receive();
        assert_eq!(reply.status, status, "{method} {path}");
        reply.error();
    }
}

#[test]
fn everything_but_health_and_the_page_needs_the_key() {
    let keys = ["first key".to_string(), "second".to_string()];
    let server = serve(1, options().api_keys(keys).cors(["https://a.example".to_string()]));
    let try_with = |path: &str, headers: &str| send(&server, "GET", path, headers, b"").receive();
    for path in ["/v1/models", "/metrics", "/v1/models/tiny", "/nothing"] {
        for headers in ["", "Authorization: Bearer wrong\r\n", "Authorization: second\r\n"] {
            let reply = try_with(path, headers);
            assert_eq!(reply.status, 401, "{path}");
            assert_eq!(reply.error()["code"], json!("invalid_api_key"));
        }
    }
    assert_eq!(try_with("/v1/models", "Authorization: Bearer first key\r\n").status, 200);
    assert_eq!(try_with("/metrics", "Authorization: Bearer second\r\n").status, 200);
    assert_eq!((try_with("/health", "").status, try_with("/", "").status), (200, 200));
    // Browsers ask without the key whether they may send it.
    let asks = "Origin: https://a.example\r\nAccess-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization\r\n";
    let reply = send(&server, "OPTIONS", CHAT, asks, b"").receive();
    assert_eq!((reply.status, reply.header("access-control-allow-origin")), (204, Some("https://a.example")));
    assert_eq!(reply.header("access-control-allow-headers"), Some("authorization"));
    let other = send(&server, "OPTIONS", CHAT, &asks.replace("a.example", "b.example"), b"").receive();
    assert_eq!(other.header("access-control-allow-origin"), None);
}
