//! Offsets for very many buffers, in one sweep over time: each takes the narrowest free range when it begins to live.
//!
//! The work grows as n·log n, where trying orders compares every buffer with every other.

use std::collections::{BTreeMap, BTreeSet};

use super::place::Buffer;

/// Ranges of the arena that no living buffer has; neighbours are joined.
#[derive(Default)]
struct Free {
    /// Length by offset.
    at: BTreeMap<usize, usize>,
    /// Length and offset.
    by_length: BTreeSet<(usize, usize)>,
    /// Where the arena ends.
    end: usize,
}

impl Free {
    fn insert(&mut self, mut offset: usize, mut length: usize) {
        if let Some((before, size)) = self.at.range(..offset).next_back().map(|(o, l)| (*o, *l))
            && before + size == offset
        {
            self.remove(before, size);
            (offset, length) = (before, size + length);
        }
        if let Some(size) = self.at.get(&(offset + length)).copied() {
            self.remove(offset + length, size);
            length += size;
        }
        self.at.insert(offset, length);
        self.by_length.insert((length, offset));
    }

    fn remove(&mut self, offset: usize, length: usize) {
        self.at.remove(&offset);
        self.by_length.remove(&(length, offset));
    }

    /// A range of so many bytes: of the narrowest that is wide enough, else at the end, where the arena grows.
    fn take(&mut self, size: usize) -> Option<usize> {
        let found = self.by_length.range((size, 0)..).next().copied();
        let (offset, length) = match found {
            Some((length, offset)) => (offset, length),
            None => match self.at.last_key_value().map(|(o, l)| (*o, *l)) {
                Some((offset, length)) if offset + length == self.end => (offset, length),
                _ => (self.end, 0),
            },
        };
        if length > 0 {
            self.remove(offset, length);
        }
        let end = offset.checked_add(size)?;
        self.end = self.end.max(end);
        if length > size {
            self.insert(end, length - size);
        }
        Some(offset)
    }
}

/// An offset for each buffer, by its id, and the arena's size; `None` if that is more than an address can count.
pub(super) fn sweep(buffers: &[Buffer], offsets: &mut [usize]) -> Option<usize> {
    let mut begins: Vec<usize> = (0..buffers.len()).collect();
    // Of those that begin together the largest come first.
    begins.sort_unstable_by_key(|i| (buffers[*i].first, std::cmp::Reverse(buffers[*i].size), *i));
    let mut ends: Vec<usize> = (0..buffers.len()).collect();
    ends.sort_unstable_by_key(|i| (buffers[*i].last, *i));
    let mut ends = ends.into_iter().peekable();
    let mut free = Free::default();
    for i in begins {
        let buffer = &buffers[i];
        while let Some(gone) = ends.next_if(|e| buffers[*e].last < buffer.first) {
            free.insert(offsets[buffers[gone].id], buffers[gone].size);
        }
        offsets[buffer.id] = free.take(buffer.size)?;
    }
    Some(free.end)
}
