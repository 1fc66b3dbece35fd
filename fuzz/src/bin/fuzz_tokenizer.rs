//! Makes tokenizers of broken metadata and broken `tokenizer.json` files; nothing may panic, and what one accepts must encode and
//! decode any text.
//!
//! ```text
//! cargo run -p olivine-fuzz --bin fuzz_tokenizer -- --cases 1000000 [--seed N] [--only CASE]
//! ```

#[path = "../../../crates/ir/tests/generate/rng.rs"]
#[allow(dead_code, reason = "the tests of olivine-ir use all of it")]
mod rng;

use std::process::ExitCode;
use std::sync::Arc;

use olivine_gguf::{Gguf, Value, Writer};
use olivine_tokenizer::{ChatOptions, ChatTemplate, JsonGrammar, JsonSchema, Message, Tokenizer};
use rng::Rng;

fn main() -> ExitCode {
    olivine_fuzz::run_cases(|seed| case_of(&mut Rng::new(seed)))
}

fn case_of(rng: &mut Rng) -> Result<&'static str, String> {
    let made = match rng.below(10) {
        0 => Tokenizer::from_json(&json(rng)),
        1 => {
            template(rng);
            return Ok("templates tried");
        }
        2 => return schema(rng),
        3 => return steps(rng),
        _ => {
            let file = Gguf::from_bytes(metadata(rng)?).map_err(|e| e.to_string())?;
            Tokenizer::from_gguf(file.metadata())
        }
    };
    let tokenizer = match made {
        Ok(tokenizer) => tokenizer,
        Err(e) => {
            let _ = e.to_string();
            return Ok("tokenizers refused");
        }
    };
    for _ in 0..3 {
        let text = text(rng, 40);
        let ids = tokenizer.encode(&text, rng.below(2) == 0, rng.below(2) == 0).map_err(|e| e.to_string())?;
        if let Some(id) = ids.iter().find(|&&id| id as usize >= tokenizer.vocab_size()) {
            return Err(format!("token {id} of {}", tokenizer.vocab_size()));
        }
        tokenizer.decode(&ids).map_err(|e| format!("its own tokens are not decoded: {e}"))?;
        let random: Vec<u32> = (0..8).map(|_| rng.below(tokenizer.vocab_size()) as u32).collect();
        tokenizer
            .decode_with_special(&random)
            .map_err(|e| format!("tokens in range are not decoded: {e}"))?;
    }
    match tokenizer.decode(&[tokenizer.vocab_size() as u32]) {
        Ok(_) => Err("a token out of range is decoded".into()),
        Err(_) => Ok("tokenizers used"),
    }
}

const PARTS: [&str; 28] = [
    "a",
    "b",
    "ab",
    "▁",
    "▁a",
    " ",
    "\n",
    "Ġ",
    "Ġa",
    "Ċ",
    "##b",
    "é",
    "字",
    "<s>",
    "</s>",
    "<unk>",
    "<0x0A>",
    "<0xE5>",
    "'s",
    "1",
    "23",
    "!",
    "😀",
    "<|im_end|>",
    "[UNK]",
    "\\x00",
    "ſ",
    "\u{301}",
];

fn text(rng: &mut Rng, most: usize) -> String {
    (0..rng.below(most)).map(|_| PARTS[rng.below(PARTS.len())]).collect()
}

/// Mostly valid metadata: one time in two something is missing, of another type, length or value.
fn metadata(rng: &mut Rng) -> Result<Vec<u8>, String> {
    let models = ["llama", "gpt2", "bert", "t5", "rwkv", "gemma4", "nothing"];
    let pres = [
        "llama-bpe",
        "gpt-2",
        "qwen2",
        "deepseek-llm",
        "deepseek-v3",
        "tekken",
        "gpt-4o",
        "superbpe",
        "kimi-k2",
        "afmoe",
        "tiny_aya",
        "default",
        "?",
    ];
    let mut tokens: Vec<String> = PARTS.iter().map(|part| part.to_string()).collect();
    if rng.below(4) == 0 {
        tokens.push(text(rng, 4));
    }
    let n = tokens.len();
    let mut off = |n: usize| if rng.below(20) == 0 { rng.below(40) } else { n };
    let (scores, kinds) = (off(n), off(n));
    let scores: Vec<f32> =
        (0..scores).map(|i| if rng.below(200) == 0 { f32::NAN } else { -(i as f32) }).collect();
    let kinds: Vec<i32> = (0..kinds)
        .map(|i| {
            let byte = tokens.get(i).is_some_and(|token| token.starts_with("<0x"));
            if byte {
                6
            } else if rng.below(8) == 0 {
                rng.below(6) as i32
            } else {
                1
            }
        })
        .collect();
    let mut merges: Vec<String> = ["a b", "Ġ a", "▁ a"].map(String::from).to_vec();
    if rng.below(10) == 0 {
        merges.push(text(rng, 4));
    }
    let mut writer = Writer::new();
    let mut add = |rng: &mut Rng, key: &str, value: Value| {
        let value = match rng.below(60) {
            0 => return Ok(()),
            1 => Value::from(rng.below(1 << 30) as u32),
            2 => Value::from("x"),
            3 => Value::from(Vec::<String>::new()),
            _ => value,
        };
        writer.metadata(format!("tokenizer.ggml.{key}"), value).map_err(|e| e.to_string())
    };
    let (model, pre) = (models[rng.below(models.len())], pres[rng.below(pres.len())]);
    add(rng, "model", Value::from(model))?;
    add(rng, "pre", Value::from(pre))?;
    add(rng, "tokens", Value::from(tokens))?;
    add(rng, "scores", Value::from(scores))?;
    add(rng, "token_type", Value::from(kinds))?;
    add(rng, "merges", Value::from(merges))?;
    for name in ["bos", "eos", "eot", "unknown", "padding"] {
        if rng.below(3) == 0 {
            let beyond = usize::from(rng.below(10) == 0);
            let id = rng.below(n + beyond) as u32;
            add(rng, &format!("{name}_token_id"), Value::from(id))?;
        }
    }
    for name in ["add_bos_token", "add_space_prefix", "remove_extra_whitespaces"] {
        if rng.below(3) == 0 {
            let flag = rng.below(2) == 0;
            add(rng, name, Value::from(flag))?;
        }
    }
    if rng.below(4) == 0 {
        let mut blob: Vec<u8> = (0..rng.below(80)).map(|_| rng.below(256) as u8).collect();
        if blob.len() >= 4 {
            blob[..4].copy_from_slice(&[(rng.below(12) * 4) as u8, 0, 0, 0]);
        }
        add(rng, "precompiled_charsmap", Value::from(blob))?;
    }
    writer.to_bytes().map_err(|e| e.to_string())
}

const JSON: &str = r#"{"added_tokens": [{"id": 6, "content": "<s>", "special": true, "lstrip": true, "normalized": false}],
"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": "\\p{L}+|\\s+(?!\\S)|[^a]{1,3}"}, "behavior": "Isolated", "invert": false},
{"type": "Digits", "individual_digits": true}, {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first"}]},
"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}], "special_tokens": {"<s>": {"ids": [6]}}},
"decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
"model": {"type": "BPE", "unk_token": "u", "byte_fallback": true, "vocab": {"a": 0, "b": 1, "ab": 2, "▁": 3, "u": 4, "<0x41>": 5}, "merges": ["a b"]}}"#;

/// A small file with characters changed, moved or dropped.
fn json(rng: &mut Rng) -> String {
    let mut chars: Vec<char> = JSON.chars().collect();
    for _ in 0..rng.below(4) {
        let at = rng.below(chars.len());
        let other = chars[rng.below(chars.len())];
        match rng.below(3) {
            0 => chars[at] = other,
            1 => chars.insert(at, other),
            _ => {
                chars.remove(at);
            }
        }
    }
    chars.into_iter().collect()
}

/// A tokenizer with random expressions and steps, which may make text longer, on longer texts.
fn steps(rng: &mut Rng) -> Result<&'static str, String> {
    let atoms =
        ["a", "()", "(?:ab|a)", "[a-z&&[^b]]", "\\\\p{L}", "(?=a)", "(", ")", "[", "|", "\\\\s", "(?i:s)"];
    let counts = ["", "", "*", "+", "?", "{2}", "{1000}", "{3,}", "{0,7}", "??", "++"];
    let mut expression = String::new();
    for _ in 0..rng.below(6) + 1 {
        expression += atoms[rng.below(atoms.len())];
        for _ in 0..rng.below(4) {
            expression += counts[rng.below(counts.len())];
        }
    }
    let pattern = match rng.below(2) {
        0 => format!(r#"{{"Regex": "{expression}"}}"#),
        _ => r#"{"String": "a"}"#.to_string(),
    };
    let content = "a".repeat(1 << rng.below(12));
    let replace = format!(r#"{{"type": "Replace", "pattern": {pattern}, "content": "{content}"}}"#);
    let split = format!(r#"{{"type": "Split", "pattern": {pattern}, "behavior": "Isolated"}}"#);
    let level = r#"{"type": "ByteLevel", "add_prefix_space": true}"#;
    let list = |step: &str, count: usize| vec![step; count].join(",");
    let json = format!(
        r#"{{"normalizer": {{"type": "Sequence", "normalizers": [{}]}}, "pre_tokenizer": {{"type": "Sequence", "pretokenizers": [{}, {}]}},
        "decoder": {{"type": "Sequence", "decoders": [{}]}},
        "model": {{"type": "BPE", "unk_token": "u", "vocab": {{"a": 0, "b": 1, "ab": 2, "u": 3}}, "merges": ["a b"]}}}}"#,
        list(&replace, 1 + rng.below(40)),
        split,
        list(level, 1 + rng.below(40)),
        list(&replace.replace("Regex", "String"), 1 + rng.below(3)),
    );
    let Ok(tokenizer) = Tokenizer::from_json(&json) else { return Ok("steps refused") };
    let text = text(rng, 400);
    match tokenizer.encode(&text, false, false) {
        Ok(ids) if ids.len() > 64 * text.len() + (1 << 17) => {
            Err(format!("{} tokens of {} bytes", ids.len(), text.len()))
        }
        Ok(_) => Ok("steps used"),
        Err(_) => Ok("texts refused"),
    }
}

/// A random schema, whose masks are followed for a while.
fn schema(rng: &mut Rng) -> Result<&'static str, String> {
    let wrong = |e: olivine_tokenizer::Error| e.to_string();
    let words = [
        "{", "}", "[", "]", "\\\"", ":", ",", "a", "ab", "1", "12", "-", " ", "tr", "ue", "null", "[[",
        "\\\"a", "]}",
    ];
    let entries: Vec<String> =
        words.iter().enumerate().map(|(id, word)| format!("\"{word}\": {id}")).collect();
    let json = format!(
        r#"{{"model": {{"type": "WordLevel", "vocab": {{{}}}}}, "decoder": {{"type": "Fuse"}}}}"#,
        entries.join(",")
    );
    let grammar = JsonGrammar::new(&Tokenizer::from_json(&json).map_err(wrong)?).map_err(wrong)?;
    let definitions: Vec<String> = (0..4).map(|i| format!("\"d{i}\": {}", value_schema(rng, 3))).collect();
    let text = format!(
        r##"{{"anyOf": [{}, {{"$ref": "#/$defs/d0"}}], "$defs": {{{}}}}}"##,
        value_schema(rng, 3),
        definitions.join(",")
    );
    let Ok(schema) = JsonSchema::parse(&text) else { return Ok("schemas refused") };
    let mut state = grammar.start_schema(Arc::new(schema));
    for _ in 0..12 {
        let mask = grammar.schema_mask(&state);
        let allowed: Vec<u32> = (0..words.len() as u32).filter(|id| mask[0] >> id & 1 == 1).collect();
        if allowed.is_empty() {
            break;
        }
        let id = allowed[rng.below(allowed.len())];
        grammar.schema_accept(&mut state, id).map_err(|e| format!("an allowed token is refused: {e}"))?;
    }
    Ok("schemas followed")
}

fn value_schema(rng: &mut Rng, nesting: usize) -> String {
    match rng.below(if nesting > 0 { 9 } else { 6 }) {
        0 => r#"{"type": "integer"}"#.into(),
        1 => format!(r#"{{"type": "string", "maxLength": {}}}"#, rng.below(4)),
        2 => format!(r#"{{"const": {}}}"#, ["1", "12", "\"a\"", "true", "[1]"][rng.below(5)]),
        3 => format!(r##"{{"$ref": "#/$defs/d{}"}}"##, rng.below(5)),
        4 => "true".into(),
        5 => r#"{"enum": ["a", "ab", 1, null]}"#.into(),
        6 => format!(
            r#"{{"type": "array", "items": {}, "minItems": {}}}"#,
            value_schema(rng, nesting - 1),
            rng.below(3)
        ),
        7 => format!(
            r#"{{"properties": {{"a": {}, "ab": true}}, "required": ["a"]}}"#,
            value_schema(rng, nesting - 1)
        ),
        _ => {
            let parts: Vec<String> = (0..rng.below(40) + 1).map(|_| value_schema(rng, nesting - 1)).collect();
            format!(r#"{{"anyOf": [{}]}}"#, parts.join(","))
        }
    }
}

fn template(rng: &mut Rng) {
    let parts = [
        "{% set at = namespace(x='ab', l=[1]) %}",
        "{% for i in range(50) %}",
        "{% set at.x = at.x ~ at.x %}",
        "{% set at.x = at.x + at.x[1:] + '' %}",
        "{% set at.x = at.x * 9 %}",
        "{% set at.x = at.x | indent(2 ** 20) | upper %}",
        "{% set at.x = '%99999d%s' | format(1, at.x) %}",
        "{% set at.x = [at.x, at.x] | join(at.x) %}",
        "{% set at.x = at.x | replace('a', at.x) %}",
        "{% set at.x = at.x.replace('b', at.x).split('a') | join %}",
        "{% set at.l = at.l + [at.l, at.x] %}",
        "{% set y %}{{ at.x }}{{ at.x }}{% endset %}{% set at.x = y %}",
        "{{ at.l ~ at.x }}",
        "{{ at.l | list | length }}",
        "{% macro m(x) %}{{ x }}{{ x }}{% endmacro %}{% set at.x = m(at.x) %}",
        "{% for m in messages %}",
        "{% endfor %}",
        "{{ m.content }}",
        "{{ m['role'] | upper }}",
        "{% if m %}",
        "{% else %}",
        "{% endif %}",
        "{{ messages | tojson }}",
        "{% set x = 1 %}",
        "{{ x * 3 }}",
        "{{- raise_exception('no') }}",
        "{{ strftime_now('%Y %j %q') }}",
        "{{ messages[0].content.split('i')[-1] }}",
        "text\n",
        "{{",
        "%}",
        "{% generation %}",
        "{% endgeneration %}",
        "{{ [1.5, none, {'a': true}] }}",
        "{% break %}",
    ];
    let source: String = (0..rng.below(9)).map(|_| parts[rng.below(parts.len())]).collect();
    if let Ok(template) = ChatTemplate::new(&source, "<s>", "</s>") {
        let _ = template.render(&[Message::new("user", "Hi")], &ChatOptions::default());
    }
}
