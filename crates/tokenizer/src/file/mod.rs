//! Tokenizers from `tokenizer.json`, the format of Hugging Face's `tokenizers`.

mod bert;
mod model;
mod steps;

use crate::added::{Added, Finder};
use crate::special::SpecialTokens;
use crate::tokenizer::TokenBytes;
use crate::vocab::{TokenKind, Vocab};
use crate::{Error, Json, Tokenizer};

/// Ids beyond the largest vocabularies would make a table of gaps.
const MOST_TOKENS: usize = 1 << 24;

impl Tokenizer {
    /// The tokenizer that the text of a `tokenizer.json` describes.
    pub fn from_json(text: &str) -> Result<Tokenizer, Error> {
        Tokenizer::of_file(&Json::parse(text)?)
    }

    fn of_file(json: &Json) -> Result<Tokenizer, Error> {
        let section = |name: &str| json.get(name).filter(|value| **value != Json::Null);
        let Some(model) = section("model") else { return Err(Error::file("model", "it is missing")) };
        let added = added(section("added_tokens"))?;
        let vocab = vocab(model, &added)?;
        let normalizer = section("normalizer").map(|n| steps::normalizer(n, "normalizer")).transpose()?;
        let mut splitters = Vec::new();
        if let Some(pre_tokenizer) = section("pre_tokenizer") {
            steps::splitters(pre_tokenizer, "pre_tokenizer", &mut splitters)?;
        }
        let model = model::model(model, &vocab, &mut splitters)?;
        let (mut before, mut after) = (Vec::new(), Vec::new());
        if let Some(post_processor) = section("post_processor") {
            steps::post_processor(post_processor, "post_processor", &mut before, &mut after)?;
        }
        for &id in before.iter().chain(&after) {
            if id as usize >= vocab.len() {
                return Err(Error::file(
                    "post_processor",
                    format!("token {id} is out of range: there are {} tokens", vocab.len()),
                ));
            }
        }
        let mut decoder = Vec::new();
        let mut trim_end = false;
        match section("decoder") {
            Some(json) => steps::decoder(json, "decoder", &mut decoder, &mut trim_end)?,
            None => decoder.push(crate::decode::DecodeStep::Join),
        }
        let normalise = |token: &Added| match &normalizer {
            Some(normalizer) => normalizer.apply(token.content.clone()),
            None => Ok(token.content.clone()),
        };
        let (normalized, raw): (Vec<Added>, Vec<Added>) =
            added.into_iter().partition(|token| token.normalized);
        let mut tokenizer = Tokenizer {
            raw: Finder::new(raw, |token| Ok(token.content.clone()))?,
            normalized: Finder::new(normalized, normalise)?,
            vocab,
            normalizer,
            splitters,
            model,
            before,
            after,
            decoder,
            raw_added: false,
            trim_end,
            special: SpecialTokens::default(),
            bytes: TokenBytes::default(),
        };
        let kinds = tokenizer.vocab.kinds.clone();
        tokenizer.special.recognise(&mut tokenizer.vocab);
        // The file says what is special.
        tokenizer.vocab.kinds = kinds;
        tokenizer.finished()
    }

    /// Takes the names of BOS, EOS and others from the text of a `tokenizer_config.json`.
    pub fn with_config(mut self, text: &str) -> Result<Tokenizer, Error> {
        let json = Json::parse(text)?;
        let id = |name: &str| {
            let token = json.get(name)?;
            let text = token.as_str().or_else(|| token.get("content")?.as_str())?;
            self.vocab.id(text.as_bytes())
        };
        let found = [
            id("bos_token"),
            id("eos_token"),
            id("unk_token"),
            id("sep_token"),
            id("pad_token"),
            id("mask_token"),
        ];
        let special = &mut self.special;
        let fields = [
            &mut special.bos,
            &mut special.eos,
            &mut special.unk,
            &mut special.sep,
            &mut special.pad,
            &mut special.mask,
        ];
        for (field, id) in fields.into_iter().zip(found) {
            *field = id.or(*field);
        }
        special.add_bos = special.bos.is_some_and(|bos| self.before.contains(&bos));
        special.add_eos = special.eos.is_some_and(|eos| self.after.contains(&eos));
        let kinds = self.vocab.kinds.clone();
        self.special.recognise(&mut self.vocab);
        self.vocab.kinds = kinds;
        Ok(self)
    }
}

fn added(json: Option<&Json>) -> Result<Vec<Added>, Error> {
    let mut tokens = Vec::new();
    for (i, token) in json.and_then(Json::as_array).unwrap_or_default().iter().enumerate() {
        let field = |name: &str| format!("added_tokens[{i}].{name}");
        let content = token
            .get("content")
            .and_then(Json::as_str)
            .ok_or_else(|| Error::file(&field("content"), "it is not a string"))?;
        let id = token
            .get("id")
            .and_then(Json::as_u32)
            .ok_or_else(|| Error::file(&field("id"), "it is not an id"))?;
        let flag = |name: &str| token.get(name).and_then(Json::as_bool).unwrap_or(false);
        if content.is_empty() {
            continue;
        }
        tokens.push(Added {
            id,
            content: content.to_string(),
            single_word: flag("single_word"),
            lstrip: flag("lstrip"),
            rstrip: flag("rstrip"),
            normalized: flag("normalized"),
            special: flag("special"),
        });
    }
    Ok(tokens)
}

/// The model's tokens and the added ones, by id.
fn vocab(model: &Json, added: &[Added]) -> Result<Vocab, Error> {
    const VOCAB: &str = "model.vocab";
    let mut tokens: Vec<(u32, &str)> = match model.get("vocab") {
        Some(Json::Object(entries)) => {
            let id = |(text, id): &'_ (String, Json)| {
                id.as_u32().ok_or_else(|| {
                    Error::file(VOCAB, format!("the id of `{}` is not one", crate::error::shortened(text)))
                })
            };
            entries.iter().map(|entry| Ok((id(entry)?, entry.0.as_str()))).collect::<Result<_, Error>>()?
        }
        Some(Json::Array(entries)) => {
            let mut tokens = Vec::with_capacity(entries.len());
            for (i, entry) in entries.iter().enumerate() {
                match entry.as_array().and_then(|entry| entry.first()?.as_str()) {
                    Some(text) => tokens.push((i as u32, text)),
                    None => {
                        return Err(Error::file(VOCAB, format!("entry {i} is not a token and its score")));
                    }
                }
            }
            tokens
        }
        _ => return Err(Error::file(VOCAB, "it is missing")),
    };
    let own = tokens.len();
    tokens.extend(added.iter().map(|token| (token.id, token.content.as_str())));
    tokens.sort_by_key(|(id, _)| *id);
    let largest = tokens.last().map_or(0, |(id, _)| *id as usize);
    if largest >= MOST_TOKENS || own > MOST_TOKENS {
        return Err(Error::file(
            VOCAB,
            format!("the largest id is {largest}; {} is the largest that is supported", MOST_TOKENS - 1),
        ));
    }
    let mut vocab = Vocab::default();
    for (id, text) in tokens {
        if let Some(other) = vocab.text(id) {
            if other == text {
                continue;
            }
            return Err(Error::file(
                VOCAB,
                format!(
                    "`{}` and `{}` both have the id {id}",
                    crate::error::shortened(other),
                    crate::error::shortened(text)
                ),
            ));
        }
        while vocab.len() < id as usize {
            vocab.push_gap();
        }
        vocab.push(text, TokenKind::Normal).map_err(|other| {
            Error::file(VOCAB, format!("`{}` has the ids {other} and {id}", crate::error::shortened(text)))
        })?;
    }
    for token in added {
        vocab.kinds[token.id as usize] =
            if token.special { TokenKind::Control } else { TokenKind::UserDefined };
    }
    Ok(vocab)
}
