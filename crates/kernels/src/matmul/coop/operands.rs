//! How an operand's matrices come to the subgroups: through workgroup memory, or straight from a packed form.

use olivine_ir::Dim;
use std::rc::Rc;

use olivine_kernel::{Access, Buf, Builder, Elem, MatrixType, MatrixUse, Shared, Val};

use crate::launch::{Launch, number};
use crate::math;
use crate::matmul::coop::blocks::OperandPath;
use crate::matmul::coop::form::MatrixForm;
use crate::matmul::coop::matrix;
use crate::matmul::coop::packed::{PackSource, PackedFragments, PackedShape, pack};
use crate::matmul::coop::staging::{PackedRows, PanelLayout, StagedOperand, StagedPanel, StridedOperand};
use crate::matmul::problem::{Axis, MatrixOperand, Problem};
use crate::matmul::tiled::panel::TileSpan;
use crate::packed::weight::Weight;
use crate::site::{Memory, Site};

/// An operand as its kernel is given it.
pub(crate) enum PreparedOperand {
    /// In its own layout.
    Strided,
    /// As subgroups hold it.
    Packed(Memory, PackedShape),
    /// In a block format.
    Blocks(Box<Weight>),
}

impl PreparedOperand {
    /// Prepares B for the way that it shall come.
    pub(crate) fn of_b(
        way: OperandPath,
        problem: &Problem<'_>,
        sizes: (Dim, Dim),
        site: &mut Site<'_>,
    ) -> Result<PreparedOperand, String> {
        let Some(weight) = &problem.packed else {
            return PreparedOperand::new(way, &problem.b, sizes, MatrixUse::B, site);
        };
        if way == OperandPath::Staged {
            return Ok(PreparedOperand::Blocks(Box::new(weight.clone())));
        }
        // Decoded once in every run: many rows share it.
        let elem = math::elem(problem.dtype());
        let packed = PackedShape::new(sizes.0, sizes.1);
        let memory = site.scratch(packed.bytes());
        pack(&PackSource::Weight(weight, elem), sizes, matrix(elem, MatrixUse::B), memory, site)?;
        Ok(PreparedOperand::Packed(memory, packed))
    }

    /// Prepares an operand of `(extent, k_size)` for the way that it shall come.
    pub(crate) fn new(
        way: OperandPath,
        operand: &MatrixOperand,
        sizes: (Dim, Dim),
        role: MatrixUse,
        site: &mut Site<'_>,
    ) -> Result<PreparedOperand, String> {
        match way {
            OperandPath::Staged => Ok(PreparedOperand::Strided),
            OperandPath::Packed => PreparedOperand::packed(operand, sizes, role, site),
        }
    }

    /// Packs an operand of `(extent, k_size)`: at load for weights, in every run for anything else.
    fn packed(
        operand: &MatrixOperand,
        (extent, k_size): (Dim, Dim),
        role: MatrixUse,
        site: &mut Site<'_>,
    ) -> Result<PreparedOperand, String> {
        let packed = PackedShape::new(extent, k_size);
        let ty = matrix(math::elem(operand.operand.ty.dtype), role);
        let source = PackSource::Elements(operand);
        let make = |site: &mut Site<'_>, to| pack(&source, (extent, k_size), ty, to, site);
        let memory = if operand.operand.stored {
            let (outer, k_offset) = (operand.outer, operand.k_stride);
            let how = format!("{role:?} as lanes hold it, {extent} by {outer}, {k_size} by {k_offset}");
            site.at_load(how, &operand.operand, number(packed.bytes()) as u64, make)?
        } else {
            let memory = site.scratch(packed.bytes());
            make(site, memory)?;
            memory
        };
        Ok(PreparedOperand::Packed(memory, packed))
    }
}

/// An operand declared to its kernel.
pub(crate) enum DeclaredOperand<'k> {
    Strided(StridedOperand<'k>),
    Blocks(PackedRows<'k>),
    Packed { buffer: Buf<'k>, panels: Val<'k>, lines: Val<'k> },
}

impl<'k> DeclaredOperand<'k> {
    /// Declares an operand of `(extent, k_size)`, whose batches are `jumps` apart.
    pub(crate) fn declare(
        l: &Launch<'k>,
        name: &str,
        given: &PreparedOperand,
        operand: &MatrixOperand,
        sizes: (Dim, Dim),
        jumps: &[Dim],
    ) -> Self {
        match given {
            PreparedOperand::Strided => {
                DeclaredOperand::Strided(StridedOperand::new(l, name, operand, sizes, jumps))
            }
            PreparedOperand::Blocks(weight) => DeclaredOperand::Blocks(PackedRows {
                weight: Rc::new(weight.declare(l)),
                elem: math::elem(operand.operand.ty.dtype),
            }),
            PreparedOperand::Packed(memory, packed) => DeclaredOperand::Packed {
                buffer: l.bind(name, Elem::U32, Access::Read, *memory),
                panels: l.size(&format!("{name}_panels"), packed.panels),
                lines: l.size(&format!("{name}_lines"), packed.lines),
            },
        }
    }
}

/// A subgroup's part of an operand.
pub(crate) struct SubgroupSpan<'k> {
    /// All of the workgroup's positions.
    pub(crate) span: TileSpan<'k>,
    /// Where in them the subgroup's begin.
    pub(crate) mine: Val<'k>,
    /// How many the workgroup has.
    pub(crate) block: u32,
    /// How many the subgroup has.
    pub(crate) part: u32,
}

/// K, as a workgroup goes along it.
#[derive(Clone, Copy)]
pub(crate) struct KLoop<'k> {
    pub(crate) start: Val<'k>,
    pub(crate) end: Val<'k>,
    /// Where the last step ends, which may be further on.
    pub(crate) past: Val<'k>,
    /// All there are, above 0.
    pub(crate) all: Val<'k>,
    pub(crate) step: u32,
    /// The subgroup's first index along K in a step, and how many it has there.
    pub(crate) from: Val<'k>,
    pub(crate) own: u32,
    /// How many matrices along K are loaded ahead, for packed operands.
    pub(crate) ahead: u32,
    /// Whether the last step may be cut short.
    pub(crate) tail: bool,
    /// The matrices that are multiplied.
    pub(crate) form: MatrixForm,
}

impl<'k> KLoop<'k> {
    /// The subgroup's index along K so many matrices on from `k_offset` of the step at `at`, less its first in a step.
    pub(crate) fn ahead(&self, at: Val<'k>, k_offset: u32, matrices: u32) -> Val<'k> {
        let side = self.form.side;
        let (number, each) = (k_offset / side + matrices, self.own / side);
        self.next(at, number / each * self.step + number % each * side)
    }

    /// The index along K `on` from `at`, or `at` again past the last step, so that loops stay straight-line code.
    pub(crate) fn next(&self, at: Val<'k>, on: u32) -> Val<'k> {
        let next = at + on;
        next.lt(self.past).select(next, at)
    }
}

/// Where the matrices of an operand come from.
pub(crate) enum OperandLoader<'k> {
    /// A panel in workgroup memory.
    Panel {
        words: StagedPanel<'k>,
        memory: Shared<'k>,
        slots: u32,
        mine: (Val<'k>, Val<'k>),
        ty: MatrixType,
        count: u32,
    },
    /// Packed memory.
    Packed(PackedFragments<'k>),
}

impl<'k> OperandLoader<'k> {
    /// The loader of an operand whose matrix begins at `base`; what it holds first is `k_loop.start`.
    pub(crate) fn new(
        k: &'k Builder,
        fed: &DeclaredOperand<'k>,
        ty: MatrixType,
        side: &SubgroupSpan<'k>,
        k_loop: &KLoop<'k>,
        base: Val<'k>,
    ) -> Self {
        let count = side.part / k_loop.form.side;
        let staged = |along: Axis, source: StagedOperand<'k>| {
            let measure = PanelLayout::new(along, side.block, k_loop.step);
            let slots = measure.len();
            let memory = k_loop.form.panel(k, ty.elem, slots);
            let words = StagedPanel::new(k, memory, source, &side.span, measure, k_loop.start);
            OperandLoader::Panel { words, memory, slots, mine: (side.mine, k_loop.from), ty, count }
        };
        match fed {
            DeclaredOperand::Strided(declared) => {
                staged(declared.along, declared.source(base, k_loop.all, k_loop.tail))
            }
            DeclaredOperand::Blocks(rows) => staged(Axis::K, rows.source(base, k_loop.all, k_loop.tail)),
            DeclaredOperand::Packed { buffer, panels, lines } => {
                let position = side.span.first + side.mine;
                let extent = (*panels, *lines);
                OperandLoader::Packed(PackedFragments::new(
                    k,
                    (*buffer, ty),
                    (position, count),
                    extent,
                    k_loop,
                ))
            }
        }
    }

    /// The panel, if there is one.
    pub(crate) fn words(&self) -> Option<&StagedPanel<'k>> {
        match self {
            OperandLoader::Panel { words, .. } => Some(words),
            OperandLoader::Packed(_) => None,
        }
    }

    /// Slots of the panel, if there is one.
    pub(crate) fn slots(&self) -> u32 {
        match self {
            OperandLoader::Panel { slots, .. } => *slots,
            OperandLoader::Packed(_) => 0,
        }
    }

    /// All matrices side by side, `k_offset` on from `at`; packed ones are followed by the next along K.
    pub(crate) fn all(&self, k_loop: &KLoop<'k>, at: Val<'k>, k_offset: u32) -> Vec<Val<'k>> {
        match self {
            OperandLoader::Panel { count, .. } => {
                (0..*count).filter_map(|i| self.panel_matrix(i, k_offset)).collect()
            }
            OperandLoader::Packed(fragments) => fragments.next(k_loop.ahead(at, k_offset, k_loop.ahead)),
        }
    }

    /// The i-th matrix of a panel.
    pub(crate) fn panel_matrix(&self, i: u32, k_offset: u32) -> Option<Val<'k>> {
        match self {
            OperandLoader::Panel { words, mine, ty, .. } => Some(words.matrix_from(
                *ty,
                (mine.0 + i * ty.rows, mine.1),
                k_offset,
                ty.role == MatrixUse::B,
            )),
            OperandLoader::Packed(_) => None,
        }
    }
}
