//! Tokenizers from the metadata of GGUF files.

use olivine_gguf::{Metadata, Value};

use crate::added::{Added, Finder};
use crate::charsmap::Charsmap;
use crate::decode::DecodeStep;
use crate::model::{Bpe, Model, Spm, Symbols, Unigram, WordPiece};
use crate::normalize::{Normalizer, Pattern};
use crate::pre::{self, pre};
use crate::regex::Program;
use crate::special::SpecialTokens;
use crate::split::{Behavior, Groups, Splitter};
use crate::tokenizer::TokenBytes;
use crate::trie::Trie;
use crate::vocab::{TokenKind, Vocab, byte_of_token};
use crate::{Error, Tokenizer};

const TOKENS: &str = "tokenizer.ggml.tokens";
const MERGES: &str = "tokenizer.ggml.merges";
const SCORES: &str = "tokenizer.ggml.scores";
const TYPES: &str = "tokenizer.ggml.token_type";
const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const CHARSMAP: &str = "tokenizer.ggml.precompiled_charsmap";

/// More tokens than any vocabulary has.
const MOST_TOKENS: usize = 1 << 24;

impl Tokenizer {
    /// The tokenizer that the metadata of a GGUF file describe.
    pub fn from_gguf(metadata: &Metadata) -> Result<Tokenizer, Error> {
        let model = metadata.string(MODEL).map_err(|e| Error::metadata(MODEL, e.to_string()))?;
        let reader = Reader { metadata, vocab: vocab(metadata)? };
        match model {
            "llama" => reader.spm(),
            "gpt2" | "gemma4" => reader.bpe(model),
            "bert" => reader.bert(),
            "t5" => reader.unigram(),
            "rwkv" => reader.rwkv(),
            other => Err(Error::metadata(
                MODEL,
                format!(
                    "`{}` is not supported; llama, gpt2, gemma4, bert, t5 and rwkv are",
                    crate::error::shortened(other)
                ),
            )),
        }
    }
}

struct Reader<'a> {
    metadata: &'a Metadata,
    vocab: Vocab,
}

/// Tokens and their kinds.
fn vocab(metadata: &Metadata) -> Result<Vocab, Error> {
    let tokens = match metadata.get(TOKENS) {
        Some(Value::Strings(tokens)) => tokens,
        Some(other) => {
            return Err(Error::metadata(
                TOKENS,
                format!("it is of type {}, not an array of strings", other.type_name()),
            ));
        }
        None => return Err(Error::metadata(TOKENS, "it is missing")),
    };
    if tokens.is_empty() || tokens.len() > MOST_TOKENS {
        return Err(Error::metadata(
            TOKENS,
            format!("it has {} tokens; 1 to {MOST_TOKENS} are supported", tokens.len()),
        ));
    }
    let kinds = integers(metadata, TYPES, tokens.len())?;
    let mut vocab = Vocab::default();
    for (id, text) in tokens.iter().enumerate() {
        let kind = match kinds.as_ref().map_or(1, |kinds| kinds[id]) {
            // Undefined tokens are taken for text.
            0 | 1 => TokenKind::Normal,
            2 => TokenKind::Unknown,
            3 => TokenKind::Control,
            4 => TokenKind::UserDefined,
            5 => TokenKind::Unused,
            6 => TokenKind::Byte,
            other => {
                return Err(Error::metadata(TYPES, format!("token {id} has type {other}; there are 0 to 6")));
            }
        };
        if kind == TokenKind::Byte && byte_of_token(text).is_none() {
            return Err(Error::metadata(
                TYPES,
                format!("token {id}, `{}`, is not a byte", crate::error::shortened(text)),
            ));
        }
        let empty = format!("[EMPTY_{id}]");
        let text = if text.is_empty() { &empty } else { text };
        vocab.push(text, kind).map_err(|other| {
            Error::metadata(
                TOKENS,
                format!("tokens {other} and {id} are both `{}`", crate::error::shortened(text)),
            )
        })?;
    }
    Ok(vocab)
}

/// An optional array of integers, one for each token.
fn integers(metadata: &Metadata, key: &str, length: usize) -> Result<Option<Vec<i64>>, Error> {
    let values: Vec<i64> = match metadata.get(key) {
        None => return Ok(None),
        Some(Value::I32s(values)) => values.iter().map(|&x| x.into()).collect(),
        Some(Value::U32s(values)) => values.iter().map(|&x| x.into()).collect(),
        Some(other) => {
            return Err(Error::metadata(
                key,
                format!("it is of type {}, not an array of i32", other.type_name()),
            ));
        }
    };
    same_length(key, values.len(), length)?;
    Ok(Some(values))
}

fn same_length(key: &str, length: usize, tokens: usize) -> Result<(), Error> {
    if length == tokens {
        return Ok(());
    }
    Err(Error::metadata(key, format!("it has {length} elements, but there are {tokens} tokens")))
}

impl Reader<'_> {
    fn flag(&self, key: &str, default: bool) -> Result<bool, Error> {
        match self.metadata.get(key) {
            None => Ok(default),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(other) => {
                Err(Error::metadata(key, format!("it is of type {}, not bool", other.type_name())))
            }
        }
    }

    fn scores(&self) -> Result<Vec<f32>, Error> {
        let scores: Vec<f32> = match self.metadata.get(SCORES) {
            None => return Err(Error::metadata(SCORES, "it is missing; this kind of tokenizer needs it")),
            Some(Value::F32s(scores)) => scores.clone(),
            Some(Value::I32s(scores)) => scores.iter().map(|&x| x as f32).collect(),
            Some(other) => {
                return Err(Error::metadata(
                    SCORES,
                    format!("it is of type {}, not an array of f32", other.type_name()),
                ));
            }
        };
        same_length(SCORES, scores.len(), self.vocab.len())?;
        match scores.iter().position(|score| score.is_nan()) {
            Some(id) => Err(Error::metadata(SCORES, format!("the score of token {id} is not a number"))),
            None => Ok(scores),
        }
    }

    /// An id that the file may name; `default` counts if the vocabulary has it.
    fn id(&self, name: &str, default: Option<u32>) -> Result<Option<u32>, Error> {
        let key = format!("tokenizer.ggml.{name}_token_id");
        let size = self.vocab.len();
        match self.metadata.get(&key) {
            None => Ok(default.filter(|&id| (id as usize) < size)),
            Some(value) => match value.as_u64() {
                Some(id) if id < size as u64 => Ok(Some(id as u32)),
                // Converters write the largest number where there is none.
                Some(id) if id == u64::from(u32::MAX) => Ok(None),
                _ => Err(Error::metadata(&key, format!("{value} is out of range: there are {size} tokens"))),
            },
        }
    }

    fn special(&self, [bos, eos, unk, sep, pad, mask]: [Option<u32>; 6]) -> Result<SpecialTokens, Error> {
        let separator = if self.metadata.get("tokenizer.ggml.separator_token_id").is_some() {
            "separator"
        } else {
            "seperator"
        };
        Ok(SpecialTokens {
            bos: self.id("bos", bos)?,
            eos: self.id("eos", eos)?,
            eot: self.id("eot", None)?,
            eom: self.id("eom", None)?,
            unk: self.id("unknown", unk)?,
            sep: self.id(separator, sep)?,
            pad: self.id("padding", pad)?,
            mask: self.id("mask", mask)?,
            ..SpecialTokens::default()
        })
    }

    /// Puts the parts together.
    fn finish(
        mut self,
        mut special: SpecialTokens,
        (add_bos, add_eos): (bool, bool),
        normalizer: Option<Normalizer>,
        splitters: Vec<Splitter>,
        model: Model,
        decoder: Vec<DecodeStep>,
    ) -> Result<Tokenizer, Error> {
        special.add_bos = self.flag("tokenizer.ggml.add_bos_token", add_bos)?;
        special.add_eos = self.flag("tokenizer.ggml.add_eos_token", add_eos)?;
        special.recognise(&mut self.vocab);
        let around = |flag: bool, id: Option<u32>| id.filter(|_| flag).into_iter().collect::<Vec<u32>>();
        let (before, after) = (around(special.add_bos, special.bos), around(special.add_eos, special.eos));
        let name = self.metadata.string("general.name").unwrap_or_default().to_lowercase();
        let phi3 = name.contains("phi-3") || name.contains("phi3");
        let added = self.vocab.texts().filter_map(|(id, text)| {
            let special = match self.vocab.kinds[id as usize] {
                TokenKind::Control | TokenKind::Unknown => true,
                TokenKind::UserDefined => false,
                _ => return None,
            };
            let rstrip = phi3 && !matches!(text, "<unk>" | "<s>" | "<|endoftext|>");
            let content = text.to_string();
            Some(Added { id, content, single_word: false, lstrip: false, rstrip, normalized: false, special })
        });
        let raw = Finder::new(added.collect(), |token| Ok(token.content.clone()))?;
        let tokenizer = Tokenizer {
            raw,
            normalized: Finder::new(Vec::new(), |token| Ok(token.content.clone()))?,
            vocab: self.vocab,
            normalizer,
            splitters,
            model,
            before,
            after,
            decoder,
            raw_added: true,
            trim_end: false,
            special,
            bytes: TokenBytes::default(),
        };
        tokenizer.finished()
    }

    fn spm(self) -> Result<Tokenizer, Error> {
        let special = self.special([Some(1), Some(2), Some(0), None, None, None])?;
        let prefix = self.flag("tokenizer.ggml.add_space_prefix", true)?;
        let mut steps = Vec::new();
        if prefix {
            steps.push(Normalizer::Prepend(" ".into()));
        }
        steps.push(Normalizer::Replace { pattern: Pattern::Text(" ".into()), content: "▁".into() });
        let model = Model::Spm(Spm::new(&self.scores()?, self.vocab.byte_tokens(), special.unk));
        let decoder = spaced(prefix);
        self.finish(special, (true, false), Some(Normalizer::Sequence(steps)), Vec::new(), model, decoder)
    }

    fn bpe(self, model: &str) -> Result<Tokenizer, Error> {
        let name = match self.metadata.get(PRE) {
            _ if model == "gemma4" => "gemma4",
            None => "",
            Some(Value::String(name)) => name,
            Some(other) => {
                return Err(Error::metadata(
                    PRE,
                    format!("it is of type {}, not a string", other.type_name()),
                ));
            }
        };
        let Some(pre) = pre(name) else {
            return Err(Error::metadata(
                PRE,
                format!("the pre-tokenizer `{}` is not known", crate::error::shortened(name)),
            ));
        };
        let mut defaults = [None; 6];
        if pre.bytes {
            defaults[0] = Some(11).filter(|_| !pre.no_bos);
            defaults[1] = Some(11);
        }
        let special = self.special(defaults)?;
        let merges = match self.metadata.get(MERGES) {
            Some(Value::Strings(merges)) => merges.as_slice(),
            Some(other) => {
                return Err(Error::metadata(
                    MERGES,
                    format!("it is of type {}, not an array of strings", other.type_name()),
                ));
            }
            None if name == "kimi-k2" => &[],
            None => return Err(Error::metadata(MERGES, "it is missing; this kind of tokenizer needs it")),
        };
        let mut pairs = Vec::with_capacity(merges.len());
        for (rank, merge) in merges.iter().enumerate() {
            // The first character of a merge is part of a token even if it is a space.
            let first = merge.chars().next().map_or(0, char::len_utf8);
            let space = merge[first..].find(' ').map(|at| at + first);
            let Some((left, right)) =
                space.map(|at| (&merge[..at], &merge[at + 1..])).filter(|pair| !pair.1.is_empty())
            else {
                return Err(Error::metadata(
                    MERGES,
                    format!("merge {rank} is not two tokens: `{}`", crate::error::shortened(merge)),
                ));
            };
            pairs.push((left, right));
        }
        let merges = Bpe::merges(&self.vocab, pairs.into_iter(), "")
            .map_err(|problem| Error::metadata(MERGES, problem))?;
        let symbols = if pre.bytes {
            Symbols::Bytes(Bpe::byte_symbols(&self.vocab))
        } else {
            Symbols::Chars { ids: Bpe::char_symbols(&self.vocab), bytes: Some(self.vocab.byte_tokens()) }
        };
        let splitters = pre.patterns.iter().map(|pattern| splitter(pattern)).collect::<Result<_, Error>>()?;
        let normalizer = (!pre.bytes)
            .then(|| Normalizer::Replace { pattern: Pattern::Text(" ".into()), content: "▁".into() });
        let decoder = if pre.bytes { vec![DecodeStep::ByteLevel] } else { spaced(false) };
        let model = Model::Bpe(Bpe {
            symbols,
            merges,
            unk: None,
            fuse_unk: false,
            ignore_merges: pre.ignore_merges,
            prefix: String::new(),
            suffix: String::new(),
        });
        self.finish(special, (pre.add_bos, false), normalizer, splitters, model, decoder)
    }

    fn bert(self) -> Result<Tokenizer, Error> {
        let mut special = self.special([Some(101), None, Some(100), Some(102), Some(0), Some(103)])?;
        let lowercase = self.flag("tokenizer.ggml.normalizer.lowercase", true)?;
        let accents = self.flag("tokenizer.ggml.normalizer.strip_accents", lowercase)?;
        let normalizer = Normalizer::Bert { clean: true, ideographs: true, accents, lowercase };
        let tokens = self.vocab.texts().map(|(id, text)| (text.as_bytes(), id));
        let model = Model::WordPiece(WordPiece::new(tokens, "▁", "", special.unk, usize::MAX));
        // Texts end with SEP, which is the EOS of files that name one.
        special.eos = special.sep.or(special.eos);
        self.finish(special, (true, true), Some(normalizer), vec![Splitter::Bert], model, spaced(true))
    }

    fn unigram(self) -> Result<Tokenizer, Error> {
        let special = self.special([None, Some(1), Some(2), None, Some(0), None])?;
        let Some(unk) = special.unk else {
            return Err(Error::metadata(
                "tokenizer.ggml.unknown_token_id",
                "it is missing; a Unigram model needs it",
            ));
        };
        let charsmap = match self.metadata.get(CHARSMAP) {
            None => None,
            Some(Value::U8s(blob)) => Some(Charsmap::new(blob)),
            Some(Value::I8s(blob)) => {
                Some(Charsmap::new(&blob.iter().map(|&x| x as u8).collect::<Vec<u8>>()))
            }
            Some(other) => {
                return Err(Error::metadata(
                    CHARSMAP,
                    format!("it is of type {}, not an array of u8", other.type_name()),
                ));
            }
        };
        let charsmap = charsmap.transpose().map_err(|problem| Error::metadata(CHARSMAP, problem))?;
        let kinds = &self.vocab.kinds;
        let prefix = self.flag("tokenizer.ggml.add_space_prefix", false)?;
        let merge = self.flag("tokenizer.ggml.remove_extra_whitespaces", false)?;
        let user_defined = self.vocab.texts().filter(|(id, _)| kinds[*id as usize] == TokenKind::UserDefined);
        let user_defined = Trie::new(user_defined.map(|(id, text)| (text.as_bytes(), id)));
        let normalizer = Normalizer::Sentence { charsmap, user_defined, prepend: prefix, merge };
        let mut scores: Vec<f64> = self.scores()?.into_iter().map(f64::from).collect();
        let mut lowest = f64::from(f32::MAX);
        for (score, kind) in scores.iter_mut().zip(kinds) {
            match kind {
                TokenKind::Normal => lowest = lowest.min(*score),
                TokenKind::UserDefined => *score = 0.0,
                _ => (),
            }
        }
        let text = |kind| matches!(kind, TokenKind::Normal | TokenKind::UserDefined | TokenKind::Unused);
        let listed = self.vocab.texts().filter(|(id, _)| text(kinds[*id as usize]));
        let unigram = Unigram::new(listed.map(|(id, text)| (text.as_bytes(), id)), scores, lowest, unk, None);
        let model = Model::Unigram(unigram);
        self.finish(special, (false, true), Some(normalizer), Vec::new(), model, spaced(prefix || merge))
    }

    fn rwkv(self) -> Result<Tokenizer, Error> {
        let special = self.special([None; 6])?;
        let texts: Vec<(Vec<u8>, u32)> = self.vocab.texts().map(|(id, text)| (unescaped(text), id)).collect();
        let tokens = Trie::new(texts.iter().map(|(bytes, id)| (bytes.as_slice(), *id)));
        let model = Model::Longest { tokens, unk: special.unk };
        self.finish(special, (false, false), None, Vec::new(), model, vec![DecodeStep::Escaped])
    }
}

fn splitter(pattern: &str) -> Result<Splitter, Error> {
    Ok(match pattern {
        pre::AFMOE_DIGITS => Splitter::Groups(Groups::Numbers),
        pre::AYA_DIGITS => Splitter::Groups(Groups::BeforeBoundary),
        pre::SUPERBPE_DIGITS => Splitter::Groups(Groups::Between),
        _ => Splitter::Pattern {
            pattern: Pattern::Regex(Program::new(pattern)?),
            behavior: Behavior::Isolated,
            invert: false,
        },
    })
}

/// Bytes as they are, and `▁` as a space.
fn spaced(strip: bool) -> Vec<DecodeStep> {
    vec![DecodeStep::ByteFallback, DecodeStep::Metaspace { replacement: '▁', strip }]
}

/// The bytes of a token of RWKV, which is written with escapes.
pub(crate) fn unescaped(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes().iter().copied();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        match rest.next() {
            Some(b't') => bytes.push(b'\t'),
            Some(b'n') => bytes.push(b'\n'),
            Some(b'r') => bytes.push(b'\r'),
            Some(b'x') => {
                let mut digit = || rest.next().and_then(|c| char::from(c).to_digit(16)).unwrap_or(0) as u8;
                bytes.push(digit() << 4 | digit());
            }
            Some(other) => bytes.push(other),
            None => (),
        }
    }
    bytes
}
