//! Tokens with a meaning of their own, and how they are recognised where a file does not name them.

use crate::vocab::{TokenKind, Vocab};

/// The tokens with a meaning of their own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpecialTokens {
    /// Begins a text.
    pub bos: Option<u32>,
    /// Ends a text.
    pub eos: Option<u32>,
    /// Ends a turn of a chat.
    pub eot: Option<u32>,
    /// Ends a message after which the turn goes on, such as a call of a tool.
    pub eom: Option<u32>,
    /// Stands for what the vocabulary lacks.
    pub unk: Option<u32>,
    /// Separates texts.
    pub sep: Option<u32>,
    /// Pads batches.
    pub pad: Option<u32>,
    /// Masks a token that is to be predicted.
    pub mask: Option<u32>,
    /// Tokens after which a model has finished, sorted: `eos`, `eot`, `eom` and others that are known by their text.
    pub end: Vec<u32>,
    /// Whether texts begin with `bos` where special tokens are added.
    pub add_bos: bool,
    /// Whether texts end with `eos` where special tokens are added.
    pub add_eos: bool,
}

/// What ends a turn, the likeliest first.
const TURN_ENDS: [&str; 11] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "<｜end▁of▁sentence｜>",
    "<end_of_utterance>",
];

/// What ends generation.
const ENDS: [&str; 22] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];

/// Padding, repository and file separators of models that fill in code: generation ends there too. Of each kind the first counts.
const CODE_ENDS: [&[&str]; 3] = [
    &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"],
    &["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"],
    &["<|file_sep|>"],
];

/// Tokens of gpt-oss that a reader of its output needs.
const SHOWN: [&str; 4] = ["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"];

impl SpecialTokens {
    /// Finds by their text what the file does not name, and makes control tokens of them.
    pub(crate) fn recognise(&mut self, vocab: &mut Vocab) {
        let find = |vocab: &Vocab, text: &str| vocab.id(text.as_bytes());
        let control = |vocab: &mut Vocab, id: u32| {
            if let Some(kind) = vocab.kinds.get_mut(id as usize) {
                *kind = TokenKind::Control;
            }
        };
        if self.eot.is_none() {
            self.eot = TURN_ENDS.iter().find_map(|text| find(vocab, text));
            self.eot.into_iter().for_each(|id| control(vocab, id));
        }
        if self.eom.is_none() {
            self.eom = find(vocab, "<|eom_id|>");
        }
        let mut end: Vec<u32> = ENDS.iter().filter_map(|text| find(vocab, text)).collect();
        end.extend(CODE_ENDS.iter().filter_map(|names| names.iter().find_map(|text| find(vocab, text))));
        for &id in &end {
            control(vocab, id);
        }
        for text in SHOWN {
            if let Some(id) = find(vocab, text) {
                vocab.kinds[id as usize] = TokenKind::UserDefined;
            }
        }
        end.extend([self.eos, self.eot, self.eom].into_iter().flatten());
        let has = |text: &str| find(vocab, text).filter(|id| end.contains(id));
        // In these vocabularies `<|end|>` ends a message, not the answer, and `</s>` is a tag of HTML.
        let message_end = has("<|end|>").filter(|_| {
            (has("<|call|>").is_some() || has("<|calls|>").is_some())
                && (has("<|return|>").is_some() || has("<|flush|>").is_some())
        });
        let tag = has("</s>").filter(|_| has("<|tool_response>").is_some());
        end.retain(|id| Some(*id) != message_end && Some(*id) != tag);
        if let Some(id) = message_end {
            vocab.kinds[id as usize] = TokenKind::UserDefined;
        }
        if let Some(id) = tag {
            vocab.kinds[id as usize] = TokenKind::Normal;
        }
        end.sort_unstable();
        end.dedup();
        self.end = end;
    }
}
