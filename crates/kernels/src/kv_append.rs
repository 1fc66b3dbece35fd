//! The key-value cache: rows written at a position that the device reads.
//!
//! The cache is copied to the result first; where both are the same bytes the copy is left out. Rows that fall outside
//! the cache are dropped. Rows of a packed cache become blocks, which eight invocations write together (`q8_0`).

use olivine_ir::Dim;
use olivine_ir::op::{HeadLayout, KvAppend};
use olivine_kernel::{Access, Buf, Elem, Val};

use super::elementwise::whole_copy;
use super::integers::Integers;
use super::matmul::{MatmulElements, SplitKPartials};
use crate::kernels;
use crate::launch::{Launch, bytes};
use crate::math;
use crate::pages::PageTable;
use crate::q8_0;
use crate::site::{Operand, Site, Target, linear_group};
use crate::walk::{Walk, Walker};

kernels! { |op, site|
    KvAppend => kv_append(op, site),
}

/// Lowers an append.
pub(crate) fn kv_append(op: &KvAppend, site: &mut Site<'_>) -> Result<(), String> {
    let [target] = &site.targets[..] else { return Err("needs a result".into()) };
    let to = Cache::new(op, &site.operands, target)?;
    let (cache, rows) = (site.operands[0].clone(), site.operands[1].clone());
    whole_copy(&cache, &to.target, site)?;
    let Some(moving) = CacheAppend::new(&rows, &to) else { return Ok(()) };

    let group = site.group_size(256);
    let k = site.builder("kv_append", group);
    let l = Launch::new(&k);
    moving.declare(&l, None)?.run(linear_group(&k) * group + k.local_index());
    let (count, cost, bound) = (moving.count, moving.cost(), l.done());
    site.dispatch(k, bound, count.div_ceil(group), cost)
}

/// A cache that rows go to.
#[derive(Clone)]
pub(super) struct Cache {
    pub(super) layout: HeadLayout,
    /// Where the first row goes, a number in memory; or one for each sequence.
    pub(super) position: Operand,
    /// The pages of each sequence, where the cache is a pool of them.
    pub(super) pages: Option<Operand>,
    pub(super) target: Target,
    /// Whether rows are packed: strides count blocks then.
    pub(super) packed: bool,
}

impl Cache {
    /// The cache that an append writes, of its operands.
    pub(super) fn new(op: &KvAppend, operands: &[Operand], target: &Target) -> Result<Self, String> {
        let (position, pages) = match operands {
            [_, _, position] if !op.pages => (position, None),
            [_, _, position, pages] if op.pages => (position, Some(pages.clone())),
            _ => return Err("needs a cache, rows and a position".into()),
        };
        let packed = q8_0::is_packed(&target.ty)?;
        Ok(Cache { layout: op.layout, position: position.clone(), pages, target: target.clone(), packed })
    }

    /// The axis of positions.
    fn axis(&self) -> usize {
        match self.layout {
            HeadLayout::Bshd => 1,
            HeadLayout::Bhsd => 2,
        }
    }

    /// Whether each sequence has its own position.
    fn per_sequence(&self) -> bool {
        self.position.ty.shape.rank() != 0
    }

    fn strides(&self) -> Vec<Dim> {
        let strides = self.target.ty.shape.stride_sizes();
        if self.packed { q8_0::block_strides(&strides) } else { strides }
    }

    /// What elements of rows are stored as.
    fn stored(&self, rows: Elem) -> Elem {
        if self.packed { q8_0::STORED } else { rows }
    }

    /// Declares where positions are, after what was bound before.
    fn positions<'k>(&self, l: &Launch<'k>, position: Integers<'k>) -> RowPositions<'k> {
        let (pool, positions) = (self.target.ty.shape.size(0), self.target.ty.shape.size(self.axis()));
        let pages = self.pages.as_ref().map(|pages| PageTable::declare(l, pages, pool, positions));
        let room = self.pages.as_ref().map_or(positions, |pages| pages.sizes()[1] * positions);
        RowPositions {
            per_sequence: self.per_sequence(),
            position,
            capacity: l.size("capacity", room),
            pages,
        }
    }

    /// Declares the cache for rows of elements of a type.
    pub(super) fn declare<'k>(&self, l: &Launch<'k>, elem: Elem) -> CacheRows<'k> {
        let strides = self.strides();
        let position = Integers::read(l, "position", &self.position);
        CacheRows {
            axis: self.axis(),
            packed: self.packed,
            sink: l.bind("cache", self.stored(elem), Access::Write, self.target.memory),
            positions: self.positions(l, position),
            strides: [0, 1, 2].map(|d| l.stride(&format!("to{d}"), strides[d])),
        }
    }
}

/// Where the positions of sequences are in a declared cache.
struct RowPositions<'k> {
    per_sequence: bool,
    /// Where a sequence's first row goes.
    position: Integers<'k>,
    capacity: Val<'k>,
    pages: Option<PageTable<'k>>,
}

impl<'k> RowPositions<'k> {
    /// Whether a sequence's row is inside, and its place among batches or pages and among their positions.
    fn at(&self, sequence: Val<'k>, row: Val<'k>) -> [Val<'k>; 3] {
        let first = if self.per_sequence { sequence } else { self.capacity.like(0.0) };
        let at = self.position.at(first).plus(row);
        let k = self.capacity.builder();
        let inside = at.below(self.capacity);
        let Some(pages) = &self.pages else { return [inside, sequence, at.low] };
        let none = k.u32(u32::MAX);
        let page = k.if_value(
            inside,
            || {
                let (page, _) = pages.find(sequence, at.low);
                page.below(pages.pool()).select(page.low, none)
            },
            || none,
        );
        [page.ne(none), page, pages.within(at.low)]
    }
}

/// A declared cache.
pub(super) struct CacheRows<'k> {
    axis: usize,
    /// Whether rows are packed.
    pub(super) packed: bool,
    pub(super) sink: Buf<'k>,
    positions: RowPositions<'k>,
    strides: [Val<'k>; 3],
}

impl<'k> CacheRows<'k> {
    /// Whether the row of a head is inside, and the element or block that it begins with.
    pub(super) fn at(&self, row: [Val<'k>; 3]) -> (Val<'k>, Val<'k>) {
        let [inside, batch, position] = self.positions.at(row[0], row[self.axis]);
        let mut index = row;
        (index[0], index[self.axis]) = (batch, position);
        let [b, i1, i2] = index;
        let [s0, s1, s2] = self.strides;
        (inside, b * s0 + i1 * s1 + i2 * s2)
    }
}

/// Rows on their way to a cache, to be declared in a kernel.
pub(super) struct CacheAppend<'a> {
    rows: &'a Operand,
    cache: &'a Cache,
    walk: Walk,
    elem: Elem,
    /// Words of an element.
    words: u32,
    /// Elements that move at once.
    width: usize,
    /// Whether those are one vector of the rows.
    whole: bool,
    /// Invocations to a position.
    each: Dim,
    /// Invocations.
    pub(super) count: Dim,
}

impl<'a> CacheAppend<'a> {
    /// Rows and where they go; `None` if there are none.
    pub(super) fn new(rows: &'a Operand, cache: &'a Cache) -> Option<Self> {
        // Elements move as whole bits: wide ones as two words. Those of packed caches are numbers.
        let (elem, words) = match rows.ty.dtype.size() {
            _ if cache.packed => (math::elem(rows.ty.dtype), 1),
            1 => (Elem::U8, 1),
            2 => (Elem::U16, 1),
            4 => (Elem::U32, 1),
            _ => (Elem::U32, 2),
        };
        let (axis, dims, mut to) = (cache.axis(), rows.sizes(), cache.strides());
        let whole = words == 1 && moves_fours(rows, if cache.packed { &[] } else { &to });
        let width = if whole || cache.packed { 4 } else { 1 };
        // One row of positions for every combination of the other dimensions.
        let mut inner = dims.to_vec();
        inner.remove(axis);
        if cache.packed {
            // The block of an element is found apart.
            to[3] = Dim::ZERO;
        }
        let without_axis = |steps: &[Dim]| {
            let mut steps = steps.to_vec();
            steps.remove(axis);
            steps
        };
        let mut to = without_axis(&to);
        if cache.pages.is_some() {
            // A sequence's page is found for each position.
            to[0] = Dim::ZERO;
        }
        let walk = Walk::new(&inner, &[without_axis(&rows.strides), to]);
        let each = walk.numel().div_floor(width);
        let count = each * dims[axis];
        (count != 0).then_some(CacheAppend { rows, cache, walk, elem, words, width, whole, each, count })
    }

    /// Operations and bytes.
    pub(super) fn cost(&self) -> (Dim, Dim) {
        (Dim::ZERO, 2 * bytes(&self.rows.ty))
    }

    /// Whether it reads the product whose parts wait to be summed.
    pub(super) fn reads(&self, partials: &SplitKPartials) -> bool {
        self.rows.memory == partials.target().memory
    }

    /// Declares what is read and written; `unsummed` is what is read, if that is still in parts.
    pub(super) fn declare<'k, 'm>(
        &'m self,
        l: &Launch<'k>,
        partials: Option<&'m SplitKPartials>,
    ) -> Result<DeclaredAppend<'k, 'm>, String> {
        let (axis, target) = (self.cache.axis(), &self.cache.target);
        let dims = self.rows.sizes();
        let by_sequence = self.cache.per_sequence() || self.cache.pages.is_some();
        // Sums are numbers and are rounded where they are stored.
        let (source, elem, words) = match partials {
            Some(partials) => {
                (MatmulElements::Summed(partials.declare(l)?), math::elem(self.rows.ty.dtype), 1)
            }
            None => {
                let rows = l.bind("rows", self.elem, Access::Read, self.rows.memory);
                (MatmulElements::Stored(rows), self.elem, self.words)
            }
        };
        let position = Integers::read(l, "position", &self.cache.position);
        Ok(DeclaredAppend {
            of: self,
            source,
            words,
            sink: l.bind("cache", self.cache.stored(elem), Access::Write, target.memory),
            fours: self.cache.packed.then(|| l.size("fours", dims[3].div_floor(4))),
            element: match self.rows.strides[3] {
                _ if self.whole || !self.cache.packed => None,
                stride => Some(l.stride("element", stride)),
            },
            n: l.size("n", self.count),
            each: l.size("each", self.each),
            of_sequence: by_sequence.then(|| l.size("of_sequence", self.each.div_floor(dims[0]))),
            positions: self.cache.positions(l, position),
            from_row: l.stride("from_row", self.rows.strides[axis]),
            to_row: l.stride("to_row", self.cache.strides()[axis]),
            to_page: self.cache.pages.as_ref().map(|_| l.stride("to_page", self.cache.strides()[0])),
            walker: self.walk.declare(l, &[self.rows.offset, Dim::ZERO]),
        })
    }
}

/// Declared rows.
pub(super) struct DeclaredAppend<'k, 'm> {
    of: &'m CacheAppend<'m>,
    source: MatmulElements<'k, 'm>,
    words: u32,
    sink: Buf<'k>,
    /// Fours of a row, where rows are packed.
    fours: Option<Val<'k>>,
    /// From one element of a row to the next, where four are no vector of a packed row.
    element: Option<Val<'k>>,
    n: Val<'k>,
    each: Val<'k>,
    /// Invocations to a position of one sequence, where each has its own.
    of_sequence: Option<Val<'k>>,
    positions: RowPositions<'k>,
    from_row: Val<'k>,
    to_row: Val<'k>,
    /// From one page to the next, where there are pages.
    to_page: Option<Val<'k>>,
    walker: Walker<'k>,
}

impl<'k> DeclaredAppend<'k, '_> {
    /// Does one invocation's part; the whole workgroup comes here.
    pub(super) fn run(&self, work: Val<'k>) {
        let k = work.builder();
        if let Some(fours) = self.fours {
            return self.pack(work, fours);
        }
        let (words, width) = (self.words, self.of.width);
        k.if_(work.lt(self.n), || {
            let (row, rest) = (work / self.each, work % self.each);
            let sequence = self.of_sequence.map_or(k.u32(0), |invocations| rest / invocations);
            let offsets = self.walker.at(rest * width);
            let from = offsets[0] + row * self.from_row;
            // Elements are read while their place is looked up.
            let values: Vec<Vec<Val<'k>>> =
                (0..words).map(|word| self.source.load(from * words + word, width)).collect();
            let [inside, page, position] = self.positions.at(sequence, row);
            let to = offsets[1] + position * self.to_row;
            let to = self.to_page.map_or(to, |step| to + page * step);
            k.if_(inside, || {
                (0..words).zip(&values).for_each(|(word, v)| self.sink.store_vec(to * words + word, v));
            });
        });
    }
}

impl<'k> DeclaredAppend<'k, '_> {
    /// Packs four elements of a row, together with the other invocations of their block.
    fn pack(&self, work: Val<'k>, fours: Val<'k>) {
        let k = work.builder();
        let is_any = work.lt(self.n);
        let work = work.min(self.n - 1u32);
        let (row, rest) = (work / self.each, work % self.each);
        let sequence = self.of_sequence.map_or(k.u32(0), |invocations| rest / invocations);
        let offsets = self.walker.at(rest * self.of.width);
        let from = offsets[0] + row * self.from_row;
        let values = match self.element {
            None => self.source.load(from, 4),
            Some(step) => (0..4u32).flat_map(|i| self.source.load(from + step * i, 1)).collect(),
        };
        // Sums become what they would be if they had been stored.
        let rounded = |x: Val<'k>| math::round_to(x, self.of.rows.ty.dtype);
        let values: Vec<Val<'k>> = values.into_iter().map(rounded).collect();
        let [inside, page, position] = self.positions.at(sequence, row);
        let to = offsets[1] + position * self.to_row;
        let to = self.to_page.map_or(to, |step| to + page * step);
        q8_0::store_four(self.sink, is_any & inside, to, rest % fours, &values);
    }
}

/// Whether four neighbouring elements of the rows are one vector in the rows and in the cache.
fn moves_fours(rows: &Operand, to: &[Dim]) -> bool {
    let dims = rows.sizes();
    let apart = |steps: &[Dim]| {
        let mut outer = dims.iter().zip(steps).take(3);
        // A dimension of size 1 is never stepped over.
        outer.all(|(size, step)| size.as_constant() == Some(1) || step.is_multiple_of(4))
    };
    let unit = rows.strides.last().is_some_and(|step| step.as_constant() == Some(1));
    let whole = dims.last().is_some_and(|d| d.is_multiple_of(4));
    unit && whole && rows.offset.is_multiple_of(4) && apart(&rows.strides) && apart(to)
}
