//! A tile of a 16-bit factor on its way through registers into workgroup memory, in words, as it lies in memory.
//!
//! The panel keeps the axis along which the factor lies as its inner one: cooperative matrices read either order.
//! Lines are an odd number of 16-byte slots apart, so that the rows of a matrix meet different banks. The panel of
//! a convolution has its slots from wherever a table says.

use std::rc::Rc;

use olivine_kernel::{Access, Buf, Builder, Elem, MatrixType, Shared, Val, Var};

use crate::conv::taps;
use crate::conv::taps::Pattern;
use crate::launch::Launch;
use crate::matmul::problem::{Axis, Factor};
use crate::matmul::tiled::panel::Span;

/// 16-bit elements of a slot.
pub(crate) const SLOT: u32 = 8;

/// A factor of 16-bit elements in memory.
pub(crate) struct Source<'k> {
    /// Words where whole slots can be loaded, otherwise single elements. Strides are not negative then.
    pub(crate) buffer: Buf<'k>,
    pub(crate) whole: bool,
    pub(crate) outer: Val<'k>,
    pub(crate) depth: Val<'k>,
    /// Index of the matrix' first element.
    pub(crate) base: Val<'k>,
    /// All depths, above 0.
    pub(crate) depths: Val<'k>,
    /// Whether the last step may be cut short.
    pub(crate) tail: bool,
    /// Where slots are, if strides do not tell.
    pub(crate) table: Option<Box<Table<'k>>>,
}

/// Where the slots of a position are: a depth of the table, so many slots from the position's first, is a slot of
/// eight.
pub(crate) struct Table<'k> {
    pub(crate) taps: Rc<taps::Declared<'k>>,
    pub(crate) class: Pattern<'k>,
    /// Slots of a pixel.
    pub(crate) pixel: Val<'k>,
}

impl<'k> Table<'k> {
    /// The first slot of a position.
    fn place(&self, base: Val<'k>, position: Val<'k>) -> Val<'k> {
        let spots = self.taps.spots(&self.class, base, &[position]);
        spots.first().map_or(position, |spot| spot.index) * self.pixel
    }

    /// How far from there the slot at a depth is; past the last depth it is another's.
    fn offset(&self, depth: Val<'k>) -> Val<'k> {
        let slot = (depth / SLOT).min(self.class.depths - 1u32);
        self.taps.entry(&self.class, slot).offset
    }
}

/// A factor of 16-bit elements, declared to a kernel.
#[derive(Clone, Copy)]
pub(crate) struct Declared<'k> {
    buffer: Buf<'k>,
    pub(crate) along: Axis,
    whole: bool,
    outer: Val<'k>,
    depth: Val<'k>,
}

impl<'k> Declared<'k> {
    /// Declares a factor of so many positions and depths, whose batches are `jumps` apart. Slots are loaded whole
    /// where its neighbours along an axis come in whole slots at aligned steps.
    pub(crate) fn new(
        l: &Launch<'k>,
        name: &str,
        factor: &Factor,
        (extent, depths): (usize, usize),
        jumps: &[i64],
    ) -> Self {
        let along = factor.along(extent, depths);
        let (unit, other, size) = match along {
            Axis::Outer => (factor.outer, factor.depth, extent),
            Axis::Depth => (factor.depth, factor.outer, depths),
        };
        let slot = i64::from(SLOT);
        let mut steps = jumps.iter().copied().chain([other, factor.operand.offset as i64, size as i64]);
        let whole = unit == 1 && steps.all(|s| s >= 0 && s % slot == 0);
        let elem = if whole { Elem::U32 } else { Elem::U16 };
        let buffer = l.bind(name, elem, Access::Read, factor.operand.memory);
        let stride = |axis: Axis, what: &str, value: i64| {
            if whole && along == axis { l.k().u32(1) } else { l.stride(&format!("{name}_{what}"), value) }
        };
        let (outer, depth) =
            (stride(Axis::Outer, "outer", factor.outer), stride(Axis::Depth, "depth", factor.depth));
        Declared { buffer, along, whole, outer, depth }
    }

    /// The matrix whose first element is at `base`; `depths` are all of its own.
    pub(crate) fn source(self, base: Val<'k>, depths: Val<'k>, tail: bool) -> Source<'k> {
        let Declared { buffer, whole, outer, depth, .. } = self;
        Source { buffer, whole, outer, depth, base, depths, tail, table: None }
    }
}

/// A panel's measures in workgroup memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measure {
    along: Axis,
    lines: u32,
    slots: u32,
}

impl Measure {
    pub(crate) fn new(along: Axis, outer: u32, depth: u32) -> Self {
        let (lines, inner) = match along {
            Axis::Depth => (outer, depth),
            Axis::Outer => (depth, outer),
        };
        Measure { along, lines, slots: inner / SLOT }
    }

    /// Slots from one line to the next.
    fn pitch(self) -> u32 {
        self.slots | 1
    }

    /// Slots in all.
    pub(crate) fn len(self) -> u32 {
        self.lines * self.pitch()
    }
}

/// A slot that an invocation carries.
struct Load<'k> {
    /// Where it goes.
    slot: Val<'k>,
    /// Index of its elements, or of the first where it is loaded whole, at depth 0.
    rows: Vec<Val<'k>>,
    /// The depth of its first element inside the panel.
    depth: Val<'k>,
    /// Index of its first word at depth 0, where it is loaded whole.
    word: Option<Val<'k>>,
}

/// A panel of a workgroup.
pub(crate) struct Words<'k> {
    k: &'k Builder,
    source: Source<'k>,
    shared: Shared<'k>,
    measure: Measure,
    loads: Vec<Load<'k>>,
    held: Vec<Var<'k>>,
    /// Where the next step's slots are, if a table tells and an invocation's are all at one depth.
    ahead: Option<Var<'k>>,
}

impl<'k> Words<'k> {
    /// The panel of a span of outer positions; what it holds first is the step at depth `start`.
    pub(crate) fn new(
        k: &'k Builder,
        shared: Shared<'k>,
        source: Source<'k>,
        span: &Span<'k>,
        measure: Measure,
        start: Val<'k>,
    ) -> Self {
        let each = (measure.lines * measure.slots).div_ceil(k.group());
        let load = |i: u32| {
            let number = k.local_index() + i * k.group();
            let (line, slot) = (number / measure.slots, number % measure.slots);
            let at = line * measure.pitch() + slot;
            let position = |position: Val<'k>, last: Val<'k>| {
                let position = position.min(last);
                let place = span.order.map_or(position, |order| order.load(position));
                match &source.table {
                    Some(table) => table.place(source.base, place),
                    None => source.base + place * source.outer,
                }
            };
            let (rows, depth) = match (measure.along, source.whole) {
                (Axis::Depth, _) => (vec![position(span.first + line, span.end - 1u32)], slot * SLOT),
                (Axis::Outer, true) => (vec![position(span.first + slot * SLOT, span.end - SLOT)], line),
                (Axis::Outer, false) => {
                    let first = span.first + slot * SLOT;
                    ((0..SLOT).map(|e| position(first + e, span.end - 1u32)).collect(), line)
                }
            };
            let strided = source.whole && source.table.is_none();
            let word = strided.then(|| (rows[0] + depth * source.depth) / 2u32);
            Load { slot: at, rows, depth, word }
        };
        let loads = (0..each).map(load).collect();
        let mut panel = Words { k, source, shared, measure, loads, held: Vec::new(), ahead: None };
        panel.ahead =
            panel.offset(start).filter(|_| k.group().is_multiple_of(measure.slots)).map(|o| k.var(o));
        panel.held = panel.load(start).into_iter().map(|v| k.var(v)).collect();
        panel
    }

    /// Where a table has the first slot of an invocation in the step at depth `at`.
    fn offset(&self, at: Val<'k>) -> Option<Val<'k>> {
        Some(self.source.table.as_ref()?.offset(at + self.loads.first()?.depth))
    }

    /// The four words of every slot of the step at depth `at`. Depths past the last repeat others.
    fn load(&self, at: Val<'k>) -> Vec<Val<'k>> {
        let source = &self.source;
        let within = |depth: Val<'k>, run: u32| {
            if source.tail { depth.min(source.depths - run) } else { depth }
        };
        let mut words = Vec::with_capacity(4 * self.loads.len());
        if let Some(table) = &source.table {
            let ahead = self.ahead.map(|ahead| ahead.get());
            for load in &self.loads {
                let offset = ahead.unwrap_or_else(|| table.offset(at + load.depth));
                words.extend(source.buffer.load_vec((load.rows[0] + offset) * 4u32, 4));
            }
            // Under way long before it is needed: the loads of the next step wait for it.
            if let (Some(ahead), Some(next)) = (self.ahead, self.offset(at + self.measure.slots * SLOT)) {
                ahead.set(next);
            }
            return words;
        }
        // The same for all invocations: a step on.
        let on = at * source.depth / 2u32;
        for load in &self.loads {
            if let (Some(word), false) = (load.word, source.tail) {
                words.extend(source.buffer.load_vec(word + on, 4));
                continue;
            }
            let depth = at + load.depth;
            if source.whole {
                let run = if self.measure.along == Axis::Depth { SLOT } else { 1 };
                let element = load.rows[0] + within(depth, run) * source.depth;
                words.extend(source.buffer.load_vec(element / 2u32, 4));
                continue;
            }
            let elements: Vec<Val<'k>> = match self.measure.along {
                Axis::Depth => {
                    (0..SLOT).map(|e| load.rows[0] + within(depth + e, 1) * source.depth).collect()
                }
                Axis::Outer => load.rows.iter().map(|row| *row + within(depth, 1) * source.depth).collect(),
            };
            let elements: Vec<Val<'k>> = elements.into_iter().map(|e| source.buffer.load(e)).collect();
            words.extend(elements.chunks(2).map(|pair| pair[0] | (pair[1] << 16u32)));
        }
        words
    }

    /// Loads the slots of the step at depth `at` into registers.
    pub(crate) fn fetch(&self, at: Val<'k>) {
        self.held.iter().zip(self.load(at)).for_each(|(var, value)| var.set(value));
    }

    /// Puts the slots in registers, of the step at depth `at`, into workgroup memory; depths past the last are zeros.
    pub(crate) fn put(&self, at: Val<'k>) {
        for (load, held) in self.loads.iter().zip(self.held.chunks(4)) {
            let mut words: Vec<Val<'k>> = held.iter().map(|v| v.get()).collect();
            if self.source.tail {
                self.cut(at + load.depth, &mut words);
            }
            let put = || self.shared.store_vec(load.slot, &words);
            // The last round may have slots for some invocations only.
            if (self.measure.lines * self.measure.slots).is_multiple_of(self.k.group()) {
                put();
            } else {
                self.k.if_(load.slot.lt(self.measure.len()), put);
            }
        }
    }

    /// Zeros in place of what lies past the last depth.
    fn cut(&self, depth: Val<'k>, words: &mut [Val<'k>]) {
        let zero = self.k.u32(0);
        if self.source.whole || self.measure.along == Axis::Outer {
            let inside = depth.lt(self.source.depths);
            words.iter_mut().for_each(|w| *w = inside.select(*w, zero));
            return;
        }
        for (i, word) in words.iter_mut().enumerate() {
            let first = depth + 2 * i;
            let high = (first + 1u32).lt(self.source.depths).select(*word & 0xffff_0000u32, zero);
            let low = first.lt(self.source.depths).select(*word & 0xffffu32, zero);
            *word = high | low;
        }
    }

    /// A matrix of the panel: `outer` positions on from the first, `depth` deep.
    pub(crate) fn matrix(&self, ty: MatrixType, outer: Val<'k>, depth: u32, transposed: bool) -> Val<'k> {
        self.matrix_from(ty, (outer, self.k.u32(0)), depth, transposed)
    }

    /// The same, `depth` on from a depth that subgroups have each for themselves.
    pub(crate) fn matrix_from(
        &self,
        ty: MatrixType,
        (outer, from): (Val<'k>, Val<'k>),
        depth: u32,
        transposed: bool,
    ) -> Val<'k> {
        let pitch = self.measure.pitch();
        let index = match self.measure.along {
            Axis::Depth => outer * pitch + from / SLOT + depth / SLOT,
            Axis::Outer => outer / SLOT + from * pitch + depth * pitch,
        };
        // A is read by rows where depths are the inner axis, and B where they are the outer one.
        let column_major = (self.measure.along == Axis::Outer) != transposed;
        self.shared.load_matrix(ty, index, self.k.u32(pitch), column_major)
    }
}
