//! Constraints on what a request's tokens may be.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says what it expects")]

mod common;
mod run;

use std::sync::Arc;

use common::{TempModel, VOCABULARY};
use olivine_lm::{
    Constraint, Engine, EngineOptions, Error, Finish, JsonConstraints, Request, Sampling, TokenMask,
};
use olivine_tokenizer::{Json, Tokenizer};
use run::{Got, engine, finish, one, request};

/// Allows the tokens that leave a remainder, which is another after each; after `left` tokens none.
#[derive(Clone, Debug)]
struct Remainders {
    divisor: i64,
    taken: i64,
    left: usize,
    refuses: bool,
}

impl TokenMask for Remainders {
    fn allowed(&mut self) -> Arc<[u64]> {
        // More words than the vocabulary needs.
        let mut words = vec![0u64; VOCABULARY / 64 + 3];
        for id in (0..64 * words.len()).filter(|id| *id as i64 % self.divisor == self.taken % self.divisor) {
            if self.left > 0 || id >= VOCABULARY {
                words[id / 64] |= 1 << (id % 64);
            }
        }
        words.into()
    }

    fn accept(&mut self, token: i64) -> Result<(), Error> {
        assert_eq!(token % self.divisor, self.taken % self.divisor);
        self.taken += 1;
        self.left -= 1;
        match self.refuses {
            true => Err(Error::EmptyPrompt),
            false => Ok(()),
        }
    }

    fn duplicate(&self) -> Box<dyn TokenMask> {
        Box::new(self.clone())
    }
}

fn remainders(left: usize) -> Constraint {
    Constraint::new(Remainders { divisor: 7, taken: 3, left, refuses: false })
}

#[test]
fn tokens_follow_the_constraint_of_their_request_and_others_do_not_notice() {
    let file = TempModel::new("llama", "constraint");
    let options = EngineOptions::default().slots(3).chunk(5).logprobs(true);
    let mut alone = engine(&file, options);
    let free = one(&mut alone, request(5, 12, 20));
    let bound = one(&mut alone, request(6, 12, 20).constraint(remainders(99)));
    let expect = |got: &Got| {
        let tokens: Vec<i64> = got.tokens.iter().map(|(token, _)| token % 7).collect();
        tokens == (0..20).map(|i| (3 + i) % 7).collect::<Vec<i64>>()
    };
    assert!(expect(&bound) && !expect(&free));
    let mut shared = engine(&file, options);
    let ids = [
        shared.add(request(6, 12, 20).constraint(remainders(99))).unwrap(),
        shared.add(request(5, 12, 20)).unwrap(),
        shared.add(request(6, 12, 20)).unwrap(),
        shared.add(request(6, 12, 20).constraint(remainders(99))).unwrap(),
    ];
    let got = finish(&mut shared, |_, _| {});
    assert_eq!(got[&ids[0]], bound);
    assert_eq!(got[&ids[1]], free);
    assert!(!expect(&got[&ids[2]]));
    assert_eq!(got[&ids[3]], bound);
}

#[test]
fn a_constraint_that_allows_nothing_more_ends_its_request() {
    let file = TempModel::new("qwen2", "nothing");
    let mut engine = engine(&file, EngineOptions::default());
    let five = one(&mut engine, request(1, 4, 20).constraint(remainders(5)));
    assert_eq!((five.tokens.len(), five.finish), (5, Some(Finish::Constraint)));
    let none = one(&mut engine, request(1, 4, 20).constraint(remainders(0)));
    assert_eq!((none.tokens.len(), none.finish), (0, Some(Finish::Constraint)));
    let refusing = Constraint::new(Remainders { divisor: 7, taken: 0, left: 9, refuses: true });
    let refused = one(&mut engine, request(1, 4, 20).constraint(refusing));
    assert_eq!((refused.tokens.len(), refused.finish), (0, Some(Finish::Constraint)));
    assert_eq!(one(&mut engine, request(1, 4, 6)).tokens.len(), 6);
}

/// A tokenizer of single characters and a few pieces of JSON, as many as the model has tokens.
fn tokenizer() -> Tokenizer {
    let pieces = ["\":", "\",", "{\"", "tr", "ue", "}]", "],", "null", "</s>"];
    let mut words: Vec<String> = pieces.iter().map(ToString::to_string).collect();
    words.extend((' '..='~').map(String::from));
    let mut at = 0;
    while words.len() < VOCABULARY {
        words.push(format!("w{at}"));
        at += 1;
    }
    let quote = |word: &str| format!("\"{}\"", word.replace('\\', "\\\\").replace('"', "\\\""));
    let entries: Vec<String> =
        words.iter().enumerate().map(|(id, word)| format!("{}: {id}", quote(word))).collect();
    let added = r#"[{"id": 8, "content": "</s>", "special": true}]"#;
    let text = format!(
        r#"{{"added_tokens": {added}, "model": {{"type": "WordLevel", "vocab": {{{}}}}}, "decoder": {{"type": "Fuse"}}}}"#,
        entries.join(", ")
    );
    Tokenizer::from_json(&text).unwrap()
}

#[test]
fn random_weights_write_valid_json() {
    let file = TempModel::new("gemma2", "json");
    let tokenizer = tokenizer();
    let json = JsonConstraints::new(&tokenizer).unwrap();
    let mut engine = engine(&file, EngineOptions::default().slots(4));
    // Values must end within the tokens there are: brackets and ends are made likely, openings not.
    let likely = |piece: &str| i64::from(tokenizer.encode(piece, false, false).unwrap()[0]);
    let mut bias: Vec<(i64, f32)> = vec![(8, 30.0)];
    bias.extend(["]", "}", "\""].map(|piece| (likely(piece), 3.0)));
    bias.extend(["[", "{", "\\", ","].map(|piece| (likely(piece), -2.0)));
    for seed in 0..12u64 {
        let sampling = Sampling { temperature: 1.0, seed, bias: bias.clone(), ..Sampling::default() };
        let prompt = vec![3 + seed as i64, 5, 7];
        let request = Request::new(prompt, 300).stop([8]).sampling(sampling).constraint(json.value());
        engine.add(request).unwrap();
    }
    let whole = texts(&mut engine, &tokenizer);
    assert!(whole.len() >= 6 && whole.iter().all(|text| Json::parse(text).is_ok()), "{whole:?}");
    // Values that follow a schema.
    let schema = r#"{"properties": {"kind": {"enum": ["b", "w"]}, "on": {"type": "boolean"}, "list": {"type": "array", "items": {"type": "null"},
        "maxItems": 2}}, "required": ["kind", "list"]}"#;
    for seed in 0..6u64 {
        let sampling = Sampling { temperature: 1.0, seed, bias: bias.clone(), ..Sampling::default() };
        let constraint = json.schema(schema).unwrap();
        let request =
            Request::new(vec![9 + seed as i64], 300).stop([8]).sampling(sampling).constraint(constraint);
        engine.add(request).unwrap();
    }
    let whole = texts(&mut engine, &tokenizer);
    assert!(whole.len() >= 3, "{whole:?}");
    for text in whole {
        let value = Json::parse(&text).unwrap();
        assert!(matches!(value.get("kind").and_then(Json::as_str), Some("b" | "w")), "{text}");
        assert!(value.get("list").and_then(Json::as_array).unwrap().len() <= 2, "{text}");
        assert!(value.get("on").is_none_or(|on| on.as_bool().is_some()), "{text}");
    }
    assert!(json.schema(r#"{"pattern": "x"}"#).is_err());
}

/// The texts of requests that ended by themselves.
fn texts(engine: &mut Engine, tokenizer: &Tokenizer) -> Vec<String> {
    let ended = finish(engine, |_, _| {}).into_values().filter(|got| got.finish == Some(Finish::Stop(8)));
    let ids = |got: &Got| got.tokens.iter().map(|(token, _)| *token as u32).collect::<Vec<u32>>();
    ended.map(|got| tokenizer.decode(&ids(&got)).unwrap()).collect()
}
