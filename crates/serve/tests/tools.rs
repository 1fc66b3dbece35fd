//! Calls of tools: those that are forced follow the tools' schemas, in every syntax, streamed or not.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says what it expects")]

mod common;

use common::client::{begin, post, posted};
use common::{NAME, loaded, options};
use olivine_serve::Server;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";

/// A template that writes tools and earlier calls, with the marker of a syntax.
fn serve(marker: &str) -> Server {
    let template = "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}{% for m in messages %}{{ m.role }}: {{ m.content }}\
        {% for c in m.tool_calls or [] %}MARKER{{ c.function.arguments | tojson }}{% endfor %}{{ '\\n' }}{% endfor %}";
    let model = loaded(2).with_chat_template(&template.replace("MARKER", marker)).unwrap();
    Server::start(model, options()).unwrap()
}

fn tools() -> Value {
    let weather = json!({ "type": "object", "required": ["city", "unit"], "properties": {
        "city": { "type": "string", "maxLength": 5 }, "unit": { "$ref": "#/$defs/unit" } },
        "$defs": { "unit": { "enum": ["C", "F"] } } });
    let function = |name: &str, parameters: Value| json!({ "type": "function", "function": { "name": name, "parameters": parameters } });
    json!([function("weather", weather), { "type": "function", "function": { "name": "clock" } }])
}

fn chat(more: Value) -> Value {
    let mut json = json!({ "model": NAME, "messages": [{ "role": "user", "content": "hi" }], "max_tokens": 300, "seed": 3, "tools": tools() });
    json.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json
}

fn check_weather(arguments: &str) {
    let arguments: Value = serde_json::from_str(arguments).unwrap_or_else(|_| panic!("{arguments}"));
    assert!(arguments["city"].as_str().unwrap().chars().count() <= 5, "{arguments}");
    assert!(["C", "F"].contains(&arguments["unit"].as_str().unwrap()), "{arguments}");
}

#[test]
fn a_tool_that_is_forced_is_called_with_arguments_of_its_schema() {
    let forced = json!({ "tool_choice": { "type": "function", "function": { "name": "weather" } } });
    for marker in ["<tool_call>", "[TOOL_CALLS]", "<|python_tag|>"] {
        let server = serve(marker);
        let answer = posted(&server, CHAT, &chat(forced.clone()));
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], json!("tool_calls"), "{marker}: {answer}");
        assert!(choice["message"]["content"].is_null(), "{answer}");
        let calls = choice["message"]["tool_calls"].as_array().unwrap();
        assert_eq!((calls.len(), &calls[0]["function"]["name"]), (1, &json!("weather")));
        let arguments = calls[0]["function"]["arguments"].as_str().unwrap();
        check_weather(arguments);
        // A stream has the same call, in parts.
        let mut request = chat(forced.clone());
        request["stream"] = json!(true);
        let (mut name, mut joined, mut parts, mut reason) = (String::new(), String::new(), 0, Value::Null);
        for event in begin(&server, CHAT, &request).events() {
            let choice = &event["choices"][0];
            if !choice["finish_reason"].is_null() {
                reason = choice["finish_reason"].clone();
            }
            for call in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
                assert_eq!(call["index"], json!(0));
                if let Some(id) = call["id"].as_str() {
                    assert!(!id.is_empty() && call["type"] == json!("function"));
                }
                name += call["function"]["name"].as_str().unwrap_or_default();
                joined += call["function"]["arguments"].as_str().unwrap_or_default();
                parts += 1;
            }
        }
        assert_eq!((name.as_str(), joined.as_str(), reason), ("weather", arguments, json!("tool_calls")));
        assert!(parts > 3, "{parts} parts");
    }
}

#[test]
fn one_of_several_tools_is_called_where_a_call_is_required() {
    let server = serve("<tool_call>");
    for seed in 0..6 {
        let answer = posted(&server, CHAT, &chat(json!({ "tool_choice": "required", "seed": seed })));
        let function = &answer["choices"][0]["message"]["tool_calls"][0]["function"];
        let arguments = function["arguments"].as_str().unwrap();
        match function["name"].as_str().unwrap() {
            "weather" => check_weather(arguments),
            "clock" => assert_eq!(serde_json::from_str::<Value>(arguments).unwrap(), json!({})),
            other => panic!("{other}"),
        }
    }
    // A call that has no room breaks off.
    let answer = posted(&server, CHAT, &chat(json!({ "tool_choice": "required", "max_tokens": 4 })));
    assert_eq!(answer["choices"][0]["finish_reason"], json!("length"));
}

#[test]
fn templates_get_tools_and_earlier_calls() {
    let server = serve("<tool_call>");
    let tokens = |more: Value| posted(&server, CHAT, &chat(more))["usage"]["prompt_tokens"].as_u64().unwrap();
    let none = tokens(json!({ "tool_choice": "none", "max_tokens": 1 }));
    assert_eq!(none, "user: hi\n".len() as u64);
    assert_eq!(tokens(json!({ "max_tokens": 1 })), none + "[weather][clock]".len() as u64);
    let call = json!({ "id": "call_1", "type": "function", "function": { "name": "clock", "arguments": "{\"a\":1}" } });
    let messages = json!([{ "role": "assistant", "content": null, "tool_calls": [call] },
        { "role": "tool", "tool_call_id": "call_1", "content": "5" }]);
    let more = json!({ "messages": messages, "tool_choice": "none", "max_tokens": 1 });
    assert_eq!(tokens(more), "assistant: <tool_call>{\"a\": 1}\ntool: 5\n".len() as u64);
}

#[test]
fn tools_that_cannot_be_used_are_refused() {
    let server = serve("<tool_call>");
    let tool = |function: Value| json!({ "tools": [{ "type": "function", "function": function }], "tool_choice": "required" });
    for (more, words) in [
        (json!({ "tools": "x" }), "`tools` has to be an array"),
        (json!({ "tools": [{ "type": "custom", "custom": {} }] }), "`tools[0].type`"),
        (tool(json!({})), "`tools[0].function.name` is missing"),
        (tool(json!({ "name": "a b" })), "`tools[0].function.name` needs"),
        (tool(json!({ "name": "f", "parameters": [] })), "`tools[0].function.parameters`"),
        (
            tool(json!({ "name": "f", "parameters": { "type": "object", "patternProperties": {} } })),
            "patternProperties",
        ),
        (json!({ "tools": [tools()[1], tools()[1]] }), "two tools named `clock`"),
        (json!({ "tool_choice": "sometimes" }), "`tool_choice`"),
        (json!({ "tool_choice": { "type": "function", "function": { "name": "g" } } }), "not one of `tools`"),
        (json!({ "response_format": { "type": "json_object" } }), "chats with tools"),
    ] {
        let reply = post(&server, CHAT, &chat(more.clone()));
        let message = reply.error()["message"].as_str().unwrap_or_default().to_string();
        assert!(reply.status == 400 && message.contains(words), "{more}: {} {message:?}", reply.status);
    }
}
