//! Small vocabularies, and files that lie.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use olivine_gguf::{Gguf, Metadata, Value, Writer};
use olivine_tokenizer::{ChatTemplate, Error, TokenKind, Tokenizer};

fn metadata(entries: &[(&str, Value)]) -> Metadata {
    let mut writer = Writer::new();
    for (key, value) in entries {
        writer.metadata(format!("tokenizer.{key}"), value.clone()).unwrap();
    }
    Gguf::from_bytes(writer.to_bytes().unwrap()).unwrap().metadata().clone()
}

fn strings(texts: &[&str]) -> Value {
    Value::from(texts.iter().map(|text| text.to_string()).collect::<Vec<_>>())
}

/// SPM with bytes of two characters.
fn llama() -> Vec<(&'static str, Value)> {
    let tokens =
        ["<unk>", "<s>", "</s>", "<0xC3>", "<0xA9>", "▁", "a", "b", "ab", "▁a", "▁ab", "x", "<0xFF>"];
    let scores: Vec<f32> = (0..tokens.len()).map(|i| -(i as f32)).collect();
    let kinds = vec![2i32, 3, 3, 6, 6, 1, 1, 1, 1, 1, 1, 4, 6];
    vec![
        ("ggml.model", Value::from("llama")),
        ("ggml.tokens", strings(&tokens)),
        ("ggml.scores", Value::from(scores)),
        ("ggml.token_type", Value::from(kinds)),
    ]
}

fn gpt2() -> Vec<(&'static str, Value)> {
    let tokens = ["a", "b", "Ġ", "ab", "Ġab", "Ã", "©", "Ċ", "<|im_start|>", "<|im_end|>"];
    let kinds = vec![1i32, 1, 1, 1, 1, 1, 1, 1, 3, 3];
    vec![
        ("ggml.model", Value::from("gpt2")),
        ("ggml.pre", Value::from("gpt-2")),
        ("ggml.tokens", strings(&tokens)),
        ("ggml.token_type", Value::from(kinds)),
        ("ggml.merges", strings(&["a b", "Ġ ab"])),
        ("ggml.eos_token_id", Value::from(9u32)),
    ]
}

fn with(mut entries: Vec<(&'static str, Value)>, key: &'static str, value: Option<Value>) -> Metadata {
    entries.retain(|(name, _)| *name != key);
    entries.extend(value.map(|value| (key, value)));
    metadata(&entries)
}

#[test]
fn spm_merges_by_score_and_falls_back_to_bytes() {
    let tokenizer = Tokenizer::from_gguf(&metadata(&llama())).unwrap();
    // `ab` has a better score than `▁a`, and `▁ab` follows from it.
    assert_eq!(tokenizer.encode("ab", true, false).unwrap(), [1, 10]);
    assert_eq!(tokenizer.encode("aé", false, false).unwrap(), [9, 3, 4]);
    // User-defined tokens are always found, control tokens only in trusted text; a space follows each.
    assert_eq!(tokenizer.encode("xb", false, false).unwrap(), [11, 5, 7]);
    assert_eq!(tokenizer.encode("</s>", false, true).unwrap(), [2]);
    assert_ne!(tokenizer.encode("</s>", false, false).unwrap(), [2]);
    assert_eq!(tokenizer.encode("", true, true).unwrap(), [1]);
    assert_eq!(tokenizer.decode(&[1, 9, 3, 4, 9, 2]).unwrap(), "aé a");
    assert!(tokenizer.is_end(2) && !tokenizer.is_end(6));
}

#[test]
fn byte_level_bpe_splits_merges_and_decodes() {
    let tokenizer = Tokenizer::from_gguf(&metadata(&gpt2())).unwrap();
    assert_eq!(tokenizer.encode("ab ab\né", false, false).unwrap(), [3, 4, 7, 5, 6]);
    assert_eq!(tokenizer.encode("<|im_start|>a<|im_end|>", false, true).unwrap(), [8, 0, 9]);
    assert_eq!(tokenizer.token_bytes(4).unwrap(), b" ab");
    assert_eq!(tokenizer.decode(&[8, 4, 9]).unwrap(), " ab");
    assert_eq!(tokenizer.decode_with_special(&[8, 4, 9]).unwrap(), "<|im_start|> ab<|im_end|>");
    assert_eq!(tokenizer.kind(8).unwrap(), TokenKind::Control);
    assert_eq!(tokenizer.special().end, [9]);
}

#[test]
fn streams_never_split_characters() {
    let tokenizer = Tokenizer::from_gguf(&metadata(&gpt2())).unwrap();
    let mut stream = tokenizer.stream();
    assert_eq!(stream.push(5).unwrap(), "");
    assert_eq!(stream.push(6).unwrap(), "é");
    assert_eq!(stream.push(6).unwrap(), "\u{FFFD}");
    assert_eq!(stream.push(5).unwrap(), "");
    assert_eq!(stream.push(0).unwrap(), "\u{FFFD}a");
    assert_eq!(stream.push(5).unwrap(), "");
    assert_eq!(stream.finish(), "\u{FFFD}");
    assert_eq!(tokenizer.stream().push(10), Err(Error::UnknownId { id: 10, size: 10 }));
    assert!(tokenizer.decode(&[u32::MAX]).is_err());
}

#[test]
fn metadata_that_lie_are_errors_that_name_the_key() {
    let many = |n: usize| Value::from(vec![0f32; n]);
    let cases: Vec<(&str, Metadata)> = vec![
        ("ggml.model", with(llama(), "ggml.model", None)),
        ("ggml.model", with(llama(), "ggml.model", Some(Value::from("no_vocab")))),
        ("ggml.tokens", with(llama(), "ggml.tokens", None)),
        ("ggml.tokens", with(llama(), "ggml.tokens", Some(strings(&["a"; 13])))),
        ("ggml.tokens", with(llama(), "ggml.tokens", Some(Value::from(1u32)))),
        ("ggml.scores", with(llama(), "ggml.scores", None)),
        ("ggml.scores", with(llama(), "ggml.scores", Some(many(3)))),
        ("ggml.scores", with(llama(), "ggml.scores", Some(Value::from(vec![f32::NAN; 13])))),
        ("ggml.token_type", with(llama(), "ggml.tokens", Some(strings(&["a", "b"])))),
        ("ggml.token_type", with(llama(), "ggml.token_type", Some(Value::from(vec![9i32; 13])))),
        ("ggml.token_type", with(llama(), "ggml.token_type", Some(Value::from(vec![6i32; 13])))),
        ("ggml.token_type", with(llama(), "ggml.token_type", Some(Value::from(vec![1i32; 14])))),
        ("ggml.bos_token_id", with(llama(), "ggml.bos_token_id", Some(Value::from(13u32)))),
        ("ggml.add_bos_token", with(llama(), "ggml.add_bos_token", Some(Value::from("yes")))),
        ("ggml.merges", with(gpt2(), "ggml.merges", None)),
        ("ggml.merges", with(gpt2(), "ggml.merges", Some(strings(&["ab"])))),
        ("ggml.merges", with(gpt2(), "ggml.merges", Some(strings(&["a a"])))),
        ("ggml.pre", with(gpt2(), "ggml.pre", Some(Value::from("unheard of")))),
    ];
    for (key, metadata) in cases {
        let error = Tokenizer::from_gguf(&metadata).unwrap_err().to_string();
        assert!(error.contains(&format!("`tokenizer.{key}`")), "{key}: {error}");
    }
}

#[test]
fn a_megabyte_of_one_letter_is_encoded_at_once() {
    let letters = "a".repeat(1 << 20);
    for entries in [llama(), gpt2()] {
        let start = std::time::Instant::now();
        let ids = Tokenizer::from_gguf(&metadata(&entries)).unwrap().encode(&letters, false, false).unwrap();
        assert!(ids.len() > 1 << 19);
        assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
    }
}

#[test]
fn models_without_a_template_get_chatml_if_they_know_it() {
    let entries = metadata(&gpt2());
    let template = ChatTemplate::from_gguf(&entries, &Tokenizer::from_gguf(&entries).unwrap()).unwrap();
    let prompt =
        template.render(&[olivine_tokenizer::Message::new("user", "Hi")], &Default::default()).unwrap();
    assert_eq!(prompt, "<|im_start|>user\nHi<|im_end|>\n");
    let entries = metadata(&llama());
    assert!(ChatTemplate::from_gguf(&entries, &Tokenizer::from_gguf(&entries).unwrap()).is_err());
}

#[test]
fn fields_that_are_not_supported_are_named() {
    let file = |pre: &str| {
        format!(
            r#"{{"pre_tokenizer": {pre}, "model": {{"type": "BPE", "vocab": {{"a": 0, "b": 1, "ab": 2}}, "merges": [["a", "b"]]}}}}"#
        )
    };
    let tokenizer = Tokenizer::from_json(&file(r#"{"type": "Whitespace"}"#)).unwrap();
    assert_eq!(tokenizer.encode("ab a!", false, false).unwrap(), [2, 0]);
    let error = Tokenizer::from_json(&file(r#"{"type": "Unheard"}"#)).unwrap_err().to_string();
    assert!(error.contains("`pre_tokenizer.type`") && error.contains("Unheard"), "{error}");
    let error =
        Tokenizer::from_json(&file(r#"{"type": "Split", "pattern": {"Regex": "(?<=a)b"}}"#)).unwrap_err();
    assert!(matches!(error, Error::Pattern { .. }), "{error}");
    let lying = r#"{"model": {"type": "BPE", "vocab": {"a": 0, "b": 4000000000}, "merges": []}}"#;
    assert!(Tokenizer::from_json(lying).unwrap_err().to_string().contains("`model.vocab`"));
}
