//! An operand packed as the lanes of subgroups hold its matrices: made once, then loaded straight into them.
//!
//! ```text
//!   panel (64 rows of A, or columns of B) ─ line (16 indices along K) ─ matrix (of 4 side by side) ─ lane ─ four words
//! ```
//! Which elements of a matrix a lane holds is up to the device. The packing kernel loads matrices as any other does
//! and stores the words of their lanes; the same words in the same lanes are the same matrix. Indices past the end of K
//! the last are zeros; positions past the last repeat others.

use std::rc::Rc;

use olivine_ir::Dim;
use olivine_kernel::{Access, Buf, Builder, Elem, MatrixType, MatrixUse, Scalar, Val, Var};

use crate::launch::Launch;
use crate::matmul::coop::operands::KLoop;
use crate::matmul::coop::staging::{PackedRows, PanelLayout, StagedPanel, StridedOperand};
use crate::matmul::coop::{LANES, SIDE};
use crate::matmul::problem::{Axis, MatrixOperand};
use crate::matmul::tiled::panel::TileSpan;
use crate::packed::weight::Weight;
use crate::site::{Memory, Site, linear_group};

/// Words of a matrix.
const WORDS: u32 = SIDE * SIDE / 2;
/// Words of a matrix in a lane.
const EACH: u8 = (WORDS / LANES) as u8;
/// Matrices side by side in a panel.
const ABREAST: u32 = 4;
/// Positions of a panel.
pub(crate) const PANEL: u32 = ABREAST * SIDE;
/// K of a block that is packed at once.
const PACK_K: u32 = 64;
/// What K of a packed operand is rounded up to.
#[track_caller]
pub(crate) fn whole(k_size: Dim) -> u32 {
    if k_size > 128 { 256 } else { 128 }
}

/// The shape of a packed operand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PackedShape {
    /// Panels.
    pub(crate) panels: Dim,
    /// Matrices along K.
    pub(crate) lines: Dim,
}

impl PackedShape {
    #[track_caller]
    pub(crate) fn new(extent: impl Into<Dim>, k_size: impl Into<Dim>) -> Self {
        let k_size = k_size.into();
        let lines = k_size.next_multiple_of(whole(k_size)).div_floor(SIDE);
        PackedShape { panels: extent.into().div_ceil(PANEL), lines }
    }

    pub(crate) fn bytes(self) -> Dim {
        self.panels * self.lines * (ABREAST * WORDS * 4)
    }
}

/// What is packed.
pub(crate) enum PackSource<'a> {
    /// Elements in memory.
    Elements(&'a MatrixOperand),
    /// A weight that is decoded on its way, as elements of a type.
    Weight(&'a Weight, Elem),
}

/// Emits the packing of an operand of `extent` by `k_size` into memory.
pub(crate) fn pack(
    operand: &PackSource<'_>,
    (extent, k_size): (Dim, Dim),
    ty: MatrixType,
    to: Memory,
    site: &mut Site<'_>,
) -> Result<(), String> {
    let packed = PackedShape::new(extent, k_size);
    let steps = (packed.lines * SIDE).div_floor(PACK_K);
    let k = site.builder("matmul_pack", ABREAST * LANES);
    let l = Launch::new(&k);
    let (strided, rows, offset) = match operand {
        PackSource::Elements(operand) => {
            let declared = StridedOperand::new(&l, "x", operand, (extent, k_size), &[]);
            (Some(declared), None, operand.operand.offset)
        }
        PackSource::Weight(weight, elem) => {
            (None, Some(PackedRows { weight: Rc::new(weight.declare(&l)), elem: *elem }), Dim::ZERO)
        }
    };
    let out = l.bind("packed", Elem::U32, Access::Write, to);
    let (positions, all) = (l.size("extent", extent), l.size("k_size", k_size));
    let groups = packed.panels * steps;
    let (steps, total) = (l.size("steps", steps), l.size("groups", groups));
    let base = l.size("offset", offset);
    let tail = !k_size.is_multiple_of(whole(k_size));
    let id = linear_group(&k);
    k.if_(id.lt(total), || {
        let panel = id / steps;
        let start = (id - panel * steps) * PACK_K;
        let along = strided.map_or(Axis::K, |declared| declared.along);
        let measure = PanelLayout::new(along, PANEL, PACK_K);
        let memory = k.shared(Elem::U32, 4, measure.len());
        let span = TileSpan { first: panel * PANEL, end: positions, order: None };
        let source = strided.map(|declared| declared.source(base, all, tail));
        let Some(source) = source.or_else(|| Some(rows.as_ref()?.source(base, all, tail))) else { return };
        let words = StagedPanel::new(&k, memory, source, &span, measure, start);
        words.put(start);
        k.barrier();
        // A subgroup to each of the matrices side by side.
        let mine = k.subgroup_id();
        for k_offset in (0..PACK_K).step_by(SIDE as usize) {
            let matrix = words.matrix(ty, mine * SIDE, k_offset, ty.role == MatrixUse::B);
            let line = panel * (steps * (PACK_K / SIDE)) + start / SIDE + k_offset / SIDE;
            let at = (line * ABREAST + mine) * WORDS + k.lane() * u32::from(EACH);
            out.store_vec(at, &matrix.matrix_words(EACH));
        }
    });
    let moved = packed.bytes() + extent * k_size * 2;
    let bound = l.done();
    site.dispatch(k, bound, groups, (0, moved))
}

/// The matrices of one subgroup in a packed operand, with the next ones along K in flight.
pub(crate) struct PackedFragments<'k> {
    k: &'k Builder,
    buffer: Buf<'k>,
    ty: MatrixType,
    /// The first word of this lane, as u64.
    base: Val<'k>,
    count: u32,
    /// Those in flight, the next ones first.
    held: Vec<Var<'k>>,
}

impl<'k> PackedFragments<'k> {
    /// The `count` matrices side by side from `position` on, a multiple of as many positions; `count` divides a
    /// panel.
    pub(crate) fn new(
        k: &'k Builder,
        (buffer, ty): (Buf<'k>, MatrixType),
        (position, count): (Val<'k>, u32),
        (panels, lines): (Val<'k>, Val<'k>),
        k_loop: &KLoop<'k>,
    ) -> Self {
        let wide = |x: Val<'k>| x.convert(Scalar::U64);
        // Blocks may reach past the last panel: what is computed there is not stored.
        let panel = (position / PANEL).min(panels - 1u32);
        let beside = position % PANEL / SIDE * WORDS + k.lane() * u32::from(EACH);
        let deep = k_loop.from * (ABREAST * WORDS / SIDE);
        let base = wide(panel) * wide(lines * (ABREAST * WORDS)) + wide(deep + beside);
        let mut fragments = PackedFragments { k, buffer, ty, base, count, held: Vec::new() };
        for step in 0..k_loop.ahead {
            let k_offset = k_loop.ahead(k_loop.start, 0, step);
            let matrices = fragments.load(k_offset);
            fragments.held.extend(matrices.into_iter().map(|m| k.var(m)));
        }
        fragments
    }

    fn load(&self, k_offset: Val<'k>) -> Vec<Val<'k>> {
        let k = self.k;
        let wide = |x: Val<'k>| x.convert(Scalar::U64);
        let line = self.base + wide(k_offset) * wide(k.u32(ABREAST * WORDS / SIDE));
        let one = |i: u32| {
            let words = self.buffer.load_vec(line + wide(k.u32(i * WORDS)), EACH);
            k.matrix_of_words(self.ty, &words)
        };
        (0..self.count).map(one).collect()
    }

    /// The matrices that have been in flight longest; those at another index along K follow them.
    pub(crate) fn next(&self, k_offset: Val<'k>) -> Vec<Val<'k>> {
        let held: Vec<Val<'k>> = self.held.iter().map(|v| v.get()).collect();
        let (now, later) = held.split_at(self.count as usize);
        let later = later.iter().copied().chain(self.load(k_offset));
        self.held.iter().zip(later).for_each(|(var, matrix)| var.set(matrix));
        now.to_vec()
    }
}
