//! An 8-bit operand brought to the form that matrices are read from: signed bytes, lines of K one after
//! another, each padded with zeros to whole steps.

use olivine_ir::Dim;
use olivine_kernel::{Access, Elem};

use crate::launch::{Launch, bytes, number};
use crate::matmul::int8::Int8Lines;
use crate::site::{Memory, Site, linear_group};
use crate::walk::Walk;

/// Bytes of K that one invocation takes, of four lines.
const CHUNK: u32 = 16;
/// Invocations side by side on lines, and on chunks of K.
const ACROSS: u32 = 8;

/// An operand as lines of bytes, each a multiple of 16 bytes apart from the next.
pub(crate) struct PackedInt8 {
    pub(crate) memory: Memory,
    /// Whether u8 still has to be made signed.
    pub(crate) shifted: bool,
    /// Bytes from one line to the next.
    pub(crate) outer: Dim,
    /// Bytes from one batch to the next, along the axes of the matmul's batches.
    pub(crate) batch: Vec<Dim>,
    pub(crate) offset: Dim,
    /// Bytes of a line that may be read.
    pub(crate) k_size: usize,
}

/// The operand as it is, if it has that form already.
fn straight(lines: &Int8Lines<'_>, k: usize) -> Option<PackedInt8> {
    let whole = |x: &Dim| x.is_multiple_of(CHUNK);
    let offset = lines.operand.offset;
    let aligned = || [k.into(), lines.outer, offset].iter().chain(lines.batch).all(whole);
    (lines.k_stride == 1 && aligned()).then(|| PackedInt8 {
        memory: lines.operand.memory,
        shifted: false,
        outer: lines.outer,
        batch: lines.batch.to_vec(),
        offset,
        k_size: k,
    })
}

/// Brings an operand of lines `k` long to that form: at load where it is stored, else in every run.
pub(crate) fn pack(
    lines: &Int8Lines<'_>,
    k: usize,
    step: usize,
    batch_dims: &[Dim],
    site: &mut Site<'_>,
) -> Result<PackedInt8, String> {
    if let Some(packed) = straight(lines, k) {
        return Ok(packed);
    }
    let k_size = k.next_multiple_of(step);
    let repeats = |axis: usize| lines.batch[axis].as_constant() == Some(0);
    let mut matrices = Dim::ONE;
    let mut batch = vec![Dim::ZERO; batch_dims.len()];
    for axis in (0..batch_dims.len()).rev().filter(|axis| !repeats(*axis)) {
        batch[axis] = matrices * lines.count * k_size;
        matrices *= batch_dims[axis];
    }
    let size = matrices * lines.count * k_size;
    let dims: Vec<Dim> =
        (0..batch_dims.len()).map(|axis| if repeats(axis) { Dim::ONE } else { batch_dims[axis] }).collect();
    let walk = Walk::new(&dims, &[lines.batch.to_vec()]);
    let make = |site: &mut Site<'_>, memory: Memory| emit(lines, k, k_size, &walk, memory, site);
    let memory = if lines.operand.stored {
        let how = format!(
            "signed bytes {k} to {k_size} of {} lines by {} and {}, {dims:?} by {:?}",
            lines.count, lines.outer, lines.k_stride, lines.batch
        );
        site.at_load(how, lines.operand, number(size) as u64, make)?
    } else {
        let memory = site.scratch(size);
        make(site, memory)?;
        memory
    };
    Ok(PackedInt8 { memory, shifted: true, outer: k_size.into(), batch, offset: Dim::ZERO, k_size })
}

fn emit(
    lines: &Int8Lines<'_>,
    k: usize,
    k_size: usize,
    walk: &Walk,
    memory: Memory,
    site: &mut Site<'_>,
) -> Result<(), String> {
    let batches = walk.numel();
    let (down, along) = (lines.count.div_ceil(4 * ACROSS), k_size.div_ceil(CHUNK as usize));
    let group = site.group_size(256);
    let b = site.builder("qmatmul_pack", group);
    let l = Launch::new(&b);
    let from = lines.declare(&l, "x", lines.layout(k));
    let to = l.bind("y", Elem::U32, Access::Write, memory);
    let (real, padded) = (l.size("k_size", k), l.size("padded", k_size));
    let (down_blocks, chunks, all) =
        (l.size("down", down), l.size("chunks", along), l.size("batches", batches));
    let walker = walk.declare(&l, &[lines.operand.offset]);

    // Invocations walk lines first, then chunks, so that reads and writes both come in pieces of some length.
    let number = linear_group(&b) * group + b.local_index();
    let (place, rest) = (number % ACROSS, number / ACROSS);
    let (chunk, rest) = (rest % chunks, rest / chunks);
    let (block, batch) = (rest % down_blocks, rest / down_blocks);
    let line = (block * ACROSS + place) * 4u32;
    b.if_(batch.lt(all) & line.lt(from.count), || {
        let base = walker.at(batch)[0];
        let k_offset = chunk * CHUNK;
        let words: Vec<_> = (0..CHUNK / 4).map(|q| from.words(base, line, k_offset + q * 4, real)).collect();
        for i in 0..4u32 {
            b.if_((line + i).lt(from.count), || {
                let at = ((batch * from.count + line + i) * padded + k_offset) / 4u32;
                let run: Vec<_> = words.iter().map(|w| w[i as usize]).collect();
                to.store_vec(at, &run);
            });
        }
    });
    let bound = l.done();
    let threads = down * along * batches * ACROSS;
    let moved = bytes(&lines.operand.ty) + batches * lines.count * k_size;
    site.dispatch(b, bound, threads.div_ceil(group), (0, moved))
}
