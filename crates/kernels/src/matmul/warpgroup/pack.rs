//! Operands in the order in which warpgroups want them: once for weights, in every run for anything else.
//!
//! ```text
//!   B: batch ─ 256 columns ─ k-step ─ 8 KiB: 8 x 16 bytes (columns x K), 128 bytes to the next along K, 256 to the next columns
//!   A: batch ─ 64 rows     ─ k-step ─ 2 KiB: 16 bytes of each of 128 lanes
//! ```
//! A k-step is 32 bytes, whatever the elements are: the order is one of bytes.
//! In every 64 bytes along K, lane t of four has 16 of a row: word 2s + h of them is its word in half h of k-step s. In
//! every 16 columns, lane t has columns 4t to 4t + 3: column 4t + 2q + e is the accumulator's 8q + 2t + e. Indices past the
//! end of K are zeros in both operands; rows and columns past the last repeat others. Behind B are the sums of its columns,
//! if zero points ask for them.
//!
//! Of f32 there are two f16 parts ([`split`]). Two k-steps of A are 8 KiB: of the high part and then of the low one, the upper
//! and then the lower rows of fragments, 16 bytes to a lane. A k-step of B has 128 columns, 4 KiB of the low part and then as
//! much of the high one. Behind either are the scales of its rows or columns.

use olivine_ir::Dim;
use olivine_kernel::{Access, Buf, Builder, Elem, Scalar, Val};

use super::{Form, ROWS, SLOT, STEP};
use crate::launch::{Launch, number};
use crate::matmul::problem::{Axis, MatrixOperand, Problem};
use crate::matmul::split_f32::split::{self, SplitLayout, SplitOperand};
use crate::matmul::vector_load::MatrixRole;
use crate::site::{Memory, Operand, Site, linear_group};
use crate::walk::Walk;

/// Bytes of a warpgroup's fragments of A in a k-step.
pub(super) const FRAGMENTS: u32 = ROWS * STEP;
/// Rows of a tile, in rows of a warpgroup.
const BLOCKS: u32 = super::TILE_ROWS / ROWS;

/// K-steps of a packed operand.
pub(super) fn k_steps(form: Form, problem: &Problem<'_>) -> usize {
    problem.k_number().next_multiple_of(form.k_block() as usize) / form.step() as usize
}

/// Whether steps in elements of so many bytes keep 16 bytes aligned.
pub(super) fn are_slots(size: u32, mut steps: impl Iterator<Item = Dim>) -> bool {
    steps.all(|step| step >= 0 && step.is_multiple_of(16 / size))
}

/// Which operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    A,
    B,
}

/// An operand to be packed.
struct Source<'a> {
    form: Form,
    role: Role,
    operand: &'a MatrixOperand,
    /// Rows of A, columns of B.
    extent: Dim,
    k_size: usize,
    k_steps: usize,
    /// Its batches: one if all batches have the same matrix.
    batch: Walk,
    /// Whether the sums of columns are wanted too.
    sums: bool,
    /// Of two parts in lines: where their scales begin, and how many there are.
    scales: Option<[Dim; 2]>,
}

/// A packed operand.
pub(super) struct Packed {
    pub(super) memory: Memory,
    pub(super) matrices: Matrices,
    /// Words before the sums of columns, or the scales.
    pub(super) words: Dim,
    /// Scales of a matrix.
    pub(super) scales: Dim,
}

/// Which of the packed matrices batches have.
#[derive(Clone, Debug)]
pub(super) enum Matrices {
    /// All the same.
    One,
    /// Each its own.
    Each,
    /// By strides over the problem's batches.
    Numbered(Vec<i64>),
}

/// Rows of 64 that packed A has: whole tiles.
pub(super) fn row_blocks(m: Dim) -> Dim {
    m.div_ceil(super::TILE_ROWS) * BLOCKS
}

impl<'a> Source<'a> {
    fn new(form: Form, role: Role, problem: &'a Problem<'_>) -> Self {
        let (operand, extent, number) = match role {
            Role::A => (&problem.a, problem.m, 0),
            Role::B => (&problem.b, problem.n, 1),
        };
        let strides = &problem.batch.strides[number];
        let dims =
            if strides.iter().all(|stride| *stride == 0) { Vec::new() } else { problem.batch.dims.clone() };
        let strides = vec![if dims.is_empty() { Vec::new() } else { strides.clone() }];
        let batch = Walk { dims, strides };
        let (k_size, k_steps) = (problem.k_number(), k_steps(form, problem));
        Source { form, role, operand, extent, k_size, k_steps, batch, sums: false, scales: None }
    }

    /// Both parts of an f32 operand, from lines.
    fn of_parts(
        form: Form,
        role: Role,
        problem: &Problem<'_>,
        lines: &SplitOperand,
        operand: &'a MatrixOperand,
    ) -> Self {
        let extent = if role == Role::A { problem.m } else { problem.n };
        let matrix = lines.outer * (2 * lines.k_size);
        let batch = Walk::new(&[lines.matrices], &[vec![matrix]]);
        let scales = Some([lines.scales, lines.outer * lines.matrices]);
        let (k_size, k_steps) = (lines.k_size, k_steps(form, problem));
        Source { form, role, operand, extent, k_size, k_steps, batch, sums: false, scales }
    }

    /// Blocks of rows or columns of a matrix.
    fn blocks(&self) -> Dim {
        match self.role {
            Role::A => row_blocks(self.extent),
            Role::B => self.extent.div_ceil(self.form.columns),
        }
    }

    /// Bytes of a block in a k-step.
    fn step_bytes(&self) -> u32 {
        match self.role {
            Role::A => FRAGMENTS * self.form.parts,
            Role::B => SLOT,
        }
    }

    /// Bytes of packed elements.
    fn bytes(&self) -> Dim {
        self.batch.numel() * self.blocks() * self.k_steps * self.step_bytes()
    }

    /// Columns with those that fill the last tiles, of all batches.
    fn columns(&self) -> Dim {
        self.batch.numel() * self.blocks() * self.form.columns
    }

    /// Bytes of all that is made.
    fn all_bytes(&self) -> Dim {
        if self.sums { self.bytes() + 4 * self.columns() } else { self.bytes() }
    }

    /// Packs it, at load if it is stored.
    fn prepare(&self, site: &mut Site<'_>) -> Result<Packed, String> {
        let Source { role, operand, extent, k_size, batch, .. } = self;
        let (outer, k_stride) = (operand.outer, operand.k_stride);
        let summed = if self.sums { " with sums" } else { "" };
        let how = format!(
            "{role:?} for warpgroups{summed}, {extent} by {outer}, {k_size} by {k_stride}, {:?} by {:?}",
            batch.dims, batch.strides[0]
        );
        let make = |site: &mut Site<'_>, to| {
            self.emit(to, site)?;
            if self.sums { self.emit_sums(to, site) } else { Ok(()) }
        };
        let memory = if operand.operand.stored {
            site.at_load(how, &operand.operand, number(self.all_bytes()) as u64, make)?
        } else {
            site.shared(how, &operand.operand, self.all_bytes(), make)?
        };
        let matrices = if batch.dims.is_empty() { Matrices::One } else { Matrices::Each };
        Ok(Packed { memory, matrices, words: self.bytes().div_floor(4u32), scales: Dim::ZERO })
    }

    /// A workgroup to two k-steps of a block.
    fn emit(&self, to: Memory, site: &mut Site<'_>) -> Result<(), String> {
        let (name, group) = match self.role {
            Role::A => ("matmul_warpgroup_pack_a", 2 * ROWS),
            Role::B => ("matmul_warpgroup_pack_b", self.form.columns),
        };
        let (blocks, pairs) = (self.blocks(), self.k_steps / 2);
        let groups = self.batch.numel() * blocks * pairs;
        let k = site.builder(name, group);
        let l = Launch::new(&k);
        let reader = Reader::declare(&l, self);
        let out = l.bind("packed", Elem::U32, Access::Write, to);
        let (blocks, pairs) = (l.size("blocks", blocks), l.size("pairs", pairs));
        let total = l.size("groups", groups);
        let walker = self.batch.declare(&l, &[self.operand.operand.offset]);
        let scales = self.scales.map(|[from, count]| {
            let words = l.bind("lines", Elem::U32, Access::Read, self.operand.operand.memory);
            let to = l.size("words", self.bytes().div_floor(4u32));
            (words, l.size("scales", from), l.size("scale_count", count), to)
        });
        let id = linear_group(&k);
        k.if_(id.lt(total), || {
            // There are more invocations than scales.
            if let Some((words, from, count, to)) = scales {
                let number = id * k.group() + k.local_index();
                k.if_(number.lt(count), || out.store(to + number, words.load(from + number)));
            }
            // Blocks of all batches, one after another.
            let number = id / pairs;
            let pair = id - number * pairs;
            let batch = number / blocks;
            let block = number - batch * blocks;
            let base = walker.at(batch)[0];
            let at = (number * pairs + pair) * (2 * self.step_bytes() / 4);
            match self.role {
                Role::A => fragments(&k, &reader, (base, block, pair), out, at),
                Role::B => columns(&k, &reader, (base, block, pair), out, at),
            }
        });
        let bound = l.done();
        let moved = self.bytes() + self.batch.numel() * self.extent * self.k_size * self.form.size();
        site.dispatch(k, bound, groups, (0, moved))
    }

    /// Sums of columns, from packed bytes: a workgroup to eight columns, an invocation to 16 bytes of every 16th k-step.
    fn emit_sums(&self, memory: Memory, site: &mut Site<'_>) -> Result<(), String> {
        let groups = self.columns().div_floor(TOGETHER);
        let k = site.builder("matmul_warpgroup_sums", 16 * 2 * TOGETHER);
        let l = Launch::new(&k);
        // The sums follow the bytes they were made of.
        let memory = l.bind("packed", Elem::U32, Access::ReadWrite, memory);
        let (total, k_steps) = (l.size("groups", groups), l.size("k_steps", self.k_steps));
        let words = l.size("words", self.bytes().div_floor(4u32));
        let signed = self.form.elems[1] == Elem::I8;
        let met = k.shared(Elem::I32, 1, 16 * 2 * TOGETHER);
        let id = linear_group(&k);
        k.if_(id.lt(total), || {
            let me = k.local_index();
            // In the order of packed columns: eight are 256 bytes of a k-step.
            let eights = self.form.columns / TOGETHER;
            let (block, eight) = (id / eights, id % eights);
            let first = block * k_steps * (SLOT / 4) + eight * 64u32 + me % 16u32 * 4u32;
            let sum = k.var(k.i32(0));
            k.for_(me / 16u32, k_steps, k.u32(16), |step| {
                let words = memory.load_vec(first + step * (SLOT / 4), 4);
                let ones = k.u32(ONES);
                sum.set(words.into_iter().fold(sum.get(), |sum, word| add_bytes(word, ones, sum, signed)));
            });
            met.store(me, sum.get());
            k.barrier();
            k.if_(me.lt(TOGETHER), || {
                let all = (0..2 * 16).fold(k.i32(0), |all, i| all + met.load(me + i * TOGETHER));
                // Of 16 columns, packed ones 2t + e and 8 + 2t + e are 4t + e and 4t + 2 + e.
                let column = eight / 2u32 * 16u32 + me / 2u32 * 4u32 + eight % 2u32 * 2u32 + me % 2u32;
                let to = words + block * self.form.columns + column;
                memory.store(to, all.bitcast(Scalar::U32));
            });
        });
        let bound = l.done();
        site.dispatch(k, bound, groups, (0, self.bytes()))
    }
}

/// Columns whose sums a workgroup adds up: a block of packed B.
const TOGETHER: u32 = 8;

/// Four bytes of 1.
pub(super) const ONES: u32 = 0x0101_0101;

/// A sum and the four bytes of a word, times those of `ones`.
pub(super) fn add_bytes<'k>(word: Val<'k>, ones: Val<'k>, sum: Val<'k>, signed: bool) -> Val<'k> {
    if signed {
        return word.packed_dot(ones, sum, true);
    }
    word.packed_dot(ones, sum.bitcast(Scalar::U32), false).bitcast(Scalar::I32)
}

/// Bytes of packed A.
pub(super) fn bytes_of_a(form: Form, problem: &Problem<'_>) -> Dim {
    Source::new(form, Role::A, problem).bytes()
}

/// Bytes of packed B.
pub(super) fn bytes_of_b(form: Form, problem: &Problem<'_>) -> Dim {
    Source::new(form, Role::B, problem).bytes()
}

/// A in the order of fragments.
pub(super) fn pack_a(form: Form, problem: &Problem<'_>, site: &mut Site<'_>) -> Result<Packed, String> {
    Source::new(form, Role::A, problem).prepare(site)
}

/// B in blocks that are copied whole, and the sums of its columns.
pub(super) fn pack_b(
    form: Form,
    problem: &Problem<'_>,
    sums: bool,
    site: &mut Site<'_>,
) -> Result<Packed, String> {
    Source { sums, ..Source::new(form, Role::B, problem) }.prepare(site)
}

/// Both parts of an f32 operand: at load if it is stored.
pub(super) fn pack_parts(
    form: Form,
    side: MatrixRole,
    problem: &Problem<'_>,
    site: &mut Site<'_>,
) -> Result<Packed, String> {
    let (role, given) = match side {
        MatrixRole::A => (Role::A, &problem.a),
        MatrixRole::B => (Role::B, &problem.b),
    };
    let parts = split::sizes(problem, side);
    let plain = Source::new(form, role, problem);
    let words = plain.blocks() * (parts.matrices * plain.k_steps) * (plain.step_bytes() / 4);
    let bytes = 4 * (words + parts.outer * parts.matrices);
    let make = |site: &mut Site<'_>, to: Memory| {
        let sizes = (plain.blocks(), plain.k_steps * form.step() as usize);
        if role == Role::A && split::warpgroup_rows(problem, (to, words), sizes, site)? {
            return Ok(());
        }
        let lines = split::lines(problem, side, site)?;
        let (outer, k_stride) = match lines.order {
            SplitLayout::Lines(Axis::Outer) => (Dim::ONE, lines.outer),
            _ => ((2 * lines.k_size).into(), Dim::ONE),
        };
        let whole = given.operand.clone();
        let operand = Operand { memory: lines.memory, offset: Dim::ZERO, stored: false, ..whole };
        let operand = MatrixOperand { operand, outer, k_stride };
        Source::of_parts(form, role, problem, &lines, &operand).emit(to, site)
    };
    let memory = if given.operand.stored {
        let how = format!(
            "parts of {role:?} for warpgroups, {} by {}, {} by {}, {:?} by {:?}",
            if role == Role::A { problem.m } else { problem.n },
            given.outer,
            problem.k,
            given.k_stride,
            problem.batch.dims,
            problem.batch.strides[usize::from(role == Role::B)]
        );
        site.at_load(how, &given.operand, number(bytes) as u64, make)?
    } else {
        let memory = site.scratch(bytes);
        make(site, memory)?;
        memory
    };
    let matrices = Matrices::Numbered(parts.batch);
    Ok(Packed { memory, matrices, words, scales: parts.outer })
}

/// An operand, read 16 bytes of neighbours along K at a time.
struct Reader<'k> {
    k: &'k Builder,
    buffer: Buf<'k>,
    /// Bytes of an element.
    size: u32,
    /// Whether the neighbours are 16 aligned bytes, which `buffer` has as words then.
    whole: bool,
    outer: Val<'k>,
    k_stride: Val<'k>,
    extent: Val<'k>,
    k_size: Val<'k>,
    /// Whether K ends inside of the last block.
    tail: bool,
    /// Whether it is two parts in turn along K.
    has_parts: bool,
}

impl<'k> Reader<'k> {
    fn declare(l: &Launch<'k>, source: &Source<'_>) -> Self {
        let operand = source.operand;
        let own = [operand.outer, operand.operand.offset, source.k_size.into()];
        let steps = source.batch.strides[0].iter().copied().chain(own);
        let size = source.form.size();
        let whole = operand.k_stride == 1 && are_slots(size, steps);
        let elem = match size {
            _ if whole => Elem::U32,
            1 => Elem::U8,
            _ => Elem::U16,
        };
        let tail = !source.k_size.is_multiple_of(source.form.k_block() as usize);
        Reader {
            k: l.k(),
            buffer: l.bind("x", elem, Access::Read, operand.operand.memory),
            size,
            whole,
            outer: l.stride("outer", operand.outer),
            k_stride: if whole { l.k().u32(1) } else { l.stride("k_stride", operand.k_stride) },
            extent: l.size("extent", source.extent),
            k_size: l.size("k_size", source.k_size),
            tail,
            has_parts: source.form.parts > 1,
        }
    }

    /// Four words of a part from `from` on along K, at a position.
    fn words(&self, base: Val<'k>, position: Val<'k>, from: Val<'k>, part: u32) -> Vec<Val<'k>> {
        let (zero, start) = (self.k.u32(0), base + position.min(self.extent - 1u32) * self.outer);
        let (each, neighbours) = (4 / self.size, 16 / self.size);
        // Of parts K is a multiple of 64, and neighbours are inside or outside together.
        let clamped = || if self.tail { from.min(self.k_size - neighbours) } else { from };
        let at_part = || split::interleaved(clamped()) + part * split::RUN;
        if self.whole {
            let at = if self.has_parts { at_part() } else { clamped() };
            let words = self.buffer.load_vec((start + at) / each, 4);
            let inside = from.lt(self.k_size);
            let cut = |word: Val<'k>| if self.tail { inside.select(word, zero) } else { word };
            return words.into_iter().map(cut).collect();
        }
        let first = if self.has_parts { at_part() } else { from };
        let element = |i: u32| {
            if self.has_parts {
                let bits = self.buffer.load(start + (first + i) * self.k_stride);
                return if self.tail { from.lt(self.k_size).select(bits, zero) } else { bits };
            }
            let at = from + i;
            if !self.tail {
                return self.buffer.load(start + at * self.k_stride);
            }
            let bits = self.buffer.load(start + at.min(self.k_size - 1u32) * self.k_stride);
            at.lt(self.k_size).select(bits, zero)
        };
        let elements: Vec<Val<'k>> = (0..neighbours).map(element).collect();
        let word = |elements: &[Val<'k>]| {
            let shifted = (1..).zip(&elements[1..]).map(|(i, element)| *element << (8 * self.size * i));
            shifted.fold(elements[0], |word, element| word | element)
        };
        elements.chunks(each as usize).map(word).collect()
    }
}

/// Packs two k-steps of 256 columns: an invocation to each.
fn columns<'k>(
    k: &'k Builder,
    reader: &Reader<'k>,
    (base, block, pair): (Val<'k>, Val<'k>, Val<'k>),
    out: Buf<'k>,
    at: Val<'k>,
) {
    let me = k.local_index();
    let position = block * k.group() + me;
    let neighbours = 16 / reader.size;
    let from = pair * (4 * neighbours);
    let (t, q, e) = (me % 16u32 / 4u32, (me / 2u32) % 2u32, me % 2u32);
    let column = me / 16u32 * 16u32 + q * 8u32 + t * 2u32 + e;
    // In words: 64 to the next eight columns, 4 to the next column.
    let to = at + column / 8u32 * 64u32 + column % 8u32 * 4u32;
    // The low part is multiplied first.
    let places: &[u32] = if reader.has_parts { &[SLOT / 2 / 4, 0] } else { &[0] };
    for (part, place) in (0..).zip(places) {
        let words: Vec<_> =
            (0..4).map(|t| reader.words(base, position, from + neighbours * t, part)).collect();
        for (step, half) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let line: Vec<Val<'k>> = words.iter().map(|of_lane| of_lane[2 * step + half]).collect();
            out.store_vec(to + (step as u32 * (SLOT / 4) + half as u32 * 32 + place), &line);
        }
    }
}

/// Packs two k-steps of 64 rows: an invocation to each lane of a warpgroup.
fn fragments<'k>(
    k: &'k Builder,
    reader: &Reader<'k>,
    (base, block, pair): (Val<'k>, Val<'k>, Val<'k>),
    out: Buf<'k>,
    at: Val<'k>,
) {
    let me = k.local_index();
    let row = block * ROWS + me / 32u32 * 16u32 + me % 32u32 / 4u32;
    let neighbours = 16 / reader.size;
    let from = pair * (4 * neighbours) + me % 4u32 * neighbours;
    let parts = if reader.has_parts { 2 } else { 1 };
    for part in 0..parts {
        let rows = [0, 8].map(|skip| reader.words(base, row + skip, from, part));
        let fragment = |step: usize| {
            let halves = [2 * step, 2 * step + 1];
            halves.map(|i| [rows[0][i], rows[1][i]]).concat()
        };
        let chunks = if reader.has_parts { rows.clone() } else { [fragment(0), fragment(1)] };
        for (number, words) in (2 * part..).zip(chunks) {
            out.store_vec(at + me * 4u32 + number * (FRAGMENTS / 4), &words);
        }
    }
}
