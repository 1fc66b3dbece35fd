//! Tokenizers of BERT encoders from a `vocab.txt`, which lists their tokens and says nothing else.

use crate::{Error, Json, Tokenizer};

/// Words of more characters are unknown.
const LONGEST_WORD: i64 = 100;
/// What the vocabulary calls the tokens that are no text.
const CLS: &str = "[CLS]";
const SEP: &str = "[SEP]";
const UNKNOWN: &str = "[UNK]";

impl Tokenizer {
    /// The WordPiece tokenizer of a BERT encoder from the text of its `vocab.txt`, one token a line. Models that are not cased see
    /// their text in lower case and without accents.
    pub fn from_bert_vocab(text: &str, lowercase: bool) -> Result<Tokenizer, Error> {
        let vocab: Vec<(String, Json)> =
            text.lines().enumerate().map(|(id, token)| (token.to_string(), Json::Int(id as i64))).collect();
        let special = |name: &str| {
            let entry = vocab.iter().find(|(token, _)| token == name);
            let (_, id) = entry.ok_or_else(|| Error::BertVocab { problem: format!("it has no {name}") })?;
            Ok(Json::Array(vec![string(name), id.clone()]))
        };
        let [cls, sep, _] = [special(CLS)?, special(SEP)?, special(UNKNOWN)?];
        let normalizer = [
            ("clean_text", Json::Bool(true)),
            ("handle_chinese_chars", Json::Bool(true)),
            ("strip_accents", Json::Null),
            ("lowercase", Json::Bool(lowercase)),
        ];
        let model = [
            ("unk_token", string(UNKNOWN)),
            ("continuing_subword_prefix", string("##")),
            ("max_input_chars_per_word", Json::Int(LONGEST_WORD)),
            ("vocab", Json::Object(vocab)),
        ];
        let sections = [
            ("normalizer", section("BertNormalizer", normalizer)),
            ("pre_tokenizer", section("BertPreTokenizer", [])),
            ("model", section("WordPiece", model)),
            ("post_processor", section("BertProcessing", [("sep", sep), ("cls", cls)])),
            ("decoder", section("WordPiece", [])),
        ];
        Tokenizer::of_file(&Json::Object(sections.map(|(name, json)| (name.to_string(), json)).into()))
    }
}

fn string(text: &str) -> Json {
    Json::String(text.to_string())
}

/// A section of a `tokenizer.json` of some kind.
fn section<const N: usize>(kind: &str, fields: [(&str, Json); N]) -> Json {
    let fields = fields.map(|(name, json)| (name.to_string(), json));
    Json::Object([("type".to_string(), string(kind))].into_iter().chain(fields).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    const VOCAB: &str = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nhel\n##lo\ncafe\n中\n$\n,\n##x\nx\n";

    fn encoded(text: &str) -> Vec<u32> {
        Tokenizer::from_bert_vocab(VOCAB, true).unwrap().encode(text, true, false).unwrap()
    }

    #[test]
    fn a_vocabulary_is_enough_for_the_tokenizer_of_an_encoder() {
        assert_eq!(encoded("Hello, Café"), [2, 5, 6, 10, 7, 3]);
        // Ideographs and symbols are words of their own; control characters are none.
        assert_eq!(encoded("x中x$x\u{200d}\u{0}x"), [2, 12, 8, 12, 9, 12, 11, 3]);
        assert_eq!(encoded("[SEP]"), [2, 1, 1, 1, 3]);
    }

    #[test]
    fn words_of_more_than_a_hundred_characters_are_unknown() {
        assert_eq!(encoded(&"x".repeat(100)).len(), 102);
        assert_eq!(encoded(&"x".repeat(101)), [2, 1, 3]);
    }

    #[test]
    fn lines_may_end_as_they_do_on_windows() {
        let tokenizer = Tokenizer::from_bert_vocab(&VOCAB.replace('\n', "\r\n"), true).unwrap();
        assert_eq!(tokenizer.encode("hello", true, false).unwrap(), [2, 5, 6, 3]);
    }

    #[test]
    fn a_vocabulary_without_its_marks_is_an_error() {
        let problem = Tokenizer::from_bert_vocab("a\nb\n", true).unwrap_err();
        assert_eq!(problem.to_string(), "vocab.txt: it has no [CLS]");
    }
}
