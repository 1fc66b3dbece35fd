//! Values by number: append-only and bounded. Reading takes no lock, because a value never moves or changes.

use std::sync::OnceLock;

const CHUNK: usize = 1 << 12;
const CHUNKS: usize = 1 << 10;

/// Values with numbers below [`CAPACITY`].
pub(crate) struct Arena<T> {
    chunks: [OnceLock<Box<[OnceLock<T>]>>; CHUNKS],
}

/// How many values an arena has room for.
pub(crate) const CAPACITY: u32 = (CHUNK * CHUNKS) as u32;

impl<T> Arena<T> {
    pub(crate) const fn new() -> Arena<T> {
        Arena { chunks: [const { OnceLock::new() }; CHUNKS] }
    }

    /// The value with this number, if there is one.
    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        let chunk = self.chunks.get(number as usize / CHUNK)?.get()?;
        chunk.get(number as usize % CHUNK)?.get()
    }

    /// Stores a value under a number that has none; `None` where there is no room.
    pub(crate) fn insert(&self, number: u32, value: T) -> Option<&T> {
        let chunk = self.chunks.get(number as usize / CHUNK)?;
        let chunk = chunk.get_or_init(|| (0..CHUNK).map(|_| OnceLock::new()).collect());
        Some(chunk.get(number as usize % CHUNK)?.get_or_init(|| value))
    }
}
