//! A fast hash for keys of a vocabulary. Tables are built from files once; lookups with hostile text cannot add to them.

use std::hash::{BuildHasherDefault, Hasher};

pub(crate) type Map<K, V> = std::collections::HashMap<K, V, BuildHasherDefault<FoldHasher>>;

/// Multiplies and folds words.
#[derive(Default, Clone, Copy)]
pub(crate) struct FoldHasher(u64);

const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;

impl FoldHasher {
    fn add(&mut self, word: u64) {
        let wide = u128::from(self.0 ^ word) * u128::from(FACTOR);
        self.0 = (wide as u64) ^ ((wide >> 64) as u64) ^ FACTOR.rotate_left(17);
    }
}

impl Hasher for FoldHasher {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.add(u64::from_le_bytes(*word));
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.add(u64::from_le_bytes(last) ^ ((bytes.len() as u64) << 56));
    }

    fn write_u8(&mut self, x: u8) {
        self.add(x.into());
    }

    fn write_u32(&mut self, x: u32) {
        self.add(x.into());
    }

    fn write_u64(&mut self, x: u64) {
        self.add(x);
    }

    fn write_usize(&mut self, x: usize) {
        self.add(x as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
