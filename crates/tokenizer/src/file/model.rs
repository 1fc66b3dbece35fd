//! The models of `tokenizer.json`.

use crate::hash::Map;
use crate::model::{Bpe, Model, Symbols, Unigram, WordPiece};
use crate::split::Splitter;
use crate::vocab::Vocab;
use crate::{Error, Json};

/// The model. The bytes of a byte-level model are not written as characters where nothing would look at them.
pub(super) fn model(json: &Json, vocab: &Vocab, splitters: &mut [Splitter]) -> Result<Model, Error> {
    let kind = json.get("type").and_then(Json::as_str).unwrap_or_else(|| guessed(json));
    match kind {
        "BPE" => bpe(json, vocab, splitters),
        "WordPiece" => word_piece(json, vocab),
        "Unigram" => unigram(json, vocab),
        "WordLevel" => Ok(Model::WordLevel { unk: unknown(json, vocab)? }),
        other => {
            Err(Error::file("model.type", format!("`{}` is not supported", crate::error::shortened(other))))
        }
    }
}

/// Old files do not name their model.
fn guessed(json: &Json) -> &'static str {
    if json.get("merges").is_some() {
        "BPE"
    } else if json.get("unk_id").is_some() {
        "Unigram"
    } else if json.get("continuing_subword_prefix").is_some() {
        "WordPiece"
    } else {
        "WordLevel"
    }
}

fn flag(json: &Json, name: &str) -> bool {
    json.get(name).and_then(Json::as_bool).unwrap_or(false)
}

fn unknown(json: &Json, vocab: &Vocab) -> Result<Option<u32>, Error> {
    match json.get("unk_token") {
        None | Some(Json::Null) => Ok(None),
        Some(token) => {
            let text = token.as_str().ok_or_else(|| Error::file("model.unk_token", "it is not a string"))?;
            let id = vocab.id(text.as_bytes());
            id.map(Some).ok_or_else(|| {
                Error::file("model.unk_token", format!("`{}` is not a token", crate::error::shortened(text)))
            })
        }
    }
}

fn bpe(json: &Json, vocab: &Vocab, splitters: &mut [Splitter]) -> Result<Model, Error> {
    let wrong = |problem: String| Error::file("model.merges", problem);
    let text = |name: &str| json.get(name).and_then(Json::as_str).unwrap_or_default().to_string();
    let (prefix, suffix) = (text("continuing_subword_prefix"), text("end_of_word_suffix"));
    let listed = json.get("merges").and_then(Json::as_array).ok_or_else(|| wrong("it is missing".into()))?;
    let mut pairs = Vec::with_capacity(listed.len());
    for (rank, merge) in listed.iter().enumerate() {
        let pair = match merge {
            Json::String(merge) => merge.split_once(' '),
            Json::Array(merge) => match merge.as_slice() {
                [Json::String(left), Json::String(right)] => Some((left.as_str(), right.as_str())),
                _ => None,
            },
            _ => None,
        };
        pairs.push(pair.ok_or_else(|| wrong(format!("merge {rank} is not two tokens")))?);
    }
    let merges = Bpe::merges(vocab, pairs.into_iter(), &prefix).map_err(wrong)?;
    let plain = prefix.is_empty() && suffix.is_empty();
    let symbols = match splitters.last_mut() {
        Some(Splitter::ByteLevel { write, .. }) if plain => {
            *write = false;
            Symbols::Bytes(Bpe::byte_symbols(vocab))
        }
        _ => Symbols::Chars {
            ids: Bpe::char_symbols(vocab),
            bytes: flag(json, "byte_fallback").then(|| vocab.byte_tokens()),
        },
    };
    Ok(Model::Bpe(Bpe {
        symbols,
        merges,
        unk: unknown(json, vocab)?,
        fuse_unk: flag(json, "fuse_unk"),
        ignore_merges: flag(json, "ignore_merges"),
        prefix,
        suffix,
    }))
}

fn word_piece(json: &Json, vocab: &Vocab) -> Result<Model, Error> {
    let inside = json.get("continuing_subword_prefix").and_then(Json::as_str).unwrap_or("##");
    let longest = json.get("max_input_chars_per_word").and_then(Json::as_u32).unwrap_or(100);
    let tokens = vocab.texts().map(|(id, text)| (text.as_bytes(), id));
    Ok(Model::WordPiece(WordPiece::new(tokens, "", inside, unknown(json, vocab)?, longest as usize)))
}

fn unigram(json: &Json, vocab: &Vocab) -> Result<Model, Error> {
    const VOCAB: &str = "model.vocab";
    let entries =
        json.get("vocab").and_then(Json::as_array).ok_or_else(|| Error::file(VOCAB, "it is not an array"))?;
    let mut scores = Vec::with_capacity(entries.len());
    for (i, entry) in entries.iter().enumerate() {
        let score = entry.as_array().and_then(|entry| entry.get(1)?.as_f64());
        scores.push(score.ok_or_else(|| Error::file(VOCAB, format!("entry {i} has no score")))?);
    }
    let Some(unk) = json.get("unk_id").and_then(Json::as_u32).filter(|&id| (id as usize) < scores.len())
    else {
        return Err(Error::file("model.unk_id", "it is missing or out of range"));
    };
    let lowest = scores.iter().copied().fold(f64::INFINITY, f64::min);
    let listed = vocab.texts().take(entries.len()).map(|(id, text)| (text.as_bytes(), id));
    let bytes = flag(json, "byte_fallback").then(|| vocab.byte_tokens());
    Ok(Model::Unigram(Unigram::new(listed, scores, lowest, unk, bytes)))
}

/// A map of names to ids, for post-processors.
pub(super) fn ids_by_name(json: Option<&Json>) -> Map<String, Vec<u32>> {
    let mut names = Map::default();
    if let Some(Json::Object(entries)) = json {
        for (name, entry) in entries {
            let ids = entry.get("ids").and_then(Json::as_array).unwrap_or_default();
            names.insert(name.clone(), ids.iter().filter_map(Json::as_u32).collect());
        }
    }
    names
}
