//! The matmul of filters and the new image, by blocks of cooperative matrices.

use olivine_ir::Dim;
use std::rc::Rc;

use olivine_kernel::{Access, Buf, Elem, MatrixUse, Val};

use crate::conv::coop::Plan;
use crate::conv::coop::filters::Filters;
use crate::conv::taps;
use crate::conv::taps::Taps;
use crate::launch::{Launch, bytes};
use crate::math;
use crate::matmul::choice::Shape;
use crate::matmul::coop::block_store::{leave, store_block};
use crate::matmul::coop::blocks::CoopTile;
use crate::matmul::coop::multiply;
use crate::matmul::coop::operands::{DeclaredOperand, KLoop, OperandLoader, SubgroupSpan};
use crate::matmul::coop::staging::{PanelLayout, SLOT, StagedOperand, StagedPanel, TapTable};
use crate::matmul::coop::store::AccumulatorStore;
use crate::matmul::epilogue::{BatchOffset, Destination, Epilogue};
use crate::matmul::problem::{Axis, Problem};
use crate::matmul::stream_k::{Segment, StreamK, TileOrigin, keep};
use crate::matmul::tiled::panel::TileSpan;
use crate::matmul::tiled::{TileCoord, tile_coord_by};
use crate::site::{Memory, Site, linear_group};

/// The matmul of filters and the new image.
pub(crate) struct CoopGemm<'p> {
    pub(crate) problem: &'p Problem<'p>,
    pub(crate) plan: &'p Plan,
    pub(crate) blocks: CoopTile,
    pub(crate) filters: Filters,
    pub(crate) image: Memory,
    pub(crate) slots: Taps,
    pub(crate) table: Memory,
}

impl CoopGemm<'_> {
    /// Emits it, K in `splits` parts.
    pub(crate) fn emit(
        &self,
        splits: usize,
        destination: &Destination,
        site: &mut Site<'_>,
    ) -> Result<(), String> {
        let CoopGemm { problem, plan, blocks, .. } = self;
        let k_size = plan.k_size();
        let shape = Shape { m: problem.rows(), n: problem.n, k: k_size.into(), batches: Dim::ONE };
        let groups = blocks.count(&shape) * splits;
        let chunk = k_size.div_ceil(splits).next_multiple_of(blocks.k_step as usize);
        let k = site.builder("conv_coop", blocks.group());
        let l = Launch::new(&k);
        let block = self.declare(&l);
        let epilogue = block.ends.epilogue(&l, problem, destination);
        let total = l.size("groups", groups);
        let parts = (splits > 1).then(|| (l.size("chunk", chunk), k.u32(1)));
        let size = l.size("part", problem.target.ty.shape.sizes().numel());
        let id = linear_group(&k);
        k.if_(id.lt(total), || {
            let sizes = (block.ends.m, block.ends.n, block.all);
            let TileCoord { first, rest, start, end, .. } =
                tile_coord_by(id, sizes, (blocks.m, blocks.n), blocks.band, parts);
            let out = if splits > 1 { rest * size } else { k.u32(0) };
            let base = block.ends.base(out);
            let done = block.multiply(&l, first, (start, end));
            done.store(block.ends.m, epilogue.is_heavy(), |row, column, sums| {
                epilogue.store(&base, row, column, sums)
            });
        });
        let bound = l.done();
        site.dispatch(k, bound, groups, self.cost())
    }

    /// Emits it, the last blocks by stream-K.
    pub(crate) fn emit_stream_k(&self, stream_k: StreamK, site: &mut Site<'_>) -> Result<(), String> {
        let CoopGemm { problem, blocks, .. } = self;
        let parts = site.scratch(stream_k.bytes(*blocks));
        let k = site.builder("conv_stream_k", blocks.group());
        let l = Launch::new(&k);
        let block = self.declare(&l);
        let kept = l.bind("parts", Elem::F32, Access::Write, parts);
        let epilogue = block.ends.epilogue(&l, problem, &Destination::Target);
        let base = block.ends.base(k.u32(0));
        let declared = stream_k.declare(&l);
        declared.segments(&k, (block.all, blocks.k_step), |segment| {
            let Segment { block: number, start, end, is_whole, slot } = segment;
            let first = block.ends.first(number, *blocks);
            let done = block.multiply(&l, first, (start, end));
            k.if_else(
                is_whole,
                || {
                    done.store(block.ends.m, epilogue.is_heavy(), |row, column, sums| {
                        epilogue.store(&base, row, column, sums);
                    });
                },
                || {
                    done.store(block.ends.m, false, |row, column, sums| {
                        keep(kept, *blocks, slot, (row - first.0, column - first.1), sums);
                    });
                },
            );
        });
        let bound = l.done();
        site.dispatch(k, bound, stream_k.groups() as u64, self.cost())?;

        let group = site.group_size(256);
        let k = site.builder("conv_stream_k_fixup", group);
        let l = Launch::new(&k);
        let ends = self.declare_ends(&l);
        let epilogue = ends.epilogue(&l, problem, &Destination::Target);
        stream_k.join(&l, *blocks, parts, &epilogue, |number| TileOrigin {
            first: ends.first(number, *blocks),
            end: ends.m,
            base: ends.base(k.u32(0)),
        });
        let bound = l.done();
        site.dispatch(k, bound, stream_k.fixup_groups(*blocks, group), (0, stream_k.bytes(*blocks)))
    }

    /// Operations, and bytes that must move at least.
    fn cost(&self) -> (Dim, Dim) {
        let problem = self.problem;
        let flops = 2 * Dim::from(problem.rows()) * problem.n * problem.k;
        let operands = bytes(&problem.a.operand.ty) + bytes(&problem.b.operand.ty);
        (flops, operands + bytes(&problem.target.ty))
    }

    fn declare_ends<'k>(&self, l: &Launch<'k>) -> OutputMap<'k> {
        let problem = self.problem;
        OutputMap {
            taps: Rc::new(self.slots.declare(l, self.table)),
            m: l.size("m", problem.rows()),
            n: l.size("n", problem.n),
            extras: problem.batch.declare(l, &problem.offsets()).at(l.k().u32(0)).split_off(2),
        }
    }

    /// Declares what a kernel needs of it.
    fn declare<'k>(&self, l: &Launch<'k>) -> Block<'k> {
        let CoopGemm { problem, plan, blocks, filters, image, .. } = self;
        let k_size = plan.k_size();
        Block {
            filters: DeclaredOperand::declare(
                l,
                "a",
                &filters.prepared,
                &filters.operand,
                (problem.m, k_size.into()),
                &[],
            ),
            pixels: l.bind("pixels", Elem::U32, Access::Read, *image),
            each: l.size("slots", plan.padded / SLOT as usize),
            ends: self.declare_ends(l),
            all: l.size("k", k_size),
            blocks: *blocks,
            tail: !k_size.is_multiple_of(blocks.k_step as usize),
            elem: math::elem(problem.dtype()),
        }
    }
}

/// What a kernel needs to know where sums go.
struct OutputMap<'k> {
    taps: Rc<taps::DeclaredTaps<'k>>,
    m: Val<'k>,
    n: Val<'k>,
    /// Where the further operands begin.
    extras: Vec<Val<'k>>,
}

impl<'k> OutputMap<'k> {
    fn class(&self) -> taps::Pattern<'k> {
        self.taps.class(self.m.builder().u32(0), true)
    }

    /// The first row and column of a block; there is one batch.
    fn first(&self, block: Val<'k>, blocks: CoopTile) -> (Val<'k>, Val<'k>) {
        tile_coord_by(block, (self.m, self.n, self.n), (blocks.m, blocks.n), blocks.band, None).first
    }

    fn epilogue<'p>(
        &self,
        l: &Launch<'k>,
        problem: &'p Problem<'p>,
        destination: &Destination,
    ) -> Epilogue<'k, 'p> {
        Epilogue::declare(l, problem, destination, self.n).over(Rc::clone(&self.taps), self.class())
    }

    /// Where the batch begins, in the target or in parts.
    fn base(&self, out: Val<'k>) -> BatchOffset<'k> {
        BatchOffset { out, extras: self.extras.clone() }
    }
}

/// A block of the matmul in a kernel.
struct Block<'k> {
    filters: DeclaredOperand<'k>,
    pixels: Buf<'k>,
    /// Slots of a pixel.
    each: Val<'k>,
    ends: OutputMap<'k>,
    /// Size of K.
    all: Val<'k>,
    blocks: CoopTile,
    tail: bool,
    elem: Elem,
}

impl<'k> Block<'k> {
    /// The sums of a block from its first row and column on, over some indices along K. The whole workgroup must come
    /// here together.
    fn multiply(
        &self,
        l: &Launch<'k>,
        first: (Val<'k>, Val<'k>),
        (start, end): (Val<'k>, Val<'k>),
    ) -> BlockSums<'k> {
        let (k, Block { blocks, all, tail, .. }) = (l.k(), self);
        let (all, tail, step, zero) = (*all, *tail, blocks.k_step, k.u32(0));
        let subgroups = blocks.m / blocks.rows * (blocks.n / blocks.columns);
        let (slice, subgroup) = (k.subgroup_id() / subgroups, k.subgroup_id() % subgroups);
        let across = blocks.n / blocks.columns;
        let (rows, columns) = (blocks.rows, blocks.columns);
        let down = SubgroupSpan {
            span: TileSpan { first: first.0, end: self.ends.m, order: None },
            mine: subgroup / across * rows,
            block: blocks.m,
            part: rows,
        };
        let wide = subgroup % across * columns;
        let (own, form) = (step / blocks.slices, blocks.form);
        let from = slice * own;
        let past = if tail { (end + (step - 1)) / step * step } else { end };
        let k_loop = KLoop { start, end, past, all, step, from, own, ahead: blocks.ahead, tail, form };
        let a =
            OperandLoader::new(k, &self.filters, form.matrix(self.elem, MatrixUse::A), &down, &k_loop, zero);
        let b = {
            let measure = PanelLayout::new(Axis::K, blocks.n, step);
            let slots = measure.len();
            let memory = form.panel(k, self.elem, slots);
            let table =
                TapTable { taps: Rc::clone(&self.ends.taps), class: self.ends.class(), pixel: self.each };
            let source = StagedOperand {
                buffer: self.pixels,
                per_word: 2,
                whole: true,
                outer: zero,
                k_stride: zero,
                base: zero,
                k_size: all,
                tail,
                table: Some(Box::new(table)),
                packed: None,
            };
            let span = TileSpan { first: first.1, end: self.ends.n, order: None };
            let words = StagedPanel::new(k, memory, source, &span, measure, start);
            let ty = form.matrix(self.elem, MatrixUse::B);
            OperandLoader::Panel { words, memory, slots, mine: (wide, from), ty, count: columns / form.side }
        };
        let sums = multiply(k, (&a, &b), (rows / form.side, columns / form.side), &k_loop);
        let out = leave(k, form, [&a, &b], (subgroup, slice), (subgroups, blocks.slices));
        BlockSums { out, sums, wide: columns / form.side, at: (first.0 + down.mine, first.1 + wide) }
    }
}

/// A subgroup's sums, so many matrices wide, and where they begin.
struct BlockSums<'k> {
    out: AccumulatorStore<'k>,
    sums: Vec<Val<'k>>,
    wide: u32,
    at: (Val<'k>, Val<'k>),
}

impl<'k> BlockSums<'k> {
    fn store(&self, end: Val<'k>, is_long: bool, put: impl Fn(Val<'k>, Val<'k>, &[Val<'k>])) {
        let (row, column) = self.at;
        store_block(&self.out, (&self.sums, self.wide), (row, end), column, is_long, put);
    }
}
