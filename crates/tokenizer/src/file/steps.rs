//! Normalizers, pre-tokenizers, post-processors and decoders of `tokenizer.json`.

use super::model::ids_by_name;
use crate::charsmap::Charsmap;
use crate::decode::DecodeStep;
use crate::normalize::{Normalizer, Pattern};
use crate::pre;
use crate::regex::Program;
use crate::split::{Behavior, GPT2, Groups, Prepend, Splitter};
use crate::{Error, Json};

fn kind<'a>(json: &'a Json, at: &str) -> Result<&'a str, Error> {
    json.get("type").and_then(Json::as_str).ok_or_else(|| Error::file(&format!("{at}.type"), "it is missing"))
}

fn flag(json: &Json, name: &str, default: bool) -> bool {
    json.get(name).and_then(Json::as_bool).unwrap_or(default)
}

fn text<'a>(json: &'a Json, name: &str, at: &str) -> Result<&'a str, Error> {
    json.get(name)
        .and_then(Json::as_str)
        .ok_or_else(|| Error::file(&format!("{at}.{name}"), "it is not a string"))
}

fn character(json: &Json, name: &str, at: &str) -> Result<char, Error> {
    let mut chars = text(json, name, at)?.chars();
    match (chars.next(), chars.next()) {
        (Some(c), None) => Ok(c),
        _ => Err(Error::file(&format!("{at}.{name}"), "it is not one character")),
    }
}

fn list<'a>(json: &'a Json, name: &str, at: &str) -> Result<&'a [Json], Error> {
    json.get(name)
        .and_then(Json::as_array)
        .ok_or_else(|| Error::file(&format!("{at}.{name}"), "it is not an array"))
}

fn unsupported<T>(kind: &str, at: &str) -> Result<T, Error> {
    Err(Error::file(&format!("{at}.type"), format!("`{}` is not supported", crate::error::shortened(kind))))
}

fn pattern(json: &Json, at: &str) -> Result<Pattern, Error> {
    let wanted = json.get("pattern");
    if let Some(text) = wanted.and_then(|p| p.get("String")?.as_str()) {
        return Ok(Pattern::Text(text.to_string()));
    }
    match wanted.and_then(|p| p.get("Regex")?.as_str()) {
        Some(regex) => Ok(Pattern::Regex(Program::new(regex)?)),
        None => Err(Error::file(&format!("{at}.pattern"), "it is neither a string nor an expression")),
    }
}

/// Steps of a pre-tokenizer or a decoder; those of models have a few.
const MOST_STEPS: usize = 256;

fn bounded<T>(steps: &[T], at: &str) -> Result<(), Error> {
    match steps.len() < MOST_STEPS {
        true => Ok(()),
        false => Err(Error::file(at, format!("it has more than {MOST_STEPS} steps"))),
    }
}

pub(super) fn normalizer(json: &Json, at: &str) -> Result<Normalizer, Error> {
    Ok(match kind(json, at)? {
        "Sequence" => {
            let steps = list(json, "normalizers", at)?;
            bounded(steps, at)?;
            let steps = steps.iter().map(|step| normalizer(step, at));
            Normalizer::Sequence(steps.collect::<Result<_, Error>>()?)
        }
        "NFC" => Normalizer::Nfc,
        "NFD" => Normalizer::Nfd,
        "NFKC" => Normalizer::Nfkc,
        "NFKD" => Normalizer::Nfkd,
        "Lowercase" => Normalizer::Lowercase,
        "StripAccents" => Normalizer::StripAccents,
        "Strip" => {
            Normalizer::Strip { left: flag(json, "strip_left", true), right: flag(json, "strip_right", true) }
        }
        "Replace" => Normalizer::Replace {
            pattern: pattern(json, at)?,
            content: text(json, "content", at)?.to_string(),
        },
        "Prepend" => Normalizer::Prepend(text(json, "prepend", at)?.to_string()),
        "BertNormalizer" => {
            let lowercase = flag(json, "lowercase", true);
            Normalizer::Bert {
                clean: flag(json, "clean_text", true),
                ideographs: flag(json, "handle_chinese_chars", true),
                accents: flag(json, "strip_accents", lowercase),
                lowercase,
            }
        }
        "ByteLevel" => Normalizer::ByteLevel,
        "Nmt" => Normalizer::Nmt,
        "Precompiled" => {
            let at = format!("{at}.precompiled_charsmap");
            let blob = base64(json.get("precompiled_charsmap").and_then(Json::as_str).unwrap_or_default());
            let blob = blob.ok_or_else(|| Error::file(&at, "it is not base64"))?;
            if blob.is_empty() {
                return Ok(Normalizer::Sequence(Vec::new()));
            }
            Normalizer::Charsmap(Charsmap::new(&blob).map_err(|problem| Error::file(&at, problem))?)
        }
        other => return unsupported(other, at),
    })
}

fn base64(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut count) = (0u32, 0);
    for c in text.trim_end_matches('=').bytes() {
        let digit = match c {
            b'A'..=b'Z' => c - b'A',
            b'a'..=b'z' => c - b'a' + 26,
            b'0'..=b'9' => c - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(digit);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    Some(bytes)
}

fn behavior(json: &Json, at: &str) -> Result<Behavior, Error> {
    match json.get("behavior").and_then(Json::as_str) {
        Some("Removed") => Ok(Behavior::Removed),
        Some("Isolated") | None => Ok(Behavior::Isolated),
        Some("MergedWithPrevious") => Ok(Behavior::MergedWithPrevious),
        Some("MergedWithNext") => Ok(Behavior::MergedWithNext),
        Some("Contiguous") => Ok(Behavior::Contiguous),
        Some(other) => Err(Error::file(
            &format!("{at}.behavior"),
            format!("`{}` is not known", crate::error::shortened(other)),
        )),
    }
}

pub(super) fn splitters(json: &Json, at: &str, steps: &mut Vec<Splitter>) -> Result<(), Error> {
    bounded(steps, at)?;
    steps.push(match kind(json, at)? {
        "Sequence" => {
            return list(json, "pretokenizers", at)?.iter().try_for_each(|step| splitters(step, at, steps));
        }
        "Split" => {
            let behavior = behavior(json, at)?;
            let invert = flag(json, "invert", false);
            match json.get("pattern").and_then(|p| p.get("Regex")?.as_str()) {
                Some(pre::AYA_DIGITS) if !invert && behavior == Behavior::Isolated => {
                    Splitter::Groups(Groups::BeforeBoundary)
                }
                Some(pre::SUPERBPE_DIGITS) if !invert && behavior == Behavior::Isolated => {
                    Splitter::Groups(Groups::Between)
                }
                _ => Splitter::Pattern { pattern: pattern(json, at)?, behavior, invert },
            }
        }
        "ByteLevel" => Splitter::ByteLevel {
            space: flag(json, "add_prefix_space", true),
            regex: if flag(json, "use_regex", true) { Some(Program::new(GPT2)?) } else { None },
            write: true,
        },
        "Metaspace" => {
            let legacy = if flag(json, "add_prefix_space", true) { Prepend::Always } else { Prepend::Never };
            let prepend = match json.get("prepend_scheme").and_then(Json::as_str) {
                Some("first") => Prepend::First,
                Some("never") => Prepend::Never,
                Some("always") => Prepend::Always,
                _ => legacy,
            };
            Splitter::Metaspace {
                replacement: character(json, "replacement", at)?,
                prepend,
                split: flag(json, "split", true),
            }
        }
        "Whitespace" => Splitter::Whitespace,
        "WhitespaceSplit" => Splitter::WhitespaceSplit,
        "BertPreTokenizer" => Splitter::Bert,
        "Punctuation" => Splitter::Punctuation(behavior(json, at)?),
        "Digits" => Splitter::Digits { individual: flag(json, "individual_digits", false) },
        "CharDelimiterSplit" => Splitter::Delimiter(character(json, "delimiter", at)?),
        "FixedLength" => {
            let length = json.get("length").and_then(Json::as_u32).filter(|&n| n > 0);
            Splitter::FixedLength(
                length.ok_or_else(|| Error::file(&format!("{at}.length"), "it is not a length"))? as usize,
            )
        }
        other => return unsupported(other, at),
    });
    Ok(())
}

/// Collects the tokens before and after a text.
pub(super) fn post_processor(
    json: &Json,
    at: &str,
    before: &mut Vec<u32>,
    after: &mut Vec<u32>,
) -> Result<(), Error> {
    let pair = |name: &str| {
        let id = json.get(name).and_then(Json::as_array).and_then(|pair| pair.get(1)?.as_u32());
        id.ok_or_else(|| Error::file(&format!("{at}.{name}"), "it is not a token and its id"))
    };
    match kind(json, at)? {
        "Sequence" => {
            list(json, "processors", at)?.iter().try_for_each(|step| post_processor(step, at, before, after))
        }
        "ByteLevel" => Ok(()),
        "BertProcessing" | "RobertaProcessing" => {
            before.insert(0, pair("cls")?);
            after.push(pair("sep")?);
            Ok(())
        }
        "TemplateProcessing" => {
            let names = ids_by_name(json.get("special_tokens"));
            let (mut first, mut last, mut seen) = (Vec::new(), Vec::new(), false);
            for item in list(json, "single", at)? {
                if item.get("Sequence").is_some() {
                    seen = true;
                } else if let Some(name) =
                    item.get("SpecialToken").and_then(|token| token.get("id")?.as_str())
                {
                    let ids = names.get(name).ok_or_else(|| {
                        Error::file(
                            &format!("{at}.special_tokens"),
                            format!("`{}` is missing", crate::error::shortened(name)),
                        )
                    })?;
                    if seen { &mut last } else { &mut first }.extend_from_slice(ids);
                }
            }
            before.splice(0..0, first);
            after.extend(last);
            Ok(())
        }
        other => unsupported(other, at),
    }
}

pub(super) fn decoder(
    json: &Json,
    at: &str,
    steps: &mut Vec<DecodeStep>,
    trim_end: &mut bool,
) -> Result<(), Error> {
    bounded(steps, at)?;
    steps.push(match kind(json, at)? {
        "Sequence" => {
            return list(json, "decoders", at)?
                .iter()
                .try_for_each(|step| decoder(step, at, steps, trim_end));
        }
        "ByteLevel" => DecodeStep::ByteLevel,
        "ByteFallback" => DecodeStep::ByteFallback,
        "Fuse" => return Ok(()),
        "Replace" => {
            let wanted = json.get("pattern").and_then(|p| p.get("String")?.as_str());
            let wanted =
                wanted.ok_or_else(|| Error::file(&format!("{at}.pattern"), "only strings are supported"))?;
            DecodeStep::Replace(wanted.to_string(), text(json, "content", at)?.to_string())
        }
        "Strip" => {
            if json.get("stop").and_then(Json::as_u32).unwrap_or(0) > 0 {
                return Err(Error::file(&format!("{at}.stop"), "stripping the end is not supported"));
            }
            let start = json.get("start").and_then(Json::as_u32).unwrap_or(0);
            DecodeStep::StripStart(character(json, "content", at)?, start as usize)
        }
        "Metaspace" => {
            let strip = match json.get("prepend_scheme").and_then(Json::as_str) {
                Some(scheme) => scheme != "never",
                None => flag(json, "add_prefix_space", true),
            };
            DecodeStep::Metaspace { replacement: character(json, "replacement", at)?, strip }
        }
        "WordPiece" => DecodeStep::WordPiece {
            prefix: json.get("prefix").and_then(Json::as_str).unwrap_or("##").to_string(),
            cleanup: flag(json, "cleanup", true),
        },
        "BPEDecoder" => {
            *trim_end = true;
            DecodeStep::Suffix(json.get("suffix").and_then(Json::as_str).unwrap_or("</w>").to_string())
        }
        other => return unsupported(other, at),
    });
    Ok(())
}
