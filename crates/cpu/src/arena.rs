//! Aligned memory.

use bytemuck::{Pod, Zeroable};

use crate::Error;

/// One cache line; a vector of these is aligned for every element type and SIMD width.
#[repr(C, align(64))]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Line([u8; 64]);

/// Zeroed bytes, aligned to a cache line.
pub(crate) struct Buffer {
    lines: Vec<Line>,
    len: usize,
}

impl Buffer {
    /// Asks for memory; an impossible size is an error, not an abort.
    pub(crate) fn new(len: usize) -> Result<Self, Error> {
        let lines =
            olivine_ir::memory::zeroed(len.div_ceil(64)).map_err(|_| Error::OutOfMemory { bytes: len })?;
        Ok(Buffer { lines, len })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.lines)[..self.len]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_impossible_size_is_an_error() {
        assert!(matches!(Buffer::new(usize::MAX - 64), Err(Error::OutOfMemory { .. })));
    }
}
