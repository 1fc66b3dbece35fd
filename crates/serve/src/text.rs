//! The text of a sequence as its tokens come: whole characters, and never a part of a stop string.

use std::sync::Arc;

use olivine_tokenizer::{TokenStream, Tokenizer};

use crate::stop::StopStrings;

/// A token that was generated.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Token {
    pub(crate) id: u32,
    pub(crate) logprob: Option<f32>,
    /// The likeliest tokens with their log-probabilities, as many as were asked for.
    pub(crate) top: Vec<(u32, f32)>,
}

/// Text that can be shown, with the tokens that begin in it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Piece {
    pub(crate) text: String,
    /// Kept only where they were asked for.
    pub(crate) tokens: Vec<Token>,
}

/// The text of one sequence.
pub(crate) struct Assembly<'t> {
    stream: TokenStream<'t>,
    /// For tokens that are [`Assembly::markers`].
    marked: TokenStream<'t>,
    stops: StopStrings,
    /// Control tokens whose text is shown.
    markers: Arc<[u32]>,
    keep_tokens: bool,
    /// Bytes of text so far, and how many of them were shown.
    total: usize,
    shown: usize,
    /// Tokens that are not shown, with the byte at which they begin.
    pending: Vec<(usize, Token)>,
}

impl<'t> Assembly<'t> {
    pub(crate) fn new(
        tokenizer: &'t Tokenizer,
        stops: Vec<String>,
        markers: Arc<[u32]>,
        keep_tokens: bool,
    ) -> Self {
        let (stream, stops) = (tokenizer.stream().continued(), StopStrings::new(stops));
        let marked = tokenizer.stream().continued().keep_special();
        Assembly { stream, marked, stops, markers, keep_tokens, total: 0, shown: 0, pending: Vec::new() }
    }

    /// What can be shown with another token, and whether a stop string ends the text.
    pub(crate) fn push(&mut self, token: Token) -> (Piece, bool) {
        // Models have rows for more tokens than their vocabulary; those have no text.
        let stream = if self.markers.contains(&token.id) { &mut self.marked } else { &mut self.stream };
        let more = stream.push(token.id).unwrap_or_default();
        if self.keep_tokens {
            self.pending.push((self.total, token));
        }
        self.total += more.len();
        let (text, stopped) = self.stops.push(&more);
        self.shown += text.len();
        let all = self.shown == self.total;
        let tokens = self.begun(all && !stopped);
        (Piece { text, tokens }, stopped)
    }

    /// What is left where no stop string ended the text.
    pub(crate) fn finish(&mut self) -> Piece {
        let rest = self.stream.finish();
        self.total += rest.len();
        let (mut text, stopped) = self.stops.push(&rest);
        if !stopped {
            text += &self.stops.finish();
        }
        self.shown += text.len();
        Piece { text, tokens: self.begun(!stopped) }
    }

    /// Takes the tokens that begin in text that was shown.
    fn begun(&mut self, all: bool) -> Vec<Token> {
        let count = self.pending.iter().take_while(|(start, _)| all || *start < self.shown).count();
        self.pending.drain(..count).map(|(_, token)| token).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokenizer() -> Tokenizer {
        // Bytes of é are spread over two tokens.
        let json = r#"{"model": {"type": "BPE", "vocab": {"a": 0, "<0xC3>": 1, "<0xA9>": 2, "St": 3, "op": 4, "b": 5}, "merges": []},
            "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]}}"#;
        Tokenizer::from_json(json).unwrap()
    }

    fn run(ids: &[u32], stops: &[&str]) -> (Vec<Piece>, bool) {
        let tokenizer = tokenizer();
        let mut text =
            Assembly::new(&tokenizer, stops.iter().map(|s| s.to_string()).collect(), Arc::new([]), true);
        let mut pieces = Vec::new();
        for id in ids {
            let (piece, stopped) = text.push(Token { id: *id, logprob: None, top: Vec::new() });
            pieces.push(piece);
            if stopped {
                return (pieces, true);
            }
        }
        pieces.push(text.finish());
        (pieces, false)
    }

    fn joined(pieces: &[Piece]) -> (String, Vec<u32>) {
        let text = pieces.iter().map(|piece| piece.text.as_str()).collect();
        (text, pieces.iter().flat_map(|piece| &piece.tokens).map(|token| token.id).collect())
    }

    #[test]
    fn characters_come_whole_and_halves_at_the_end_are_replaced() {
        let (pieces, _) = run(&[0, 1, 2, 5], &[]);
        assert_eq!(pieces.iter().map(|p| p.text.as_str()).collect::<Vec<_>>(), ["a", "", "é", "b", ""]);
        assert_eq!(joined(&run(&[0, 1], &[]).0), ("a\u{FFFD}".into(), vec![0, 1]));
        assert_eq!(joined(&run(&[0, 2, 0], &[]).0), ("a\u{FFFD}a".into(), vec![0, 2, 0]));
    }

    #[test]
    fn a_stop_string_of_several_tokens_takes_them_with_it() {
        let (pieces, stopped) = run(&[0, 3, 4, 5], &["Stop"]);
        assert!(stopped);
        assert_eq!(joined(&pieces), ("a".into(), vec![0]));
        let (pieces, stopped) = run(&[0, 3, 5], &["Stop"]);
        assert!(!stopped);
        assert_eq!(joined(&pieces), ("aStb".into(), vec![0, 3, 5]));
    }
}
