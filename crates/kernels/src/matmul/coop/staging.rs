//! A tile of an operand staged through registers into workgroup memory, in the layout it has in memory: words of 16-bit
//! elements, or elements where the memory is of their type, which may be f32 then.
//!
//! The panel keeps the axis along which the operand is contiguous as its inner one: cooperative matrices read either
//! order. Lines are an odd number of 16-byte slots apart, so that the rows of a matrix meet different banks. The panel
//! of a convolution has its slots from wherever a table says.

use std::rc::Rc;

use olivine_ir::{DType, Dim};
use olivine_kernel::{Access, Buf, Builder, Elem, MatrixType, Scalar, Shared, Val, Var};

use crate::conv::taps;
use crate::conv::taps::Pattern;
use crate::launch::Launch;
use crate::math;
use crate::matmul::problem::{Axis, MatrixOperand};
use crate::matmul::tiled::panel::TileSpan;
use crate::packed::weight::{DeclaredWeight, Loaded};

/// Elements of a slot, 16 bytes of 16-bit ones.
pub(crate) const SLOT: u32 = 8;

/// An operand in memory.
pub(crate) struct StagedOperand<'k> {
    /// Words where whole slots can be loaded, otherwise single elements. Strides are not negative then.
    pub(crate) buffer: Buf<'k>,
    /// Elements of a word: two of 16 bits, or one of 32.
    pub(crate) per_word: u32,
    pub(crate) whole: bool,
    pub(crate) outer: Val<'k>,
    pub(crate) k_stride: Val<'k>,
    /// Index of the matrix' first element.
    pub(crate) base: Val<'k>,
    /// Size of K, above 0.
    pub(crate) k_size: Val<'k>,
    /// Whether the last step may be cut short.
    pub(crate) tail: bool,
    /// Where slots are, if not at strides.
    pub(crate) table: Option<Box<TapTable<'k>>>,
    /// What slots are decoded from, if they are packed: `base` counts rows then.
    pub(crate) packed: Option<Box<PackedRows<'k>>>,
}

/// Rows of packed bytes that are decoded on their way, as elements of a type.
#[derive(Clone)]
pub(crate) struct PackedRows<'k> {
    pub(crate) weight: Rc<DeclaredWeight<'k>>,
    pub(crate) elem: Elem,
}

impl<'k> PackedRows<'k> {
    /// The matrix whose first row is `base`; `k_size` are all of its own.
    pub(crate) fn source(&self, base: Val<'k>, k_size: Val<'k>, tail: bool) -> StagedOperand<'k> {
        let (buffer, one) = (self.weight.buffer(), base.builder().u32(1));
        let packed = Some(Box::new(self.clone()));
        StagedOperand {
            buffer,
            per_word: 2,
            whole: true,
            outer: one,
            k_stride: one,
            base,
            k_size,
            tail,
            table: None,
            packed,
        }
    }

    /// Two elements as a word.
    fn word(&self, low: Val<'k>, high: Val<'k>) -> Val<'k> {
        if self.elem == Elem::F16 {
            return low.pack_half(high);
        }
        let [low, high] = [low, high].map(|x| math::round_to(x, DType::BF16).bitcast(Scalar::U32));
        (low >> 16) | (high & 0xffff_0000u32)
    }
}

/// Where the slots of a position are: an index along K of the table, so many slots from the position's first, is a slot
/// of eight.
pub(crate) struct TapTable<'k> {
    pub(crate) taps: Rc<taps::DeclaredTaps<'k>>,
    pub(crate) class: Pattern<'k>,
    /// Slots of a pixel.
    pub(crate) pixel: Val<'k>,
}

impl<'k> TapTable<'k> {
    /// The first slot of a position.
    fn place(&self, base: Val<'k>, position: Val<'k>) -> Val<'k> {
        let offsets_of = self.taps.offsets_of(&self.class, base, &[position]);
        offsets_of.first().map_or(position, |pixel| pixel.index) * self.pixel
    }

    /// How far from there the slot at an index along K is; past the last index along K it is another's.
    fn offset(&self, k_offset: Val<'k>) -> Val<'k> {
        let slot = (k_offset / SLOT).min(self.class.k_size - 1u32);
        self.taps.entry(&self.class, slot).offset
    }
}

/// An operand declared to a kernel.
#[derive(Clone, Copy)]
pub(crate) struct StridedOperand<'k> {
    buffer: Buf<'k>,
    per_word: u32,
    pub(crate) along: Axis,
    whole: bool,
    outer: Val<'k>,
    k_stride: Val<'k>,
}

impl<'k> StridedOperand<'k> {
    /// Declares an operand of `(extent, k_size)`, whose batches are `jumps` apart. Slots are loaded whole
    /// where its neighbours along an axis come in whole slots at aligned steps.
    pub(crate) fn new(
        l: &Launch<'k>,
        name: &str,
        operand: &MatrixOperand,
        (extent, k_size): (Dim, Dim),
        jumps: &[Dim],
    ) -> Self {
        let along = operand.along(extent, k_size);
        let (unit, other, size) = match along {
            Axis::Outer => (operand.outer, operand.k_stride, extent),
            Axis::K => (operand.k_stride, operand.outer, k_size),
        };
        let own = [other, operand.operand.offset, size];
        let mut steps = jumps.iter().copied().chain(own);
        let whole = unit == 1 && steps.all(|s| s >= 0 && s.is_multiple_of(SLOT));
        let per_word = 4 / math::elem(operand.operand.ty.dtype).size();
        let elem = if whole || per_word == 1 { Elem::U32 } else { Elem::U16 };
        let buffer = l.bind(name, elem, Access::Read, operand.operand.memory);
        let stride = |axis: Axis, what: &str, value: Dim| {
            if whole && along == axis { l.k().u32(1) } else { l.stride(&format!("{name}_{what}"), value) }
        };
        let (outer, k_stride) =
            (stride(Axis::Outer, "outer", operand.outer), stride(Axis::K, "k_stride", operand.k_stride));
        StridedOperand { buffer, per_word, along, whole, outer, k_stride }
    }

    /// The matrix whose first element is at `base`; `k_size` are all of its own.
    pub(crate) fn source(self, base: Val<'k>, k_size: Val<'k>, tail: bool) -> StagedOperand<'k> {
        let StridedOperand { buffer, per_word, whole, outer, k_stride, .. } = self;
        StagedOperand {
            buffer,
            per_word,
            whole,
            outer,
            k_stride,
            base,
            k_size,
            tail,
            table: None,
            packed: None,
        }
    }
}

/// A panel's layout in workgroup memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PanelLayout {
    along: Axis,
    lines: u32,
    slots: u32,
}

impl PanelLayout {
    pub(crate) fn new(along: Axis, outer: u32, k_size: u32) -> Self {
        let (lines, inner) = match along {
            Axis::K => (outer, k_size),
            Axis::Outer => (k_size, outer),
        };
        PanelLayout { along, lines, slots: inner / SLOT }
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
struct SlotLoad<'k> {
    /// Its destination.
    slot: Val<'k>,
    /// Index of its elements, or of the first where it is loaded whole, at k = 0.
    rows: Vec<Val<'k>>,
    /// The index along K of its first element inside the panel.
    k_offset: Val<'k>,
    /// Index of its first word at k = 0, where it is loaded whole.
    word: Option<Val<'k>>,
}

/// A panel of a workgroup.
pub(crate) struct StagedPanel<'k> {
    k: &'k Builder,
    source: StagedOperand<'k>,
    shared: Shared<'k>,
    measure: PanelLayout,
    loads: Vec<SlotLoad<'k>>,
    held: Vec<Var<'k>>,
    /// Where the next step's slots are, if a table says so and an invocation's are all at one index along K.
    ahead: Option<Var<'k>>,
}

impl<'k> StagedPanel<'k> {
    /// The panel of a span of outer positions; what it holds first is the step at k = `start`.
    pub(crate) fn new(
        k: &'k Builder,
        shared: Shared<'k>,
        source: StagedOperand<'k>,
        span: &TileSpan<'k>,
        measure: PanelLayout,
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
            let (rows, k_offset) = match (measure.along, source.whole) {
                (Axis::K, _) => (vec![position(span.first + line, span.end - 1u32)], slot * SLOT),
                (Axis::Outer, true) => (vec![position(span.first + slot * SLOT, span.end - SLOT)], line),
                (Axis::Outer, false) => {
                    let first = span.first + slot * SLOT;
                    ((0..SLOT).map(|e| position(first + e, span.end - 1u32)).collect(), line)
                }
            };
            let strided = source.whole && source.table.is_none() && source.packed.is_none();
            let word = strided.then(|| (rows[0] + k_offset * source.k_stride) / source.per_word);
            SlotLoad { slot: at, rows, k_offset, word }
        };
        let loads = (0..each).map(load).collect();
        let mut panel = StagedPanel { k, source, shared, measure, loads, held: Vec::new(), ahead: None };
        panel.ahead =
            panel.offset(start).filter(|_| k.group().is_multiple_of(measure.slots)).map(|o| k.var(o));
        panel.held = panel.load(start).into_iter().map(|v| k.var(v)).collect();
        panel
    }

    /// Where a table has the first slot of an invocation in the step at k = `at`.
    fn offset(&self, at: Val<'k>) -> Option<Val<'k>> {
        Some(self.source.table.as_ref()?.offset(at + self.loads.first()?.k_offset))
    }

    /// The words of a slot from the `first` on.
    fn slot_words(&self, first: Val<'k>) -> Vec<Val<'k>> {
        let vectors = (0..SLOT / self.source.per_word).step_by(4);
        vectors.flat_map(|i| self.source.buffer.load_vec(if i == 0 { first } else { first + i }, 4)).collect()
    }

    /// The words of every slot of the step at k = `at`. Indices past the end of K repeat others.
    fn load(&self, at: Val<'k>) -> Vec<Val<'k>> {
        let source = &self.source;
        let within = |k_offset: Val<'k>, run: u32| {
            if source.tail { k_offset.min(source.k_size - run) } else { k_offset }
        };
        let mut words = Vec::with_capacity(4 * self.loads.len());
        if let Some(packed) = &source.packed {
            let weight = &packed.weight;
            for load in &self.loads {
                let row = weight.row(load.rows[0]);
                words.extend(weight.load(row, self.packed_place(at + load.k_offset), SLOT).0);
            }
            return words;
        }
        if let Some(table) = &source.table {
            let ahead = self.ahead.map(|ahead| ahead.get());
            for load in &self.loads {
                let offset = ahead.unwrap_or_else(|| table.offset(at + load.k_offset));
                words.extend(source.buffer.load_vec((load.rows[0] + offset) * 4u32, 4));
            }
            // Under way long before it is needed: the loads of the next step wait for it.
            if let (Some(ahead), Some(next)) = (self.ahead, self.offset(at + self.measure.slots * SLOT)) {
                ahead.set(next);
            }
            return words;
        }
        // The same for all invocations: a step on.
        let on = at * source.k_stride / source.per_word;
        for load in &self.loads {
            if let (Some(word), false) = (load.word, source.tail) {
                words.extend(self.slot_words(word + on));
                continue;
            }
            let k_offset = at + load.k_offset;
            if source.whole {
                let run = if self.measure.along == Axis::K { SLOT } else { 1 };
                let element = load.rows[0] + within(k_offset, run) * source.k_stride;
                words.extend(self.slot_words(element / source.per_word));
                continue;
            }
            let elements: Vec<Val<'k>> = match self.measure.along {
                Axis::K => {
                    (0..SLOT).map(|e| load.rows[0] + within(k_offset + e, 1) * source.k_stride).collect()
                }
                Axis::Outer => {
                    load.rows.iter().map(|row| *row + within(k_offset, 1) * source.k_stride).collect()
                }
            };
            let elements: Vec<Val<'k>> = elements.into_iter().map(|e| source.buffer.load(e)).collect();
            match source.per_word {
                1 => words.extend(elements),
                _ => words.extend(elements.chunks(2).map(|pair| pair[0] | (pair[1] << 16u32))),
            }
        }
        words
    }

    /// Loads the slots of the step at k = `at` into registers.
    pub(crate) fn fetch(&self, at: Val<'k>) {
        self.held.iter().zip(self.load(at)).for_each(|(var, value)| var.set(value));
    }

    /// The first element of a packed slot, that of another past the end of K.
    fn packed_place(&self, k_offset: Val<'k>) -> Val<'k> {
        if self.source.tail { k_offset.min((self.source.k_size - 1u32) / SLOT * SLOT) } else { k_offset }
    }

    /// The words of a packed slot; elements past the end of K are zeros.
    fn decoded(
        &self,
        packed: &PackedRows<'k>,
        load: &SlotLoad<'k>,
        at: Val<'k>,
        words: Vec<Val<'k>>,
    ) -> Vec<Val<'k>> {
        let (row, k_offset) = (load.rows[0], at + load.k_offset);
        let row = (packed.weight.row(row), row);
        let mut values = packed.weight.values(&Loaded(words), row, self.packed_place(k_offset), SLOT);
        if self.source.tail {
            for (i, value) in (0u32..).zip(&mut values) {
                *value = (k_offset + i).lt(self.source.k_size).select(*value, value.like(0.0));
            }
        }
        values.chunks(2).map(|pair| packed.word(pair[0], pair[1])).collect()
    }

    /// Puts the slots in registers, of the step at k = `at`, into workgroup memory; indices past the end of K are
    /// zeros.
    pub(crate) fn put(&self, at: Val<'k>) {
        for (load, held) in self.loads.iter().zip(self.held.chunks(self.held.len() / self.loads.len())) {
            let mut words: Vec<Val<'k>> = held.iter().map(|v| v.get()).collect();
            if let Some(packed) = &self.source.packed {
                words = self.decoded(packed, load, at, words);
            } else if self.source.tail {
                self.cut(at + load.k_offset, &mut words);
            }
            let put = || self.put_slot(load.slot, &words);
            // The last round may have slots for some invocations only.
            if (self.measure.lines * self.measure.slots).is_multiple_of(self.k.group()) {
                put();
            } else {
                self.k.if_(load.slot.lt(self.measure.len()), put);
            }
        }
    }

    /// Puts the words of a slot into workgroup memory: as they are, or as the elements in them.
    fn put_slot(&self, slot: Val<'k>, words: &[Val<'k>]) {
        let elements: Vec<Val<'k>> = match self.shared.elem() {
            Elem::F16 => words.iter().flat_map(|w| [w.unpack_half(0), w.unpack_half(1)]).collect(),
            Elem::F32 => words.iter().map(|w| w.bitcast(Scalar::F32)).collect(),
            _ => return self.shared.store_vec(slot, words),
        };
        for (i, element) in (0u32..).zip(elements) {
            self.shared.store(slot * SLOT + i, element);
        }
    }

    /// Zeros past the end of K.
    fn cut(&self, k_offset: Val<'k>, words: &mut [Val<'k>]) {
        let zero = self.k.u32(0);
        if self.source.whole || self.measure.along == Axis::Outer {
            let inside = k_offset.lt(self.source.k_size);
            words.iter_mut().for_each(|w| *w = inside.select(*w, zero));
            return;
        }
        for (i, word) in (0u32..).zip(words.iter_mut()) {
            if self.source.per_word == 1 {
                *word = (k_offset + i).lt(self.source.k_size).select(*word, zero);
                continue;
            }
            let first = k_offset + 2 * i;
            let high = (first + 1u32).lt(self.source.k_size).select(*word & 0xffff_0000u32, zero);
            let low = first.lt(self.source.k_size).select(*word & 0xffffu32, zero);
            *word = high | low;
        }
    }

    /// A matrix of the panel: `outer` positions on from the first, at `k_offset` along K.
    pub(crate) fn matrix(&self, ty: MatrixType, outer: Val<'k>, k_offset: u32, transposed: bool) -> Val<'k> {
        self.matrix_from(ty, (outer, self.k.u32(0)), k_offset, transposed)
    }

    /// The same, `k_offset` on from an index along K that subgroups have each for themselves.
    pub(crate) fn matrix_from(
        &self,
        ty: MatrixType,
        (outer, from): (Val<'k>, Val<'k>),
        k_offset: u32,
        transposed: bool,
    ) -> Val<'k> {
        let pitch = self.measure.pitch();
        let index = match self.measure.along {
            Axis::K => outer * pitch + from / SLOT + k_offset / SLOT,
            Axis::Outer => outer / SLOT + from * pitch + k_offset * pitch,
        };
        // A is read by rows where K is the inner axis, and B where it is the outer one.
        let column_major = (self.measure.along == Axis::Outer) != transposed;
        // Typed memory counts elements.
        let (index, stride) = match self.shared.lanes() {
            1 => (index * SLOT, pitch * SLOT),
            _ => (index, pitch),
        };
        self.shared.load_matrix(ty, index, self.k.u32(stride), column_major)
    }
}
