//! The key-value cache: rows written at a position that the device reads.
//!
//! The cache is copied to the result first; where both are the same bytes the copy is left out. Rows that fall outside
//! the cache are dropped.

use olivine_ir::Dim;
use olivine_ir::op::{HeadLayout, KvAppend};
use olivine_kernel::{Access, Buf, Elem, Val};

use super::elementwise::whole_copy;
use super::integers::Integers;
use super::matmul::{MatmulElements, SplitKPartials};
use crate::kernels;
use crate::launch::{Launch, bytes};
use crate::math;
use crate::site::{Operand, Site, Target, linear_group};
use crate::walk::{Walk, Walker};

kernels! { |op, site|
    KvAppend => kv_append(op, site),
}

/// Lowers an append.
pub(crate) fn kv_append(op: &KvAppend, site: &mut Site<'_>) -> Result<(), String> {
    let ([cache, rows, position], [target]) = (&site.operands[..], &site.targets[..]) else {
        return Err("needs a cache, rows and a position".into());
    };
    let (cache, rows) = (cache.clone(), rows.clone());
    let to = Cache { layout: op.layout, position: position.clone(), target: target.clone() };
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
    pub(super) target: Target,
}

impl Cache {
    /// The axis of positions.
    fn axis(&self) -> usize {
        match self.layout {
            HeadLayout::Bshd => 1,
            HeadLayout::Bhsd => 2,
        }
    }

    /// Whether each sequence has its own position.
    fn per_sequence(&self) -> bool {
        self.position.ty.shape.rank() > 0
    }

    fn strides(&self) -> Vec<Dim> {
        self.target.ty.shape.stride_sizes()
    }

    /// Rows that there is room for.
    fn capacity(&self) -> Dim {
        self.target.ty.shape.size(self.axis())
    }

    /// Declares the cache as elements of a type.
    pub(super) fn declare<'k>(&self, l: &Launch<'k>, elem: Elem) -> CacheRows<'k> {
        let strides = self.strides();
        CacheRows {
            axis: self.axis(),
            per_sequence: self.per_sequence(),
            position: Integers::read(l, "position", &self.position),
            sink: l.bind("cache", elem, Access::Write, self.target.memory),
            capacity: l.size("capacity", self.capacity()),
            strides: [0, 1, 2].map(|d| l.stride(&format!("to{d}"), strides[d])),
        }
    }
}

/// A declared cache.
pub(super) struct CacheRows<'k> {
    axis: usize,
    per_sequence: bool,
    position: Integers<'k>,
    sink: Buf<'k>,
    capacity: Val<'k>,
    strides: [Val<'k>; 3],
}

impl<'k> CacheRows<'k> {
    /// Gives `put` the cache and where the row of a head begins in it, if it is inside.
    pub(super) fn at(&self, row: [Val<'k>; 3], put: impl FnOnce(Buf<'k>, Val<'k>)) {
        let sequence = if self.per_sequence { row[0] } else { self.capacity.like(0.0) };
        let at = self.position.at(sequence).plus(row[self.axis]);
        self.capacity.builder().if_(at.below(self.capacity), || {
            let mut places = row;
            places[self.axis] = at.low;
            let [b, i1, i2] = places;
            let [s0, s1, s2] = self.strides;
            put(self.sink, b * s0 + i1 * s1 + i2 * s2);
        });
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
    /// Invocations to a position.
    each: Dim,
    /// Invocations.
    pub(super) count: Dim,
}

impl<'a> CacheAppend<'a> {
    /// Rows and where they go; `None` if there are none.
    pub(super) fn new(rows: &'a Operand, cache: &'a Cache) -> Option<Self> {
        // Elements move as whole bits: wide ones as two words.
        let (elem, words) = match rows.ty.dtype.size() {
            1 => (Elem::U8, 1),
            2 => (Elem::U16, 1),
            4 => (Elem::U32, 1),
            _ => (Elem::U32, 2),
        };
        let (axis, dims, to) = (cache.axis(), rows.sizes(), cache.strides());
        let width = if words == 1 && moves_fours(rows, &to) { 4 } else { 1 };
        // One row of positions for every combination of the other dimensions.
        let mut inner = dims.to_vec();
        inner.remove(axis);
        let without_axis = |steps: &[Dim]| {
            let mut steps = steps.to_vec();
            steps.remove(axis);
            steps
        };
        let walk = Walk::new(&inner, &[without_axis(&rows.strides), without_axis(&to)]);
        let each = walk.numel().div_floor(width);
        let count = each * dims[axis];
        (count > 0).then_some(CacheAppend { rows, cache, walk, elem, words, width, each, count })
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
        let axis = self.cache.axis();
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
        Ok(DeclaredAppend {
            of: self,
            source,
            words,
            position: Integers::read(l, "position", &self.cache.position),
            sink: l.bind("cache", elem, Access::Write, self.cache.target.memory),
            n: l.size("n", self.count),
            each: l.size("each", self.each),
            of_sequence: self
                .cache
                .per_sequence()
                .then(|| l.size("of_sequence", self.each.div_floor(self.rows.ty.shape.size(0)))),
            capacity: l.size("capacity", self.cache.capacity()),
            from_row: l.stride("from_row", self.rows.strides[axis]),
            to_row: l.stride("to_row", self.cache.strides()[axis]),
            walker: self.walk.declare(l, &[self.rows.offset, Dim::ZERO]),
        })
    }
}

/// Declared rows.
pub(super) struct DeclaredAppend<'k, 'm> {
    of: &'m CacheAppend<'m>,
    source: MatmulElements<'k, 'm>,
    words: u32,
    position: Integers<'k>,
    sink: Buf<'k>,
    n: Val<'k>,
    each: Val<'k>,
    /// Invocations to a position of one sequence, where each has its own.
    of_sequence: Option<Val<'k>>,
    capacity: Val<'k>,
    from_row: Val<'k>,
    to_row: Val<'k>,
    walker: Walker<'k>,
}

impl<'k> DeclaredAppend<'k, '_> {
    /// Does one invocation's part.
    pub(super) fn run(&self, work: Val<'k>) {
        let k = work.builder();
        let (words, width) = (self.words, self.of.width);
        k.if_(work.lt(self.n), || {
            let (row, rest) = (work / self.each, work % self.each);
            let sequence = self.of_sequence.map_or(k.u32(0), |invocations| rest / invocations);
            let at = self.position.at(sequence).plus(row);
            k.if_(at.below(self.capacity), || {
                let places = self.walker.at(rest * width);
                let (from, to) = (places[0] + row * self.from_row, places[1] + at.low * self.to_row);
                for word in 0..words {
                    let values = self.source.load(from * words + word, width);
                    self.sink.store_vec(to * words + word, &values);
                }
            });
        });
    }
}

/// Whether four neighbouring elements of the rows are one vector in both places.
fn moves_fours(rows: &Operand, to: &[Dim]) -> bool {
    let dims = rows.sizes();
    let apart = |steps: &[Dim]| {
        dims.iter().zip(steps).take(3).all(|(size, step)| step.is_multiple_of(4) || *size <= 1)
    };
    let unit = rows.strides.last().is_some_and(|stride| *stride == 1);
    unit && dims.last().is_some_and(|d| d.is_multiple_of(4))
        && rows.offset.is_multiple_of(4)
        && apart(&rows.strides)
        && apart(to)
}
