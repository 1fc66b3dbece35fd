//! Aligned memory, and its division into the parts one kernel reads and writes.

use std::ops::Range;

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
        let count = len.div_ceil(64);
        let mut probe: Vec<Line> = Vec::new();
        probe.try_reserve_exact(count).map_err(|_| Error::OutOfMemory { bytes: len })?;
        drop(probe);
        Ok(Buffer { lines: vec![Line::zeroed(); count], len })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.lines)[..self.len]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.len]
    }
}

/// An arena cut at some written ranges: the written parts, and what lies between them for reading.
pub(crate) struct Carved<'a> {
    written: Vec<(usize, Option<&'a mut [u8]>)>,
    gaps: Vec<(usize, &'a [u8])>,
}

impl<'a> Carved<'a> {
    /// Cuts the arena; the ranges must not overlap each other.
    pub(crate) fn new(arena: &'a mut [u8], writes: &[Range<usize>]) -> Option<Self> {
        let mut sorted: Vec<&Range<usize>> = writes.iter().collect();
        sorted.sort_by_key(|r| (r.start, r.end));
        let mut carved = Carved { written: Vec::with_capacity(sorted.len()), gaps: Vec::new() };
        let mut rest = arena;
        let mut at = 0;
        for range in sorted {
            let (gap, tail) = rest.split_at_mut_checked(range.start.checked_sub(at)?)?;
            let (part, tail) = tail.split_at_mut_checked(range.len())?;
            carved.gaps.push((at, gap));
            carved.written.push((range.start, Some(part)));
            rest = tail;
            at = range.end;
        }
        carved.gaps.push((at, rest));
        Some(carved)
    }

    /// A part for writing; each can be taken once.
    pub(crate) fn write(&mut self, range: &Range<usize>) -> Option<&'a mut [u8]> {
        let (_, part) = self.written.iter_mut().find(|(start, part)| {
            *start == range.start && part.as_ref().is_some_and(|p| p.len() == range.len())
        })?;
        part.take()
    }

    /// A part for reading, if no written range overlaps it.
    pub(crate) fn read(&self, range: &Range<usize>) -> Option<&'a [u8]> {
        self.gaps.iter().find_map(|(start, gap)| gap.get(range.start.checked_sub(*start)?..range.end - start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_parts_are_disjoint_from_what_is_read() {
        let mut buffer = Buffer::new(300).unwrap();
        let mut carved = Carved::new(buffer.bytes_mut(), &[128..192, 0..64]).unwrap();
        carved.write(&(0..64)).unwrap().fill(7);
        assert!(carved.write(&(0..64)).is_none(), "a part is taken once");
        assert_eq!(carved.write(&(128..192)).unwrap().len(), 64);
        assert_eq!(carved.read(&(64..128)).unwrap(), &[0; 64]);
        assert!(carved.read(&(100..150)).is_none(), "overlaps what is written");
        assert!(carved.read(&(192..301)).is_none(), "past the end");
    }

    #[test]
    fn overlapping_writes_are_refused() {
        let mut buffer = Buffer::new(128).unwrap();
        assert!(Carved::new(buffer.bytes_mut(), &[0..64, 32..96]).is_none());
    }

    #[test]
    fn an_impossible_size_is_an_error() {
        assert!(matches!(Buffer::new(usize::MAX - 64), Err(Error::OutOfMemory { .. })));
    }
}
