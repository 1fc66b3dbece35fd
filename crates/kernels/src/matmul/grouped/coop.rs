//! Grouped f16 matmuls by cooperative matrices: blocks of one expert's rows, wherever they are.

use std::fmt;

use olivine_ir::DType;
use olivine_kernel::{Access, Elem, MatrixUse};

use crate::launch::Launch;
use crate::math;
use crate::matmul::coop::block_store::{leave, store_block};
use crate::matmul::coop::blocks::{CoopTile, OperandPath};
use crate::matmul::coop::form::MatrixForm;
use crate::matmul::coop::multiply;
use crate::matmul::coop::operands::{DeclaredOperand, KLoop, OperandLoader, PreparedOperand, SubgroupSpan};
use crate::matmul::coop::staging::{PanelLayout, StagedPanel, StridedOperand};
use crate::matmul::epilogue::{BatchOffset, Destination, Epilogue};
use crate::matmul::grouped::sort::{ENTRY, Sorted};
use crate::matmul::problem::{Axis, Experts, Problem};
use crate::matmul::tiled::panel::TileSpan;
use crate::site::{Operand, Site, linear_group, recorded_class, rounded};

/// The name of the family in records.
const FAMILY: &str = "grouped_matmul";

/// Indices along K of all packed matrices that words are counted of in 32 bits.
const MOST_K: usize = 1 << 26;

/// Blocks of one expert's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupedTile {
    /// The largest block.
    pub(crate) blocks: CoopTile,
    /// What fewer rows are rounded up to, so that little is multiplied in vain; a block's rows are all subgroups'
    /// then.
    pub(crate) height: u32,
}

impl fmt::Display for GroupedTile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} h{}", self.blocks, self.height)
    }
}

/// For some dozen rows of an expert and more.
pub(crate) const TALL: GroupedTile = GroupedTile {
    blocks: CoopTile {
        m: 80,
        n: 128,
        rows: 80,
        columns: 32,
        slices: 1,
        k_step: 128,
        carry: false,
        band: 1,
        form: MatrixForm::CARD,
        ways: (OperandPath::Staged, OperandPath::Packed),
        ahead: 1,
    },
    height: 16,
};
/// For some hundred, by weights that are not stored.
pub(crate) const LARGE: GroupedTile = GroupedTile {
    blocks: CoopTile {
        m: 128,
        rows: 64,
        columns: 64,
        k_step: 32,
        ways: (OperandPath::Staged, OperandPath::Staged),
        ..TALL.blocks
    },
    height: 128,
};
pub(crate) const MEDIUM: GroupedTile =
    GroupedTile { blocks: CoopTile { m: 64, rows: 32, ..LARGE.blocks }, height: 64 };
/// For a few.
pub(crate) const FLAT: GroupedTile =
    GroupedTile { blocks: CoopTile { m: 32, rows: 32, ..TALL.blocks }, height: 16 };
/// The same, by weights that are not stored: sums are shared by subgroups.
const FLAT_GIVEN: GroupedTile = GroupedTile {
    blocks: CoopTile {
        m: 16,
        n: 64,
        rows: 16,
        columns: 64,
        slices: 8,
        ways: LARGE.blocks.ways,
        ..TALL.blocks
    },
    height: 16,
};
/// What the least capable device with matrices has room for.
pub(crate) const PLAIN: GroupedTile =
    GroupedTile { blocks: CoopTile { m: 32, n: 32, rows: 16, columns: 16, ..LARGE.blocks }, height: 32 };

/// The blocks for a matmul, if matrices serve it.
pub(crate) fn choose(problem: &Problem<'_>, experts: &Experts, site: &mut Site<'_>) -> Option<GroupedTile> {
    let halves = matches!(problem.dtype(), DType::F16 | DType::BF16);
    let form = MatrixForm::of(math::elem(problem.dtype()), &site.caps.target)?;
    // An order is one of rows, which must be contiguous along K.
    let ordered = problem.a.along(problem.m, problem.k) == Axis::K;
    if !halves || !ordered {
        return None;
    }
    let stored = problem.b.operand.stored && problem.packed.is_none();
    let k_number = problem.k_number();
    let fits = |cut: &GroupedTile| {
        let packed = cut.blocks.ways.1 == OperandPath::Packed;
        // Packed matrices follow each other in whole steps.
        let whole = k_number.is_multiple_of(cut.blocks.k_step as usize)
            && experts.count.saturating_mul(k_number) < MOST_K;
        (!packed || (stored && whole)) && cut.blocks.fits(problem, site.caps)
    };
    // Rows of an expert.
    let each = [24, 80].into_iter().filter(|rows| problem.m >= rows * experts.count).count();
    let given = match each {
        // Large blocks would not stay in the registers of subgroups with few matrices.
        _ if form != MatrixForm::CARD => [MEDIUM, PLAIN, PLAIN, PLAIN],
        0 => [FLAT_GIVEN, MEDIUM, LARGE, PLAIN],
        1 => [MEDIUM, LARGE, FLAT_GIVEN, PLAIN],
        _ => [LARGE, MEDIUM, FLAT_GIVEN, PLAIN],
    };
    let in_steps = |cut: GroupedTile| {
        [128, 64, 32].map(|k_step| GroupedTile { blocks: CoopTile { k_step, ..cut.blocks }, ..cut })
    };
    let packed = if each == 0 { [FLAT, TALL] } else { [TALL, FLAT] };
    let packed = packed.into_iter().filter(|_| form == MatrixForm::CARD);
    let with_form = |cut: GroupedTile| GroupedTile { blocks: CoopTile { form, ..cut.blocks }, ..cut };
    let preferred = packed.flat_map(in_steps).chain(given).map(with_form);
    let candidates: Vec<GroupedTile> = preferred.filter(fits).collect();
    let default = candidates.first().copied()?;
    let m = rounded(recorded_class(problem.m, site.is_tuned(FAMILY)));
    let [n, k, e] = [problem.columns(), k_number, experts.count].map(rounded);
    let class = format!("{} {m}x{n}x{k} e{e}", problem.dtype());
    Some(site.tuned(FAMILY, class, default, candidates))
}

/// Emits the matmul of ordered rows, block by block.
pub(crate) fn emit(
    problem: &Problem<'_>,
    experts: &Experts,
    GroupedTile { blocks, height }: GroupedTile,
    sorted: &Sorted,
    site: &mut Site<'_>,
) -> Result<(), String> {
    let (n, k_number) = (problem.columns(), problem.k_number());
    let across = n.div_ceil(blocks.n as usize);
    let groups = sorted.tiles * across;
    // Packed, all matrices are one above the other: the indices along K of an expert follow those of the one before.
    let (a_sizes, b_sizes) = ((problem.m, k_number.into()), (n.into(), (k_number * experts.count).into()));
    let b_given = PreparedOperand::of_b(blocks.ways.1, problem, b_sizes, site)?;

    let k = site.builder("grouped_matmul_coop", blocks.group());
    let l = Launch::new(&k);
    let rows = StridedOperand::new(&l, "a", &problem.a, a_sizes, &[]);
    let weights = DeclaredOperand::declare(&l, "b", &b_given, &problem.b, b_sizes, &[(k_number * n).into()]);
    let order = l.bind("order", Elem::U32, Access::Read, sorted.order);
    let entries = l.bind("entries", Elem::U32, Access::Read, sorted.entries);
    let (n, all) = (l.size("n", problem.n), l.size("k", problem.k));
    let count = l.size("expert_count", experts.count);
    let (across, total) = (l.size("across", across), l.size("groups", groups));
    let offset = |name, operand: &Operand| l.size(name, operand.offset);
    let offsets = (offset("a_offset", &problem.a.operand), offset("b_offset", &problem.b.operand));
    let epilogue = Epilogue::declare(&l, problem, &Destination::Target, n);
    let extras: Vec<_> = problem.extras.iter().map(|e| offset("extra_offset", &e.operand)).collect();
    let tail = !problem.k.is_multiple_of(blocks.k_step as usize);

    let id = linear_group(&k).min(total - 1u32);
    let tile = id / across;
    let entry = tile * ENTRY;
    let (expert, first) = (entries.load_uniform(entry), entries.load_uniform(entry + 1u32));
    let end = entries.load_uniform(entry + 2u32);
    let slots = PanelLayout::new(rows.along, blocks.m, blocks.k_step).len();
    let (form, elem) = (blocks.form, math::elem(problem.dtype()));
    let memory = form.panel(&k, elem, slots);
    // Blocks of each height are code of their own.
    for m in (height..=blocks.m).step_by(height as usize) {
        let above = first + (m - height);
        let here = if m == blocks.m { above.lt(end) } else { above.lt(end) & (first + m).ge(end) };
        let part = if blocks.rows == blocks.m { m } else { blocks.rows };
        k.if_(here, || {
            let known = expert.lt(count);
            let number = known.select(expert, k.u32(0));
            let wide = blocks.n / blocks.columns;
            let parts = m / part * wide;
            let (slice, subgroup) = (k.subgroup_id() / parts, k.subgroup_id() % parts);
            let column = (id - tile * across) * blocks.n;
            let (columns, step) = (blocks.columns, blocks.k_step);
            let down = TileSpan { first, end, order: Some(order) };
            let mine = subgroup / wide * part;
            let wide = SubgroupSpan {
                span: TileSpan { first: column, end: n, order: None },
                mine: subgroup % wide * columns,
                block: blocks.n,
                part: columns,
            };
            let own = step / blocks.slices;
            // Rows without an expert are empty sums.
            let k_end = known.select(all, k.u32(0));
            let past = if tail { (k_end + (step - 1)) / step * step } else { k_end };
            let (start, from) = (k.u32(0), slice * own);
            let ahead = blocks.ahead;
            let k_loop = KLoop { start, end: k_end, past, all, step, from, own, ahead, tail, form };
            let a = {
                let measure = PanelLayout::new(rows.along, m, step);
                let source = rows.source(offsets.0, all, tail);
                let words = StagedPanel::new(&k, memory, source, &down, measure, start);
                let (ty, count) = (form.matrix(elem, MatrixUse::A), part / form.side);
                OperandLoader::Panel { words, memory, slots, mine: (mine, from), ty, count }
            };
            let b_loop = match weights {
                DeclaredOperand::Strided(_) | DeclaredOperand::Blocks(_) => k_loop,
                DeclaredOperand::Packed { .. } => KLoop { from: from + number * all, ..k_loop },
            };
            let per_expert = if problem.packed.is_some() { n } else { all * n };
            let b_base = offsets.1 + number * per_expert;
            let b = OperandLoader::new(&k, &weights, form.matrix(elem, MatrixUse::B), &wide, &b_loop, b_base);
            let sums = multiply(&k, (&a, &b), (part / form.side, columns / form.side), &k_loop);
            let base = BatchOffset { out: k.u32(0), extras: extras.clone() };
            let out = leave(&k, form, [&a, &b], (subgroup, slice), (parts, blocks.slices));
            let sums = (sums.as_slice(), columns / form.side);
            let (row, column) = (first + mine, column + wide.mine);
            store_block(&out, sums, (row, end), column, epilogue.is_heavy(), |row, column, sums| {
                epilogue.store(&base, order.load(row), column, sums);
            });
        });
    }
    let bound = l.done();
    site.dispatch(k, bound, groups, problem.cost())
}
