//! Sets of characters.

use crate::unicode::{self, Categories};

/// Part of a set.
#[derive(Clone, Debug)]
pub(super) enum Item {
    Range(char, char),
    Categories(Categories),
    Space,
    Word,
    Set(Set),
}

/// The union of its items, perhaps negated, then intersected with another set.
#[derive(Clone, Debug, Default)]
pub(super) struct Set {
    pub(super) items: Vec<Item>,
    pub(super) negated: bool,
    pub(super) and: Option<Box<Set>>,
}

impl Set {
    pub(super) fn of(item: Item, negated: bool) -> Set {
        Set { items: vec![item], negated, and: None }
    }

    /// How many items it has, with those of sets in it.
    pub(super) fn size(&self) -> usize {
        let inner = |item: &Item| if let Item::Set(set) = item { 1 + set.size() } else { 1 };
        self.items.iter().map(inner).sum::<usize>() + self.and.as_ref().map_or(0, |and| and.size())
    }

    pub(super) fn has(&self, c: char) -> bool {
        let listed = self.items.iter().any(|item| match item {
            Item::Range(low, high) => (*low..=*high).contains(&c),
            Item::Categories(set) => unicode::category(c) & set != 0,
            Item::Space => c.is_whitespace(),
            Item::Word => unicode::is_word(c),
            Item::Set(set) => set.has(c),
        });
        // `[^a&&b]` is the complement of the intersection.
        match &self.and {
            None => listed != self.negated,
            Some(and) => (listed && and.has(c)) != self.negated,
        }
    }
}

/// A set with its ASCII part as bits.
#[derive(Clone, Debug)]
pub(super) struct Class {
    ascii: u128,
    set: Set,
}

impl Class {
    pub(super) fn new(set: Set) -> Class {
        let ascii =
            (0..128u8).filter(|&byte| set.has(char::from(byte))).fold(0, |bits, byte| bits | 1u128 << byte);
        Class { ascii, set }
    }

    /// The length of the character of the set that `bytes` of valid UTF-8 begin with at `at`; 0 if there is none.
    #[inline]
    pub(super) fn step(&self, text: &str, at: usize) -> usize {
        let Some(&byte) = text.as_bytes().get(at) else { return 0 };
        if byte < 128 {
            return (self.ascii >> byte & 1) as usize;
        }
        match text.get(at..).and_then(|rest| rest.chars().next()) {
            Some(c) if self.set.has(c) => c.len_utf8(),
            _ => 0,
        }
    }
}
