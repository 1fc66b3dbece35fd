//! SentencePiece's BPE: pairs merge if they are a token, the best score first.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::trie::NONE;
use crate::vocab::Vocab;

/// The scores of tokens, and the tokens of bytes.
#[derive(Debug)]
pub(crate) struct Spm {
    /// Smaller is better.
    order: Vec<u32>,
    bytes: Box<[u32; 256]>,
    unk: Option<u32>,
}

/// A run of the text.
#[derive(Clone, Copy)]
struct Symbol {
    start: u32,
    end: u32,
    previous: u32,
    next: u32,
}

impl Spm {
    pub(crate) fn new(scores: &[f32], bytes: Box<[u32; 256]>, unk: Option<u32>) -> Spm {
        let order = |score: &f32| {
            // Floats as integers in the same order, then the other way round. Both zeros are one.
            let bits = (score + 0.0).to_bits();
            !(if bits >> 31 == 1 { !bits } else { bits | 1 << 31 })
        };
        Spm { order: scores.iter().map(order).collect(), bytes, unk }
    }

    /// Whether each byte has a token.
    pub(super) fn has_all_bytes(&self) -> bool {
        self.bytes.iter().all(|&id| id != NONE)
    }

    pub(super) fn encode(&self, vocab: &Vocab, text: &str, ids: &mut Vec<u32>) {
        if text.len() >= NONE as usize {
            return;
        }
        let mut symbols: Vec<Symbol> = Vec::with_capacity(text.len());
        for (start, c) in text.char_indices() {
            let (start, i) = (start as u32, symbols.len() as u32);
            symbols.push(Symbol {
                start,
                end: start + c.len_utf8() as u32,
                previous: i.wrapping_sub(1),
                next: i + 1,
            });
        }
        if let Some(last) = symbols.last_mut() {
            last.next = NONE;
        }
        let text = text.as_bytes();
        let mut heap = BinaryHeap::new();
        for i in 1..symbols.len() as u32 {
            self.propose(vocab, text, &symbols, i - 1, i, &mut heap);
        }
        while let Some(Reverse((key, right, end))) = heap.pop() {
            let left = key as u32;
            let (a, b) = (symbols[left as usize], symbols[right as usize]);
            // Merged away, or longer than when the pair was proposed.
            if a.start == a.end || b.start == b.end || a.end != b.start || b.end != end {
                continue;
            }
            symbols[left as usize].end = b.end;
            symbols[left as usize].next = b.next;
            symbols[right as usize].end = b.start;
            if b.next != NONE {
                symbols[b.next as usize].previous = left;
            }
            self.propose(vocab, text, &symbols, a.previous, left, &mut heap);
            self.propose(vocab, text, &symbols, left, b.next, &mut heap);
        }
        for symbol in symbols.iter().filter(|symbol| symbol.start < symbol.end) {
            let piece = &text[symbol.start as usize..symbol.end as usize];
            match vocab.id(piece) {
                Some(id) => ids.push(id),
                None => self.fallback(piece, ids),
            }
        }
    }

    fn fallback(&self, piece: &[u8], ids: &mut Vec<u32>) {
        if piece.iter().all(|&byte| self.bytes[usize::from(byte)] != NONE) {
            ids.extend(piece.iter().map(|&byte| self.bytes[usize::from(byte)]));
        } else {
            ids.extend(self.unk);
        }
    }

    fn propose(
        &self,
        vocab: &Vocab,
        text: &[u8],
        symbols: &[Symbol],
        left: u32,
        right: u32,
        heap: &mut BinaryHeap<Reverse<(u64, u32, u32)>>,
    ) {
        let (Some(a), Some(b)) = (symbols.get(left as usize), symbols.get(right as usize)) else { return };
        if (b.end - a.start) as usize > vocab.longest() {
            return;
        }
        if let Some(id) = vocab.id(&text[a.start as usize..b.end as usize]) {
            let order = self.order.get(id as usize).copied().unwrap_or(NONE);
            heap.push(Reverse((u64::from(order) << 32 | u64::from(left), right, b.end)));
        }
    }
}
