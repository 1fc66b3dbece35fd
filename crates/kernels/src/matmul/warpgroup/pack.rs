//! Operands in the order in which warpgroups want them: once for weights, in every run for anything else.
//!
//! ```text
//!   B: batch ─ 256 columns ─ k-step ─ 8 KiB: 8 x 16 bytes (columns x K), 128 bytes to the next along K, 256 to the next columns
//!   A: batch ─ 64 rows     ─ k-step ─ 2 KiB: 16 bytes of each of 128 lanes
//! ```
//! In every 64 bytes along K, lane t of four has 16 of a row: word 2s + h of them is its word in half h of k-step s. In
//! every 16 columns, lane t has columns 4t to 4t + 3: column 4t + 2q + e is the accumulator's 8q + 2t + e. Indices past the
//! end of K are zeros in both operands; rows and columns past the last repeat others.

use olivine_ir::Dim;
use olivine_kernel::{Access, Buf, Builder, Elem, Val};

use super::{K_BLOCK, SLOT, STEP, TILE};
use crate::launch::{Launch, number};
use crate::matmul::problem::{MatrixOperand, Problem};
use crate::site::{Memory, Site, linear_group};
use crate::walk::Walk;

/// 16-bit elements of 16 bytes.
const EIGHT: u32 = 8;
/// Rows of a warpgroup.
const ROWS: u32 = 64;
/// Bytes of a warpgroup's fragments of A in a k-step.
pub(super) const FRAGMENTS: u32 = ROWS * STEP * 2;

/// K-steps of a packed operand.
pub(super) fn k_steps(problem: &Problem<'_>) -> usize {
    problem.k_number().next_multiple_of(K_BLOCK as usize) / STEP as usize
}

/// Whether steps in elements keep 16 bytes aligned.
pub(super) fn are_slots(mut steps: impl Iterator<Item = Dim>) -> bool {
    steps.all(|step| step >= 0 && step.is_multiple_of(EIGHT))
}

/// Which operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    A,
    B,
}

/// An operand to be packed.
struct Source<'a> {
    role: Role,
    operand: &'a MatrixOperand,
    /// Rows of A, columns of B.
    extent: Dim,
    k_size: usize,
    k_steps: usize,
    /// Its batches: one if all batches have the same matrix.
    batch: Walk,
}

/// A packed operand.
pub(super) struct Packed {
    pub(super) memory: Memory,
    /// Whether each batch has a matrix of its own.
    pub(super) batched: bool,
}

/// Rows of 64 that packed A has: whole tiles.
pub(super) fn row_blocks(m: Dim) -> Dim {
    m.div_ceil(TILE[0]) * (TILE[0] / ROWS)
}

impl<'a> Source<'a> {
    fn new(role: Role, problem: &'a Problem<'_>) -> Self {
        let (operand, extent, number) = match role {
            Role::A => (&problem.a, problem.m, 0),
            Role::B => (&problem.b, problem.n, 1),
        };
        let strides = &problem.batch.strides[number];
        let dims =
            if strides.iter().all(|stride| *stride == 0) { Vec::new() } else { problem.batch.dims.clone() };
        let strides = vec![if dims.is_empty() { Vec::new() } else { strides.clone() }];
        let batch = Walk { dims, strides };
        Source { role, operand, extent, k_size: problem.k_number(), k_steps: k_steps(problem), batch }
    }

    /// Blocks of rows or columns of a matrix.
    fn blocks(&self) -> Dim {
        match self.role {
            Role::A => row_blocks(self.extent),
            Role::B => self.extent.div_ceil(TILE[1]),
        }
    }

    /// Bytes of a block in a k-step.
    fn step_bytes(&self) -> u32 {
        match self.role {
            Role::A => FRAGMENTS,
            Role::B => SLOT,
        }
    }

    fn bytes(&self) -> Dim {
        self.batch.numel() * self.blocks() * self.k_steps * self.step_bytes()
    }

    /// Packs it, at load if it is stored.
    fn prepare(&self, site: &mut Site<'_>) -> Result<Packed, String> {
        let Source { role, operand, extent, k_size, batch, .. } = self;
        let (outer, k_stride) = (operand.outer, operand.k_stride);
        let how = format!(
            "{role:?} for warpgroups, {extent} by {outer}, {k_size} by {k_stride}, {:?} by {:?}",
            batch.dims, batch.strides[0]
        );
        let make = |site: &mut Site<'_>, to| self.emit(to, site);
        let memory = if operand.operand.stored {
            site.at_load(how, &operand.operand, number(self.bytes()) as u64, make)?
        } else {
            site.shared(how, &operand.operand, self.bytes(), make)?
        };
        Ok(Packed { memory, batched: !batch.dims.is_empty() })
    }

    /// A workgroup to two k-steps of a block.
    fn emit(&self, to: Memory, site: &mut Site<'_>) -> Result<(), String> {
        let (name, group) = match self.role {
            Role::A => ("matmul_warpgroup_pack_a", 2 * ROWS),
            Role::B => ("matmul_warpgroup_pack_b", TILE[1]),
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
        let id = linear_group(&k);
        k.if_(id.lt(total), || {
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
        let moved = self.bytes() + self.batch.numel() * self.extent * self.k_size * 2;
        site.dispatch(k, bound, groups, (0, moved))
    }
}

/// Bytes of packed A.
pub(super) fn bytes_of_a(problem: &Problem<'_>) -> Dim {
    Source::new(Role::A, problem).bytes()
}

/// Bytes of packed B.
pub(super) fn bytes_of_b(problem: &Problem<'_>) -> Dim {
    Source::new(Role::B, problem).bytes()
}

/// A in the order of fragments.
pub(super) fn pack_a(problem: &Problem<'_>, site: &mut Site<'_>) -> Result<Packed, String> {
    Source::new(Role::A, problem).prepare(site)
}

/// B in blocks that are copied whole.
pub(super) fn pack_b(problem: &Problem<'_>, site: &mut Site<'_>) -> Result<Packed, String> {
    Source::new(Role::B, problem).prepare(site)
}

/// An operand of 16-bit elements, read eight neighbours along K at a time.
struct Reader<'k> {
    k: &'k Builder,
    buffer: Buf<'k>,
    /// Whether the eight are 16 aligned bytes, which `buffer` has as words then.
    whole: bool,
    outer: Val<'k>,
    k_stride: Val<'k>,
    extent: Val<'k>,
    k_size: Val<'k>,
    /// Whether K ends inside of the last block.
    tail: bool,
}

impl<'k> Reader<'k> {
    fn declare(l: &Launch<'k>, source: &Source<'_>) -> Self {
        let operand = source.operand;
        let own = [operand.outer, operand.operand.offset, source.k_size.into()];
        let steps = source.batch.strides[0].iter().copied().chain(own);
        let whole = operand.k_stride == 1 && are_slots(steps);
        let elem = if whole { Elem::U32 } else { Elem::U16 };
        let tail = !source.k_size.is_multiple_of(K_BLOCK as usize);
        Reader {
            k: l.k(),
            buffer: l.bind("x", elem, Access::Read, operand.operand.memory),
            whole,
            outer: l.stride("outer", operand.outer),
            k_stride: if whole { l.k().u32(1) } else { l.stride("k_stride", operand.k_stride) },
            extent: l.size("extent", source.extent),
            k_size: l.size("k_size", source.k_size),
            tail,
        }
    }

    /// Four words from `from` on along K, at a position.
    fn words(&self, base: Val<'k>, position: Val<'k>, from: Val<'k>) -> Vec<Val<'k>> {
        let (zero, start) = (self.k.u32(0), base + position.min(self.extent - 1u32) * self.outer);
        if self.whole {
            let at = if self.tail { from.min(self.k_size - EIGHT) } else { from };
            let words = self.buffer.load_vec((start + at) / 2u32, 4);
            let inside = from.lt(self.k_size);
            let cut = |word: Val<'k>| if self.tail { inside.select(word, zero) } else { word };
            return words.into_iter().map(cut).collect();
        }
        let element = |i: u32| {
            let at = from + i;
            if !self.tail {
                return self.buffer.load(start + at * self.k_stride);
            }
            let bits = self.buffer.load(start + at.min(self.k_size - 1u32) * self.k_stride);
            at.lt(self.k_size).select(bits, zero)
        };
        let elements: Vec<Val<'k>> = (0..EIGHT).map(element).collect();
        elements.chunks(2).map(|pair| pair[0] | (pair[1] << 16u32)).collect()
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
    let position = block * TILE[1] + me;
    let from = pair * (2 * STEP);
    let words: Vec<_> = (0..4).map(|t| reader.words(base, position, from + EIGHT * t)).collect();
    let (t, q, e) = (me % 16u32 / 4u32, (me / 2u32) % 2u32, me % 2u32);
    let column = me / 16u32 * 16u32 + q * 8u32 + t * 2u32 + e;
    // In words: 64 to the next eight columns, 4 to the next column.
    let to = at + column / 8u32 * 64u32 + column % 8u32 * 4u32;
    for (step, half) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let line: Vec<Val<'k>> = words.iter().map(|of_lane| of_lane[2 * step + half]).collect();
        out.store_vec(to + (step as u32 * (SLOT / 4) + half as u32 * 32), &line);
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
    let from = pair * (2 * STEP) + me % 4u32 * EIGHT;
    let (upper, lower) = (reader.words(base, row, from), reader.words(base, row + 8u32, from));
    for step in 0..2 {
        let halves = [2 * step, 2 * step + 1];
        let fragment = halves.map(|i| [upper[i], lower[i]]).concat();
        out.store_vec(at + me * 4u32 + step as u32 * (FRAGMENTS / 4), &fragment);
    }
}
