//! Offsets of buffers in one arena, for any sizes.

use crate::Dim;

/// The buffers of an arena whose sizes may be expressions, and the order in which they lie.
///
/// A placement for one set of sizes says which of two buffers that live at the same time lies below the other. Kept
/// for other sizes, this order gives offsets without overlap for all of them: each buffer begins where the highest of
/// those below it ends.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ArenaLayout {
    /// Bytes of each buffer.
    pub sizes: Vec<Dim>,
    /// Buffers from the lowest to the highest.
    order: Vec<u32>,
    /// For every buffer of `order` the end of its part of `below`.
    ends: Vec<u32>,
    /// Buffers that lie below another and live at the same time.
    below: Vec<u32>,
    alignment: u64,
}

impl ArenaLayout {
    /// Buffers of such sizes; `order` lists them from the lowest to the highest, and `below` adds for the buffer at a
    /// position of the order those before it that live at the same time.
    pub fn new(
        sizes: Vec<Dim>,
        order: Vec<u32>,
        alignment: usize,
        mut below: impl FnMut(usize, &mut Vec<u32>),
    ) -> Self {
        let mut layout = ArenaLayout { sizes, alignment: alignment.max(1) as u64, ..ArenaLayout::default() };
        for rank in 0..order.len() {
            below(rank, &mut layout.below);
            layout.ends.push(layout.below.len() as u32);
        }
        ArenaLayout { order, ..layout }
    }

    /// Buffers that are placed once, whose sizes are numbers: there is no order to place them by again.
    pub fn fixed(sizes: Vec<Dim>) -> Self {
        ArenaLayout { sizes, ..ArenaLayout::default() }
    }

    /// Whether all sizes are numbers.
    pub fn is_fixed(&self) -> bool {
        self.sizes.iter().all(|size| size.is_constant())
    }

    /// Writes the offset of every buffer for such sizes and returns the bytes of the arena; `None` if that is more than an
    /// address can count. Both slices have an entry for each buffer.
    pub fn place(&self, sizes: &[u64], offsets: &mut [u64]) -> Option<u64> {
        let (mut start, mut arena) = (0, 0);
        for (buffer, end) in self.order.iter().zip(&self.ends) {
            let (buffer, end) = (*buffer as usize, *end as usize);
            let mut offset = 0;
            for lower in &self.below[start..end] {
                let lower = *lower as usize;
                offset = u64::max(offset, offsets[lower].checked_add(self.aligned(sizes[lower])?)?);
            }
            start = end;
            offsets[buffer] = offset;
            arena = u64::max(arena, offset.checked_add(self.aligned(sizes[buffer])?)?);
        }
        Some(arena)
    }

    fn aligned(&self, bytes: u64) -> Option<u64> {
        bytes.checked_next_multiple_of(self.alignment)
    }
}
