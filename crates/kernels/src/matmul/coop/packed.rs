//! A factor packed as the lanes of subgroups hold its matrices: made once, then loaded straight into them.
//!
//! ```text
//!   panel (64 rows of A, or columns of B) ─ line (16 depths) ─ matrix (of 4 side by side) ─ lane ─ four words
//! ```
//! Which elements of a matrix a lane holds is the device's secret. The packing kernel loads matrices as any other does
//! and stores the words of their lanes; whoever gives the same lanes the same words has the same matrix. Depths past
//! the last are zeros; positions past the last repeat others.

use olivine_kernel::{Access, Buf, Builder, Elem, MatrixType, MatrixUse, Scalar, Val, Var};

use crate::launch::Launch;
use crate::matmul::coop::operands::Depths;
use crate::matmul::coop::staging::{Declared, Measure, Words};
use crate::matmul::coop::{LANES, SIDE};
use crate::matmul::problem::Factor;
use crate::matmul::tiled::panel::Span;
use crate::site::{Memory, Site, linear_group};

/// Words of a matrix.
const WORDS: u32 = SIDE * SIDE / 2;
/// Words of a matrix in a lane.
const EACH: u8 = (WORDS / LANES) as u8;
/// Matrices side by side in a panel.
const ABREAST: u32 = 4;
/// Positions of a panel.
pub(crate) const PANEL: u32 = ABREAST * SIDE;
/// Depths of a block that is packed at once.
const DEEP: u32 = 64;
/// Packed factors of so many depths are whole in as many.
pub(crate) fn whole(depths: usize) -> usize {
    if depths > 128 { 256 } else { 128 }
}

/// The measures of a packed factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packed {
    /// Panels.
    pub(crate) panels: usize,
    /// Depths of matrices.
    pub(crate) lines: usize,
}

impl Packed {
    pub(crate) fn new(extent: usize, depths: usize) -> Self {
        let lines = depths.next_multiple_of(whole(depths)) / SIDE as usize;
        Packed { panels: extent.div_ceil(PANEL as usize), lines }
    }

    pub(crate) fn bytes(self) -> u64 {
        self.panels as u64 * self.lines as u64 * u64::from(ABREAST * WORDS * 4)
    }
}

/// Emits the packing of a factor of `extent` positions and `depths` depths into memory.
pub(crate) fn pack(
    factor: &Factor,
    (extent, depths): (usize, usize),
    ty: MatrixType,
    to: Memory,
    site: &mut Site<'_>,
) -> Result<(), String> {
    let packed = Packed::new(extent, depths);
    let steps = packed.lines as u32 * SIDE / DEEP;
    let k = site.builder("matmul_pack", ABREAST * LANES);
    let l = Launch::new(&k);
    let declared = Declared::new(&l, "x", factor, (extent, depths), &[]);
    let out = l.bind("packed", Elem::U32, Access::Write, to);
    let (positions, all) = (l.size("extent", extent), l.size("depths", depths));
    let (steps, total) = (l.size("steps", steps as usize), l.size("groups", packed.panels * steps as usize));
    let base = l.size("offset", factor.operand.offset);
    let tail = !depths.is_multiple_of(whole(depths));
    let id = linear_group(&k);
    k.if_(id.lt(total), || {
        let panel = id / steps;
        let start = (id - panel * steps) * DEEP;
        let measure = Measure::new(declared.along, PANEL, DEEP);
        let memory = k.shared(Elem::U32, 4, measure.len());
        let span = Span { first: panel * PANEL, end: positions, order: None };
        let words = Words::new(&k, memory, declared.source(base, all, tail), &span, measure, start);
        words.put(start);
        k.barrier();
        // A subgroup to each of the matrices side by side.
        let mine = k.subgroup_id();
        for depth in (0..DEEP).step_by(SIDE as usize) {
            let matrix = words.matrix(ty, mine * SIDE, depth, ty.role == MatrixUse::B);
            let line = panel * (steps * (DEEP / SIDE)) + start / SIDE + depth / SIDE;
            let at = (line * ABREAST + mine) * WORDS + k.lane() * u32::from(EACH);
            out.store_vec(at, &matrix.matrix_words(EACH));
        }
    });
    let moved = packed.bytes() + (extent * depths) as u64 * 2;
    let bound = l.done();
    site.dispatch(k, bound, packed.panels as u64 * u64::from(packed.lines as u32 * SIDE / DEEP), (0, moved))
}

/// The matrices of one subgroup in a packed factor, those of the next depths under way.
pub(crate) struct Fragments<'k> {
    k: &'k Builder,
    buffer: Buf<'k>,
    ty: MatrixType,
    /// The first word of this lane, as u64.
    base: Val<'k>,
    count: u32,
    /// Those under way, the next ones first.
    held: Vec<Var<'k>>,
}

impl<'k> Fragments<'k> {
    /// The `count` matrices side by side from `position` on, a multiple of as many positions; `count` divides a
    /// panel.
    pub(crate) fn new(
        k: &'k Builder,
        (buffer, ty): (Buf<'k>, MatrixType),
        (position, count): (Val<'k>, u32),
        (panels, lines): (Val<'k>, Val<'k>),
        depths: &Depths<'k>,
    ) -> Self {
        let wide = |x: Val<'k>| x.convert(Scalar::U64);
        // Blocks may reach past the last panel: what is computed there is not stored.
        let panel = (position / PANEL).min(panels - 1u32);
        let beside = position % PANEL / SIDE * WORDS + k.lane() * u32::from(EACH);
        let deep = depths.from * (ABREAST * WORDS / SIDE);
        let base = wide(panel) * wide(lines * (ABREAST * WORDS)) + wide(deep + beside);
        let mut fragments = Fragments { k, buffer, ty, base, count, held: Vec::new() };
        for step in 0..depths.ahead {
            let depth = depths.ahead(depths.start, 0, step);
            let matrices = fragments.load(depth);
            fragments.held.extend(matrices.into_iter().map(|m| k.var(m)));
        }
        fragments
    }

    fn load(&self, depth: Val<'k>) -> Vec<Val<'k>> {
        let k = self.k;
        let wide = |x: Val<'k>| x.convert(Scalar::U64);
        let line = self.base + wide(depth) * wide(k.u32(ABREAST * WORDS / SIDE));
        let one = |i: u32| {
            let words = self.buffer.load_vec(line + wide(k.u32(i * WORDS)), EACH);
            k.matrix_of_words(self.ty, &words)
        };
        (0..self.count).map(one).collect()
    }

    /// The matrices that have been under way longest; those at another depth follow them.
    pub(crate) fn next(&self, depth: Val<'k>) -> Vec<Val<'k>> {
        let held: Vec<Val<'k>> = self.held.iter().map(|v| v.get()).collect();
        let (now, later) = held.split_at(self.count as usize);
        let later = later.iter().copied().chain(self.load(depth));
        self.held.iter().zip(later).for_each(|(var, matrix)| var.set(matrix));
        now.to_vec()
    }
}
