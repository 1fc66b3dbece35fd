//! The pre-tokenizers that `tokenizer.ggml.pre` names.
//!
//! Where llama.cpp approximates a model's own expression because its engine lacks categories or cases, the model's own is used.

use crate::split::GPT2;

/// How text is split, and what else follows from the name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Pre {
    pub(crate) patterns: &'static [&'static str],
    /// A piece that is a token is not merged.
    pub(crate) ignore_merges: bool,
    /// Texts begin with BOS unless the file says otherwise.
    pub(crate) add_bos: bool,
    /// Symbols are bytes; otherwise characters, and spaces are written as `▁`.
    pub(crate) bytes: bool,
    /// 11 is not BOS where the file names none.
    pub(crate) no_bos: bool,
}

/// Words, and numbers of up to three digits.
const LLAMA3: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+",
    r"|\s+(?!\S)|\s+"
);
/// Words and single digits.
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Words and numbers.
const MINICPM5: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+",
    r"|\s+(?!\S)|\s+"
);
/// Words with their marks, and single digits.
const QWEN35: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
);
/// Spaces in powers of two.
const JAIS2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+",
    r"|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)",
    r"|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}"
);
/// Words split where case changes.
const GPT4O: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll",
    r"|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m",
    r"|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
/// The same without contractions, and single digits.
const TEKKEN: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
/// The same with contractions and single digits.
const YOUTU_WORDS: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll",
    r"|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m",
    r"|'ll|'d)?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
/// Ideographs apart from other words.
const KIMI: &str = concat!(
    r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}",
    r"]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:",
    r"'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
/// Single digits and single line breaks.
const BAILING: &str = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+";
/// Punctuation without line breaks.
const SEED_CODER: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Letters that are spaced out are one word.
const EXAONE_MOE: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
);
/// Words, punctuation and spaces.
const DEEPSEEK3_WORDS: &str = concat!(
    r"[!\x22#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+",
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
/// Ideographs and kana.
const DEEPSEEK3_CJK: &str = r"[\u{4E00}-\u{9FA5}\u{3040}-\u{309F}\u{30A0}-\u{30FF}]+";
/// Words of scripts with case.
const DEEPSEEK_LETTERS: &str = concat!(
    r"\s?[A-Za-z\u{B5}\u{C0}-\u{D6}\u{D8}-\u{F6}\u{F8}-\u{1BA}\u{1BC}-\u{1BF}\u{1C4}-\u{293}\u{295}-\u{2AF}\u{370}",
    r"-\u{373}\u{376}\u{377}\u{37B}-\u{37D}\u{37F}\u{386}\u{388}-\u{38A}\u{38C}\u{38E}-\u{3A1}\u{3A3}-\u{3F5}\u{3F7}",
    r"-\u{481}\u{48A}-\u{52F}\u{531}-\u{556}\u{10A0}-\u{10C5}\u{13A0}-\u{13F5}\u{13F8}-\u{13FD}\u{1C90}-\u{1CBA}",
    r"\u{1CBD}-\u{1CBF}\u{1D00}-\u{1D2B}\u{1D6B}-\u{1D77}\u{1D79}-\u{1D9A}\u{1E00}-\u{1F15}\u{1F18}-\u{1F1D}\u{1F20}",
    r"-\u{1F45}\u{1F48}-\u{1F4D}\u{1F50}-\u{1F57}\u{1F59}\u{1F5B}\u{1F5D}\u{1F5F}-\u{1F7D}\u{1F80}-\u{1FB4}\u{1FB6}",
    r"-\u{1FBC}\u{1FBE}\u{1FC2}-\u{1FC4}\u{1FC6}-\u{1FCC}\u{1FD0}-\u{1FD3}\u{1FD6}-\u{1FDB}\u{1FE0}-\u{1FEC}\u{1FF2}",
    r"-\u{1FF4}\u{1FF6}-\u{1FFC}\u{2102}\u{2107}\u{210A}-\u{2113}\u{2115}\u{2119}-\u{211D}\u{2124}\u{2126}\u{2128}",
    r"\u{212A}-\u{212D}\u{212F}-\u{2134}\u{2139}\u{213C}-\u{213F}\u{2145}-\u{2149}\u{214E}\u{2183}\u{2184}\u{2C00}",
    r"-\u{2C7B}\u{2C7E}-\u{2CE4}\u{2CEB}-\u{2CEE}\u{2CF2}\u{2CF3}\u{A640}-\u{A66D}\u{A680}-\u{A69B}\u{A722}-\u{A76F}",
    r"\u{A771}-\u{A787}\u{A78B}-\u{A78E}\u{AB70}-\u{ABBF}\u{FB00}-\u{FB06}\u{FB13}-\u{FB17}\u{FF21}-\u{FF3A}\u{FF41}",
    r"-\u{FF5A}\u{10400}-\u{1044F}\u{104B0}-\u{104D3}\u{104D8}-\u{104FB}\u{10C80}-\u{10CB2}\u{10CC0}-\u{10CF2}\u{118A0}",
    r"-\u{118DF}\u{1E900}-\u{1E943}]+"
);
/// Punctuation of ASCII and of full width.
const DEEPSEEK_PUNCTUATION: &str =
    r"\s?[!-/:-~\u{FF01}-\u{FF0F}\u{FF1A}-\u{FF5E}\u{2018}-\u{201F}\u{3000}-\u{3002}]+";
/// Ideographs, Hangul and what is between.
const DEEPSEEK_CJK: &str = r"[\u{4E00}-\u{9FA5}\u{800}-\u{4E00}\u{AC00}-\u{D7FF}]+";
/// Hangul, punctuation, Bopomofo, ideographs and kana.
const YOUTU_CJK: &str = concat!(
    r"[\u{AC00}-\u{D7A3}\u{3131}-\u{318E}]+|[\u{FF01}\u{2026}\u{201C}\u{201D}\u{2018}\u{2019}\u{2014}\u{FF1A}\u{FF1B}",
    r"\u{FF0C}\u{3001}-\u{303F}\u{FE30}-\u{FE4F}]+|[\u{3105}-\u{312F}]+",
    r"|[\u{4E00}-\u{9FA5}\u{3040}-\u{309F}\u{30A0}-\u{30FF}]+"
);
/// Scripts without spaces.
const AFMOE_CJK: &str = concat!(
    r"[\u{4E00}-\u{9FFF}\u{3400}-\u{4DBF}\u{8C48}-\u{FAFF}\u{3040}-\u{309F}\u{30A0}-\u{30FF}\u{FF65}-\u{FF9F}\u{2F00}",
    r"-\u{2FDF}\u{E40}-\u{E7F}\u{E80}-\u{EFF}\u{1780}-\u{17FF}\u{1000}-\u{109F}\u{AA60}-\u{AA7F}\u{A9E0}-\u{A9FF}",
    r"\u{AC00}-\u{D7AF}\u{1100}-\u{11FF}]+"
);
/// Words up to punctuation.
const BLOOM: &str = r" ?[^(\s|.,!?\u{2026}\u{3002}\u{FF0C}\u{3001}\u{964}\u{6D4}\u{60C})]+";
/// Groups of digits, which [`crate::split::Groups`] splits.
pub(crate) const AFMOE_DIGITS: &str = "digits:numbers";
/// The same of text before a word's end.
pub(crate) const AYA_DIGITS: &str = r"\d{1,3}(?=(?:\d{3})*\b)";
/// The empty places between groups.
pub(crate) const SUPERBPE_DIGITS: &str = r"(?=(\d{3})+(?!\d))";

const LINES: &str = r"[^\n]+|[\n]+";

/// The pre-tokenizer of a name.
pub(crate) fn pre(name: &str) -> Option<Pre> {
    let plain = |patterns| Pre { patterns, ignore_merges: false, add_bos: false, bytes: true, no_bos: false };
    Some(match name {
        "" | "default" => plain(&[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"]),
        "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "falcon-h1" | "pixtral" | "midm-2.0" | "lfm2"
        | "jina-v5-nano" => Pre { ignore_merges: true, add_bos: true, ..plain(&[LLAMA3]) },
        "dbrx" | "smaug-bpe" => plain(&[LLAMA3]),
        "glm4" | "chatglm-bpe" => Pre { no_bos: true, ..plain(&[LLAMA3]) },
        "jais-2" => plain(&[JAIS2]),
        "minicpm5" => Pre { ignore_merges: true, ..plain(&[r"\p{N}{1,3}", MINICPM5]) },
        "deepseek-llm" => {
            plain(&[r"[\r\n]", DEEPSEEK_LETTERS, DEEPSEEK_PUNCTUATION, r"\s+$", DEEPSEEK_CJK, r"\p{N}+"])
        }
        "deepseek-coder" => plain(&[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", DEEPSEEK_CJK, r"\p{N}"]),
        "deepseek-v3" | "hunyuan-dense" | "joyai-llm" => {
            plain(&[r"\p{N}{1,3}", DEEPSEEK3_CJK, DEEPSEEK3_WORDS])
        }
        "youtu" => Pre { ignore_merges: true, ..plain(&[YOUTU_CJK, YOUTU_WORDS]) },
        "falcon" => plain(&[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"]),
        "starcoder" | "refact" | "command-r" | "smollm" | "codeshell" | "exaone" | "minerva-7b"
        | "mellum2" => plain(&[r"\p{N}", GPT2]),
        "gpt-2" | "phi-2" | "jina-es" | "jina-de" | "gigachat" | "jina-v2-es" | "jina-v2-de" | "a.x-4.0"
        | "mellum" | "modern-bert" | "jina-v1-en" | "jina-v2-code" | "roberta-bpe" | "mpt" | "olmo"
        | "jais" | "trillion" | "granite-docling" | "exaone4" => plain(&[GPT2]),
        "qwen2" | "deepseek-r1-qwen" | "kormo" | "f2llmv2" | "megrez" | "stablelm2" | "hunyuan"
        | "solar-open" | "grok-2" => plain(&[QWEN2]),
        "qwen35" => plain(&[QWEN35]),
        "poro-chat" | "bloom" | "gpt3-finnish" => plain(&[BLOOM]),
        "viking" => plain(&[BLOOM, r"\p{N}"]),
        "tekken" => Pre { ignore_merges: true, add_bos: true, ..plain(&[TEKKEN]) },
        "chameleon" => Pre {
            add_bos: true,
            ..plain(&[
                "<sentinel:[0-9]+>",
                "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
                r"([\t\n]|    |  )",
                r"\p{N}",
                r"[\p{P}!-/:-@\[-`{-~]",
                GPT2,
            ])
        },
        "gpt-4o" | "llama4" | "kanana2" | "talkie" | "minimax-m2" => plain(&[GPT4O]),
        "granite-embed-multi-97m" => Pre { ignore_merges: true, ..plain(&[GPT4O]) },
        "tiny_aya" | "cohere2moe" => plain(&[AYA_DIGITS, GPT4O]),
        "kimi-k2" => plain(&[KIMI]),
        "superbpe" => plain(&[r"\p{N}+", SUPERBPE_DIGITS]),
        "bailingmoe" | "bailingmoe2" | "llada-moe" => plain(&[BAILING]),
        "seed-coder" => plain(&[SEED_CODER]),
        "afmoe" => plain(&[AFMOE_DIGITS, AFMOE_CJK, DEEPSEEK3_WORDS]),
        "laguna" => plain(&[LINES, QWEN2]),
        "exaone-moe" => plain(&[EXAONE_MOE]),
        "gemma4" | "granite-embed-multi-311m" => Pre { bytes: false, add_bos: true, ..plain(&[LINES]) },
        "sarvam-moe" => Pre { bytes: false, ..plain(&[LINES]) },
        _ => return None,
    })
}

/// All names, for tests.
#[cfg(test)]
pub(crate) const NAMES: &[&str] = &[
    "a.x-4.0",
    "afmoe",
    "bailingmoe",
    "bailingmoe2",
    "bloom",
    "chameleon",
    "chatglm-bpe",
    "codeshell",
    "cohere2moe",
    "command-r",
    "dbrx",
    "deepseek-coder",
    "deepseek-llm",
    "deepseek-r1-qwen",
    "deepseek-v3",
    "default",
    "exaone",
    "exaone-moe",
    "exaone4",
    "f2llmv2",
    "falcon",
    "falcon-h1",
    "falcon3",
    "gemma4",
    "gigachat",
    "glm4",
    "gpt-2",
    "gpt-4o",
    "gpt3-finnish",
    "granite-docling",
    "granite-embed-multi-311m",
    "granite-embed-multi-97m",
    "grok-2",
    "hunyuan",
    "hunyuan-dense",
    "jais",
    "jais-2",
    "jina-de",
    "jina-es",
    "jina-v1-en",
    "jina-v2-code",
    "jina-v2-de",
    "jina-v2-es",
    "jina-v5-nano",
    "joyai-llm",
    "kanana2",
    "kimi-k2",
    "kormo",
    "laguna",
    "lfm2",
    "llada-moe",
    "llama-bpe",
    "llama-v3",
    "llama3",
    "llama4",
    "megrez",
    "mellum",
    "mellum2",
    "midm-2.0",
    "minerva-7b",
    "minicpm5",
    "minimax-m2",
    "modern-bert",
    "mpt",
    "olmo",
    "phi-2",
    "pixtral",
    "poro-chat",
    "qwen2",
    "qwen35",
    "refact",
    "roberta-bpe",
    "sarvam-moe",
    "seed-coder",
    "smaug-bpe",
    "smollm",
    "solar-open",
    "stablelm2",
    "starcoder",
    "superbpe",
    "talkie",
    "tekken",
    "tiny_aya",
    "trillion",
    "viking",
    "youtu",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::regex::Program;

    #[test]
    fn every_name_has_expressions_that_compile() {
        for name in NAMES {
            let pre = pre(name).unwrap_or_else(|| panic!("{name}"));
            for pattern in
                pre.patterns.iter().filter(|p| ![AFMOE_DIGITS, AYA_DIGITS, SUPERBPE_DIGITS].contains(p))
            {
                Program::new(pattern).unwrap_or_else(|e| panic!("{name}: {e}"));
            }
        }
        assert_eq!(pre("no such thing"), None);
    }
}
