//! x as right matrices in memory, as lanes hold them: made once for all matmuls that read the same x in the same order.
//!
//! ```text
//!   chunk (four runs of K) ─ step (four elements of each run) ─ 16 rows of x ─ lane ─ four words
//! ```
//! Elements past the end of K and rows past the last are zeros.

use olivine_ir::{DType, Dim};
use olivine_kernel::{Access, Builder, Elem, MatrixType, MatrixUse, Scalar, Val};

use super::{EACH, LANES, QUAD, SIDE, WORDS};
use crate::launch::Launch;
use crate::math;
use crate::matmul::problem::Problem;
use crate::packed::gemv::{RunShape, vector_lanes};
use crate::site::{Memory, Site, linear_group};

/// Subgroups of a workgroup.
const SUBGROUPS: u32 = 4;
/// Slots of four words from one row of x to the next on the way to a matrix.
const PITCH: u32 = 3;

/// How x is packed.
#[derive(Clone, Copy, Debug)]
pub(super) struct PackedX {
    pub(super) shape: RunShape,
    pub(super) elem: Elem,
    /// Chunks of K.
    pub(super) chunks: usize,
    /// Matrices side by side.
    pub(super) down: u32,
}

impl PackedX {
    /// Matrices along K in a chunk.
    pub(super) fn steps(self) -> u32 {
        self.shape.run / EACH
    }

    /// The type of the matrices.
    pub(super) fn matrix(self) -> MatrixType {
        MatrixType { elem: self.elem, rows: SIDE, columns: SIDE, role: MatrixUse::B }
    }

    fn matrices(self) -> usize {
        self.chunks * (self.steps() * self.down) as usize
    }

    /// Packs the x of a matmul, or finds it packed.
    pub(super) fn make(self, problem: &Problem<'_>, site: &mut Site<'_>) -> Result<Memory, String> {
        let how = format!("{self:?} of {}x{} by {}", problem.m, problem.k, problem.a.outer);
        let bytes = Dim::from(self.matrices()) * (WORDS * LANES * 4);
        site.shared(how, &problem.a.operand, bytes, |site, to| self.emit(problem, to, site))
    }

    /// A subgroup makes a matrix: a lane has eight elements of a row of x, two of each of four runs.
    fn emit(self, problem: &Problem<'_>, to: Memory, site: &mut Site<'_>) -> Result<(), String> {
        let PackedX { shape, elem, down, .. } = self;
        let steps = self.steps();
        let k = site.builder("pack_rows", SUBGROUPS * LANES);
        let l = Launch::new(&k);
        let x = l.read("x", &problem.a.operand);
        let out = l.bind("out", Elem::U32, Access::Write, to);
        let (m, k_size) = (l.size("m", problem.m), l.size("k", problem.k));
        let (outer, first) =
            (l.stride("x_row", problem.a.outer), l.stride("x_first", problem.a.operand.offset));
        let total = l.size("matrices", self.matrices());
        let memory = k.shared(Elem::U32, 4, SUBGROUPS * SIDE * PITCH);

        let work = linear_group(&k) * SUBGROUPS + k.subgroup_id();
        let number = work.min(total - 1u32);
        let (step, chunk) = (number / down % steps, number / (down * steps));
        let (column, half) = (k.lane() / 2u32, k.lane() % 2u32);
        let row = number % down * SIDE + column;
        let base = first + row.min(m - 1u32) * outer;
        // Elements `2·half` and the one after it of the step's four of each run.
        let within = offset(shape, step) + half * 2u32;
        let lanes = vector_lanes(problem, shape.run).min(2);
        let zero = k.f32(0.0);
        let mut words = Vec::new();
        for lane in 0..QUAD {
            let at = shape.first(chunk * QUAD + lane) + within;
            let mut pair = Vec::new();
            for i in (0..2).step_by(lanes as usize) {
                let inside = row.lt(m) & (at + i).lt(k_size);
                let loaded = x.load_vec(base + (at + i).min(k_size - lanes), lanes as u8);
                pair.extend(loaded.into_iter().map(|x| inside.select(x, zero)));
            }
            words.push(word(elem, pair[0], pair[1]));
        }
        let mine = k.subgroup_id() * (SIDE * PITCH);
        memory.store_vec(mine + column * PITCH + half, &words);
        k.subgroup_barrier();
        let matrix = memory.load_matrix(self.matrix(), mine, k.u32(PITCH), true);
        let words = matrix.matrix_words(WORDS as u8);
        k.if_(work.lt(total), || {
            out.store_vec(work * (WORDS * LANES) + k.lane() * WORDS, &words);
        });
        let moved = Dim::from(self.matrices()) * 512 + crate::launch::bytes(&problem.a.operand.ty);
        let bound = l.done();
        site.dispatch(k, bound, self.matrices().div_ceil(SUBGROUPS as usize) as u64, (0, moved))
    }
}

/// Where the first of a step's four elements is in a run.
fn offset<'k>(shape: RunShape, step: Val<'k>) -> Val<'k> {
    let at = step * EACH;
    // Neighbours in all steps, or in so many at a time.
    (0..shape.run / EACH)
        .map(|i| shape.offset(i * EACH) - i * EACH)
        .enumerate()
        .filter(|(_, more)| *more > 0)
        .fold(at, |found, (i, more)| step.eq(i as u32).select(at + more, found))
}

/// Two elements of 16 bits in a word.
fn word<'k>(elem: Elem, low: Val<'k>, high: Val<'k>) -> Val<'k> {
    if elem == Elem::F16 {
        return low.pack_half(high);
    }
    let [low, high] = [low, high].map(|x| math::round_to(x, DType::BF16).bitcast(Scalar::U32));
    (low >> 16) | (high & 0xffff_0000u32)
}

/// The matrices of packed x that a kernel reads.
pub(super) struct DeclaredX<'k> {
    k: &'k Builder,
    words: olivine_kernel::Buf<'k>,
    of: PackedX,
}

impl<'k> DeclaredX<'k> {
    pub(super) fn declare(l: &Launch<'k>, of: PackedX, memory: Memory) -> Self {
        DeclaredX { k: l.k(), words: l.bind("x", Elem::U32, Access::Read, memory), of }
    }

    /// The lane's first word of a chunk.
    pub(super) fn chunk(&self, chunk: Val<'k>) -> Val<'k> {
        let each = self.of.steps() * self.of.down * (WORDS * LANES);
        // Addresses of neighbours differ by constants then, which no wrapping can break.
        (chunk * each + self.k.lane() * WORDS).convert(Scalar::U64)
    }

    /// The matrices of a step of the chunk whose first word is at `first`, side by side.
    pub(super) fn step(&self, first: Val<'k>, step: u32) -> Vec<Val<'k>> {
        let one = |i: u32| {
            let on = self.k.u32((step * self.of.down + i) * (WORDS * LANES)).convert(Scalar::U64);
            self.k.matrix_of_words(self.of.matrix(), &self.words.load_vec(first + on, WORDS as u8))
        };
        (0..self.of.down).map(one).collect()
    }
}
