//! How a factor's matrices come to the subgroups: through workgroup memory, or straight from a packed form.

use olivine_kernel::{Access, Buf, Builder, Elem, MatrixType, MatrixUse, Shared, Val};

use crate::launch::Launch;
use crate::math;
use crate::matmul::coop::blocks::Way;
use crate::matmul::coop::packed::{Fragments, Packed, pack};
use crate::matmul::coop::staging::{Declared, Measure, Words};
use crate::matmul::coop::{SIDE, matrix};
use crate::matmul::problem::Factor;
use crate::matmul::tiled::panel::Span;
use crate::site::{Memory, Site};

/// A factor as its kernel is given it.
pub(crate) enum Given {
    /// As it lies.
    Strided,
    /// As subgroups hold it.
    Packed(Memory, Packed),
}

impl Given {
    /// Prepares a factor of so many positions and depths for the way that it shall come.
    pub(crate) fn new(
        way: Way,
        factor: &Factor,
        sizes: (usize, usize),
        role: MatrixUse,
        site: &mut Site<'_>,
    ) -> Result<Given, String> {
        match way {
            Way::Panel => Ok(Given::Strided),
            Way::Packed => Given::packed(factor, sizes, role, site),
        }
    }

    /// Packs a factor of so many positions and depths: at load what is stored, anything else in every run.
    fn packed(
        factor: &Factor,
        (extent, depths): (usize, usize),
        role: MatrixUse,
        site: &mut Site<'_>,
    ) -> Result<Given, String> {
        let packed = Packed::new(extent, depths);
        let ty = matrix(math::elem(factor.operand.ty.dtype), role);
        let make = |site: &mut Site<'_>, to| pack(factor, (extent, depths), ty, to, site);
        let memory = if factor.operand.stored {
            let (outer, depth) = (factor.outer, factor.depth);
            let how = format!("{role:?} as lanes hold it, {extent} by {outer}, {depths} by {depth}");
            site.at_load(how, &factor.operand, packed.bytes(), make)?
        } else {
            let memory = site.scratch(packed.bytes());
            make(site, memory)?;
            memory
        };
        Ok(Given::Packed(memory, packed))
    }
}

/// A factor declared to its kernel.
pub(crate) enum Fed<'k> {
    Strided(Declared<'k>),
    Packed { buffer: Buf<'k>, panels: Val<'k>, lines: Val<'k> },
}

impl<'k> Fed<'k> {
    /// Declares a factor of so many positions and depths, whose batches are `jumps` apart.
    pub(crate) fn declare(
        l: &Launch<'k>,
        name: &str,
        given: &Given,
        factor: &Factor,
        sizes: (usize, usize),
        jumps: &[i64],
    ) -> Self {
        match given {
            Given::Strided => Fed::Strided(Declared::new(l, name, factor, sizes, jumps)),
            Given::Packed(memory, packed) => Fed::Packed {
                buffer: l.bind(name, Elem::U32, Access::Read, *memory),
                panels: l.size(&format!("{name}_panels"), packed.panels),
                lines: l.size(&format!("{name}_lines"), packed.lines),
            },
        }
    }
}

/// A subgroup's part of a factor.
pub(crate) struct Side<'k> {
    /// All of the workgroup's positions.
    pub(crate) span: Span<'k>,
    /// Where in them the subgroup's begin.
    pub(crate) mine: Val<'k>,
    /// How many the workgroup has.
    pub(crate) block: u32,
    /// How many the subgroup has.
    pub(crate) part: u32,
}

/// The summed axis, as a workgroup goes along it.
#[derive(Clone, Copy)]
pub(crate) struct Depths<'k> {
    pub(crate) start: Val<'k>,
    pub(crate) end: Val<'k>,
    /// Where the last step ends, which may be further on.
    pub(crate) past: Val<'k>,
    /// All there are, above 0.
    pub(crate) all: Val<'k>,
    pub(crate) step: u32,
    /// The subgroup's first depth in a step, and how many it has there.
    pub(crate) from: Val<'k>,
    pub(crate) own: u32,
    /// How many depths of matrices of packed factors are under way.
    pub(crate) ahead: u32,
    /// Whether the last step may be cut short.
    pub(crate) tail: bool,
}

impl<'k> Depths<'k> {
    /// The subgroup's depth so many matrices on from `depth` of the step at `at`, less its first in a step.
    pub(crate) fn ahead(&self, at: Val<'k>, depth: u32, matrices: u32) -> Val<'k> {
        let (number, each) = (depth / SIDE + matrices, self.own / SIDE);
        self.next(at, number / each * self.step + number % each * SIDE)
    }

    /// The depth `on` from `at`, or `at` again past the last step, so that loops stay straight-line code.
    pub(crate) fn next(&self, at: Val<'k>, on: u32) -> Val<'k> {
        let next = at + on;
        next.lt(self.past).select(next, at)
    }
}

/// Where the matrices of a factor come from.
pub(crate) enum Feed<'k> {
    /// A panel in workgroup memory.
    Panel {
        words: Words<'k>,
        memory: Shared<'k>,
        slots: u32,
        mine: (Val<'k>, Val<'k>),
        ty: MatrixType,
        count: u32,
    },
    /// Packed memory.
    Fragments(Fragments<'k>),
}

impl<'k> Feed<'k> {
    /// The feed of a side of the product whose matrix begins at `base`; what it holds first is `depths.start`.
    pub(crate) fn new(
        k: &'k Builder,
        fed: &Fed<'k>,
        ty: MatrixType,
        side: &Side<'k>,
        depths: &Depths<'k>,
        base: Val<'k>,
    ) -> Self {
        let count = side.part / SIDE;
        match fed {
            Fed::Strided(declared) => {
                let measure = Measure::new(declared.along, side.block, depths.step);
                let slots = measure.len();
                let memory = k.shared(Elem::U32, 4, slots);
                let source = declared.source(base, depths.all, depths.tail);
                let words = Words::new(k, memory, source, &side.span, measure, depths.start);
                Feed::Panel { words, memory, slots, mine: (side.mine, depths.from), ty, count }
            }
            Fed::Packed { buffer, panels, lines } => {
                let position = side.span.first + side.mine;
                let extent = (*panels, *lines);
                Feed::Fragments(Fragments::new(k, (*buffer, ty), (position, count), extent, depths))
            }
        }
    }

    /// The panel, if there is one.
    pub(crate) fn words(&self) -> Option<&Words<'k>> {
        match self {
            Feed::Panel { words, .. } => Some(words),
            Feed::Fragments(_) => None,
        }
    }

    /// Slots of the panel, if there is one.
    pub(crate) fn slots(&self) -> u32 {
        match self {
            Feed::Panel { slots, .. } => *slots,
            Feed::Fragments(_) => 0,
        }
    }

    /// All matrices side by side, `depth` on from `at`; packed ones are followed by those of the depths after.
    pub(crate) fn all(&self, depths: &Depths<'k>, at: Val<'k>, depth: u32) -> Vec<Val<'k>> {
        match self {
            Feed::Panel { count, .. } => (0..*count).filter_map(|i| self.panel_matrix(i, depth)).collect(),
            Feed::Fragments(fragments) => fragments.next(depths.ahead(at, depth, depths.ahead)),
        }
    }

    /// The i-th matrix of a panel.
    pub(crate) fn panel_matrix(&self, i: u32, depth: u32) -> Option<Val<'k>> {
        match self {
            Feed::Panel { words, mine, ty, .. } => {
                Some(words.matrix_from(*ty, (mine.0 + i * SIDE, mine.1), depth, ty.role == MatrixUse::B))
            }
            Feed::Fragments(_) => None,
        }
    }
}
