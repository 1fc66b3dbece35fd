//! Blocks field by field: all scales, then all low bits, and so on.
//!
//! Most blocks have an odd number of words or bytes, so that their fields begin anywhere and neighbouring invocations read
//! far from each other. Apart, every field is aligned to vectors and contiguous with its neighbours'. The bytes
//! are the same; they are sorted once, at load.

use olivine_ir::BlockFormat;
use olivine_kernel::{Access, Elem, Val};

use crate::launch::Launch;
use crate::packed::decode::{Field, fields};
use crate::site::{Memory, Operand, Site, linear_group};

/// A weight whose fields are apart.
#[derive(Clone, Debug)]
pub(crate) struct Planes {
    pub(crate) memory: Memory,
    /// Each field's first byte in a block, and in the weight.
    starts: Vec<(u32, usize)>,
}

impl Planes {
    /// Sorts the fields of a stored weight at load. `None` where blocks are best as they are: those of whole vectors.
    pub(crate) fn at_load(
        format: BlockFormat,
        w: &Operand,
        site: &mut Site<'_>,
    ) -> Result<Option<Planes>, String> {
        if !w.stored || format.bytes().is_multiple_of(16) {
            return Ok(None);
        }
        let fields = fields(format);
        let blocks = w.ty.bytes() / format.bytes();
        let mut starts = Vec::new();
        let mut bytes = 0usize;
        for field in &fields {
            starts.push((field.start, bytes));
            bytes += (blocks * field.bytes as usize).next_multiple_of(16);
        }
        let make = |site: &mut Site<'_>, to: Memory| {
            let places = fields.iter().zip(&starts);
            places
                .into_iter()
                .try_for_each(|(f, (_, to_byte))| sort(format, w, *f, (to, *to_byte), blocks, site))
        };
        let memory = site.at_load(format!("fields of {}", format.name()), w, bytes as u64, make)?;
        Ok(Some(Planes { memory, starts }))
    }

    /// Where each field begins: its first byte in a block, and in the weight.
    pub(crate) fn declare<'k>(&self, l: &Launch<'k>) -> Vec<(u32, Val<'k>)> {
        let place = |(field, start): &(u32, usize)| (*field, l.size(&format!("field_{field}"), *start));
        self.starts.iter().map(place).collect()
    }
}

/// Copies one field of all blocks; an invocation writes a word.
fn sort(
    format: BlockFormat,
    w: &Operand,
    field: Field,
    (to, to_byte): (Memory, usize),
    blocks: usize,
    site: &mut Site<'_>,
) -> Result<(), String> {
    let words = (blocks * field.bytes as usize).div_ceil(4);
    if words == 0 {
        return Ok(());
    }
    let group = site.group_size(256);
    let k = site.builder("sort_fields", group);
    let l = Launch::new(&k);
    let from = l.bind("w", Elem::U32, Access::Read, w.memory);
    let out = l.bind("out", Elem::U32, Access::Write, to);
    let (total, first) = (l.size("n", words), l.size("first", to_byte / 4));
    let last = l.size("last", blocks - 1);
    let work = linear_group(&k) * group + k.local_index();
    let size = format.bytes() as u32;
    // Bytes that stay together.
    let piece = 1u32 << (4 | field.bytes | field.start | size).trailing_zeros();
    k.if_(work.lt(total), || {
        let read = |i: u32| {
            let byte = work * 4u32 + i;
            let block = byte / field.bytes;
            // The last word may be filled up with anything.
            let at = block.min(last) * size + (byte - block * field.bytes) + field.start;
            let word = from.load(at >> 2) >> ((at & 3u32) << 3);
            if piece == 4 { word } else { (word & ((1u32 << (8 * piece)) - 1)) << (8 * i) }
        };
        let word = (0..4).step_by(piece as usize).map(read).reduce(|a, b| a | b);
        out.store(first + work, word.unwrap_or(work));
    });
    let bound = l.done();
    site.dispatch(k, bound, words.div_ceil(group as usize) as u64, (0, 8 * words as u64))
}
