//! The operand that a convolution gathers: columns are pixels of the result, indices along K are taps of the input's
//! channels, and elements are found by a table instead of strides.
//!
//! A pixel has an index in the input, where its window begins; an index along K has an offset from there, and values
//! that say whether it is outside. Pixels come in classes, which have tables of their own: a convolution has one
//! class, a transposed one has as many as its strides leave residues.

use olivine_ir::{Dim, Tensor, product};
use olivine_kernel::{Access, Buf, Builder, Elem, Val};
use olivine_program::HostTable;

use crate::launch::Launch;
use crate::site::{Memory, Site};
use crate::walk::{Walk, Walker};

/// One spatial axis of the input.
#[derive(Clone, Debug)]
pub(crate) struct TapAxis {
    /// Elements of the input on it.
    pub(crate) size: Dim,
    /// Their stride in memory.
    pub(crate) step: Dim,
    /// Elements between neighbouring windows.
    pub(crate) stride: usize,
    /// Elements by which the first window begins before the input.
    pub(crate) lead: usize,
    /// Taps, and the distance between them; what bits need.
    pub(crate) kernel: usize,
    pub(crate) dilation: usize,
    /// Whether a tap may fall outside.
    pub(crate) padded: bool,
    /// Distance between neighbouring pixels of a class in the result.
    pub(crate) out: Dim,
}

/// How taps outside the input are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Bounds {
    /// There are none.
    Inside,
    /// A pixel knows for every tap of every axis whether it is outside, in a word.
    Bits,
    /// By coordinates.
    Coordinates,
}

/// How the table says where a tap is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TapForm {
    /// By its offset from the window's first element: the host writes another table for every size of the image.
    Offsets,
    /// By its channel and its distance along one or two axes, for all sizes of the image.
    Distances,
}

/// An index along K of a class.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tap {
    /// Its input channel in the group.
    pub(crate) channel: usize,
    /// The distance from the window's first coordinates.
    pub(crate) delta: [i64; 3],
    /// Which bits it asks for.
    pub(crate) bits: u32,
    /// Where its weight is, from the filter's first.
    pub(crate) weight: usize,
}

/// Pixels that have the same taps.
#[derive(Clone, Debug)]
pub(crate) struct Class {
    /// Pixels by axis.
    pub(crate) dims: Vec<Dim>,
    /// The first one's index in the result's image.
    pub(crate) out: Dim,
    /// What their sums are made of.
    pub(crate) taps: Vec<Tap>,
}

impl Class {
    fn pixels(&self) -> Dim {
        product(&self.dims)
    }
}

/// The gathered operand and where its columns go.
#[derive(Clone, Debug)]
pub(crate) struct Taps {
    pub(crate) axes: Vec<TapAxis>,
    pub(crate) bounds: Bounds,
    pub(crate) form: TapForm,
    pub(crate) images: Dim,
    /// Elements of a channel of the input.
    pub(crate) plane: Dim,
    /// What a channel and a step along each axis add to an offset of [`TapForm::Offsets`].
    pub(crate) offset_steps: (Dim, Vec<Dim>),
    /// Elements between images of the input, and of the result.
    pub(crate) image: (Dim, Dim),
    /// At least one.
    pub(crate) classes: Vec<Class>,
    /// Whether weights are found by the table; else they are in the order of K.
    pub(crate) by_weight: bool,
    /// The strides of further operands over images and over pixels.
    pub(crate) extra_images: Vec<Dim>,
    pub(crate) extra_pixels: Walk,
}

/// Words that describe a class in a table.
const CLASS_WORDS: usize = 8;

/// Bits of the word that says which taps are outside.
pub(crate) const MOST_BITS: usize = 32;

impl Taps {
    /// Columns of a class.
    pub(crate) fn columns(&self, class: &Class) -> Dim {
        self.images * class.pixels()
    }

    /// The most columns and K of a class.
    pub(crate) fn most(&self) -> (Dim, usize) {
        // The first class is of the first residues, which have the most pixels.
        let columns = self.classes.first().map(|c| self.columns(c)).unwrap_or_default();
        (columns, self.classes.iter().map(|c| c.taps.len()).max().unwrap_or(0))
    }

    /// Neighbouring pixels that are contiguous in the result and in all further operands.
    pub(crate) fn run(&self) -> Option<Dim> {
        let plain = self.classes.len() == 1 && !self.by_weight && self.extra_pixels.dims.len() <= 1;
        plain.then(|| self.classes[0].pixels())
    }

    /// Words of an index along K in the table.
    fn words(&self) -> usize {
        match (self.form, self.bounds) {
            (TapForm::Offsets, Bounds::Inside) => 1,
            (TapForm::Offsets, Bounds::Bits) => 2,
            (TapForm::Distances, Bounds::Inside | Bounds::Coordinates) if self.axes.len() == 1 => 2,
            _ => 4,
        }
    }

    /// The sizes that the table follows from: what offsets are made of, then numbers of every class.
    fn table_sizes(&self) -> Vec<Dim> {
        let mut sizes = Vec::new();
        if self.form == TapForm::Offsets {
            sizes.push(self.offset_steps.0);
            sizes.extend(&self.offset_steps.1);
        }
        for class in self.classes.iter().filter(|_| self.classes.len() > 1) {
            let inner = |axis: usize| class.dims.get(axis).copied().unwrap_or(Dim::ONE);
            sizes.extend([class.pixels(), self.columns(class), class.out, inner(1), inner(2)]);
        }
        sizes
    }

    /// The table for values of [`Taps::table_sizes`]: classes if there are several, indices along K of all classes,
    /// their weights.
    fn table(&self, sizes: &[usize]) -> Vec<u32> {
        let several = self.classes.len() > 1;
        let steps = if self.form == TapForm::Offsets { 1 + self.offset_steps.1.len() } else { 0 };
        let (steps, of_classes) = sizes.split_at(steps.min(sizes.len()));
        let mut words = Vec::new();
        let mut first = 0;
        for (class, numbers) in self.classes.iter().filter(|_| several).zip(of_classes.as_chunks::<5>().0) {
            let k_size = class.taps.len();
            words.extend([k_size as u32, first]);
            words.extend(numbers.iter().map(|number| *number as u32).chain([0]));
            first += k_size.max(1) as u32;
        }
        // A class without taps has one that is never summed, so that there is something to load.
        let nothing = Tap { channel: 0, delta: [0; 3], bits: 0, weight: 0 };
        let padded: Vec<Tap> = self
            .classes
            .iter()
            .flat_map(|c| c.taps.iter().copied().chain(c.taps.is_empty().then_some(nothing)))
            .collect();
        for tap in &padded {
            let channel = tap.channel as u32;
            let along = |(delta, step): (&i64, &usize)| delta.wrapping_mul(*step as i64);
            let along: i64 = tap.delta.iter().zip(steps.iter().skip(1)).map(along).sum();
            let across = steps.first().map_or(0, |step| tap.channel * step);
            let offset = (along + across as i64) as u32;
            let [d0, d1, d2] = tap.delta.map(|d| d as u32);
            match (self.form, self.bounds, self.axes.len()) {
                (TapForm::Offsets, Bounds::Inside, _) => words.push(offset),
                (TapForm::Offsets, Bounds::Bits, _) => words.extend([offset, tap.bits]),
                (TapForm::Offsets, Bounds::Coordinates, _) => words.extend([offset, d0, d1, d2]),
                (TapForm::Distances, Bounds::Bits, 1) => words.extend([channel, d0, tap.bits, 0]),
                (TapForm::Distances, _, 1) => words.extend([channel, d0]),
                (TapForm::Distances, Bounds::Bits, _) => words.extend([channel, d0, d1, tap.bits]),
                (TapForm::Distances, ..) => words.extend([channel, d0, d1, 0]),
            }
        }
        if self.by_weight {
            words.extend(padded.iter().map(|tap| tap.weight as u32));
        }
        words
    }

    /// Stores the table with the program.
    pub(crate) fn store(&self, site: &mut Site<'_>) -> Result<Memory, String> {
        let entries: usize = self.classes.iter().map(|c| c.taps.len().max(1)).sum();
        let classes = if self.classes.len() > 1 { self.classes.len() * CLASS_WORDS } else { 0 };
        let words = classes + entries * (self.words() + usize::from(self.by_weight));
        let taps = self.clone();
        let table = HostTable::of_sizes(self.table_sizes(), Dim::from(4 * words), move |sizes| {
            let words = taps.table(sizes);
            Tensor::new([words.len()], words).map_err(|e| e.to_string())
        })?;
        Ok(site.table(table))
    }

    /// Declares the numbers that a kernel needs.
    pub(crate) fn declare<'k>(&self, l: &Launch<'k>, table: Memory) -> DeclaredTaps<'k> {
        let k = l.k();
        let bits = self.bounds == Bounds::Bits;
        let axis = |(i, a): (usize, &TapAxis)| DeclaredAxis {
            size: l.size(&format!("size{i}"), a.size),
            step: if i + 1 == self.axes.len() { k.u32(1) } else { l.size(&format!("step{i}"), a.step) },
            stride: l.size(&format!("stride{i}"), a.stride),
            lead: if a.padded { l.size(&format!("lead{i}"), a.lead) } else { k.u32(0) },
            kernel: if bits { l.size(&format!("taps{i}"), a.kernel) } else { k.u32(0) },
            dilation: if bits { l.size(&format!("dilation{i}"), a.dilation) } else { k.u32(1) },
            padded: a.padded,
            out: l.size(&format!("out_step{i}"), a.out),
        };
        let axes: Vec<DeclaredAxis<'k>> = self.axes.iter().enumerate().map(axis).collect();
        let entries = if self.classes.len() > 1 { self.classes.len() * CLASS_WORDS } else { 0 };
        let count: usize = self.classes.iter().map(|c| c.taps.len().max(1)).sum();
        let only = (self.classes.len() == 1).then(|| &self.classes[0]).map(|class| Pattern {
            k_size: l.size("k_size", class.taps.len()),
            first: k.u32(0),
            pixels: l.size("pixels", class.pixels()),
            columns: l.size("columns", self.columns(class)),
            out: l.size("out_first", class.out),
            inner: (1..class.dims.len()).map(|i| l.size(&format!("inner{i}"), class.dims[i])).collect(),
        });
        DeclaredTaps {
            k,
            table: l.bind("table", Elem::U32, Access::Read, table),
            bounds: self.bounds,
            plane: (self.form == TapForm::Distances).then(|| l.size("plane", self.plane)),
            words: self.words() as u8,
            entries: if entries == 0 { k.u32(0) } else { l.size("entries", entries) },
            weights: self.by_weight.then(|| l.size("weights", entries + count * self.words())),
            image: l.size("image", self.image.0),
            out_image: l.size("out_image", self.image.1),
            strided: self.classes.len() > 1 || self.by_weight,
            axes,
            only,
            extra_images: self
                .extra_images
                .iter()
                .enumerate()
                .map(
                    |(i, s)| {
                        if s.as_constant() == Some(0) {
                            k.u32(0)
                        } else {
                            l.stride(&format!("x{i}_image"), *s)
                        }
                    },
                )
                .collect(),
            extra_pixels: self.extra_pixels.declare(l, &vec![0; self.extra_images.len()]),
        }
    }
}

struct DeclaredAxis<'k> {
    size: Val<'k>,
    step: Val<'k>,
    stride: Val<'k>,
    lead: Val<'k>,
    kernel: Val<'k>,
    dilation: Val<'k>,
    padded: bool,
    out: Val<'k>,
}

/// Taps in a kernel.
pub(crate) struct DeclaredTaps<'k> {
    k: &'k Builder,
    table: Buf<'k>,
    bounds: Bounds,
    /// Elements of a channel, where the table has distances instead of offsets.
    plane: Option<Val<'k>>,
    words: u8,
    /// Where indices along K begin in the table, and their weights.
    entries: Val<'k>,
    weights: Option<Val<'k>>,
    image: Val<'k>,
    out_image: Val<'k>,
    /// Whether neighbouring pixels of a class are apart in the result.
    strided: bool,
    axes: Vec<DeclaredAxis<'k>>,
    only: Option<Pattern<'k>>,
    extra_images: Vec<Val<'k>>,
    extra_pixels: Walker<'k>,
}

/// A class in a kernel.
#[derive(Clone)]
pub(crate) struct Pattern<'k> {
    pub(crate) k_size: Val<'k>,
    /// Its first index along K among all classes'.
    first: Val<'k>,
    pixels: Val<'k>,
    pub(crate) columns: Val<'k>,
    out: Val<'k>,
    /// Sizes of all axes but the outermost.
    inner: Vec<Val<'k>>,
}

/// A pixel in the input: where its window begins, and what says which taps are outside.
#[derive(Clone)]
pub(crate) struct PixelIndex<'k> {
    pub(crate) index: Val<'k>,
    pub(crate) bounds: Vec<Val<'k>>,
}

/// An index along K as a kernel holds it: its offset, and what says whether it is outside.
#[derive(Clone)]
pub(crate) struct TapEntry<'k> {
    pub(crate) offset: Val<'k>,
    pub(crate) bounds: Vec<Val<'k>>,
}

impl<'k> DeclaredTaps<'k> {
    /// A class by its number, which is the same in the whole workgroup if it is `uniform`.
    pub(crate) fn class(&self, number: Val<'k>, uniform: bool) -> Pattern<'k> {
        if let Some(only) = &self.only {
            return only.clone();
        }
        let word = |i: usize| {
            let at = number * CLASS_WORDS + i;
            if uniform { self.table.load_uniform(at) } else { self.table.load(at) }
        };
        Pattern {
            k_size: word(0),
            first: word(1),
            pixels: word(2),
            columns: word(3),
            out: word(4),
            inner: (1..self.axes.len()).map(|i| word(4 + i)).collect(),
        }
    }

    /// Image and pixel of a column.
    fn pixel(&self, class: &Pattern<'k>, column: Val<'k>) -> (Val<'k>, Val<'k>) {
        let image = column / class.pixels;
        (image, column - image * class.pixels)
    }

    /// A pixel's coordinates, outermost first.
    fn coordinates(&self, class: &Pattern<'k>, pixel: Val<'k>) -> Vec<Val<'k>> {
        let mut at = Vec::with_capacity(self.axes.len());
        let mut rest = pixel;
        for size in class.inner.iter().rev() {
            let outer = rest / *size;
            at.push(rest - outer * *size);
            rest = outer;
        }
        at.push(rest);
        at.reverse();
        at
    }

    /// Where columns begin in the input.
    pub(crate) fn offsets_of(
        &self,
        class: &Pattern<'k>,
        base: Val<'k>,
        columns: &[Val<'k>],
    ) -> Vec<PixelIndex<'k>> {
        let mut found = Vec::with_capacity(columns.len());
        for column in columns {
            let (image, pixel) = self.pixel(class, *column);
            let mut index = base + image * self.image;
            let mut at = self.coordinates(class, pixel);
            for (c, axis) in at.iter_mut().zip(&self.axes) {
                // Before the first element it wraps, and back when a tap's offset is added.
                *c = *c * axis.stride - axis.lead;
                index = index + *c * axis.step;
            }
            found.push(PixelIndex { index, bounds: at });
        }
        match self.bounds {
            Bounds::Inside => found.iter_mut().for_each(|s| s.bounds.clear()),
            Bounds::Bits => self.to_bits(&mut found),
            Bounds::Coordinates => {}
        }
        found
    }

    /// Coordinates become a word with a bit for every tap of every axis that is outside.
    fn to_bits(&self, offsets_of: &mut [PixelIndex<'k>]) {
        let k = self.k;
        let words: Vec<_> = offsets_of.iter().map(|_| k.var(k.u32(0))).collect();
        let shift = k.var(k.u32(0));
        for (i, axis) in self.axes.iter().enumerate().filter(|(_, axis)| axis.padded) {
            k.for_(k.u32(0), axis.kernel, k.u32(1), |tap| {
                let bit = k.u32(1) << shift.get();
                for (word, pixel) in words.iter().zip(offsets_of.iter()) {
                    let outside = (pixel.bounds[i] + tap * axis.dilation).ge(axis.size);
                    word.set(word.get() | outside.select(bit, k.u32(0)));
                }
                shift.set(shift.get() + 1u32);
            });
        }
        for (pixel, word) in offsets_of.iter_mut().zip(words) {
            pixel.bounds = vec![word.get()];
        }
    }

    /// A class's index along K.
    pub(crate) fn entry(&self, class: &Pattern<'k>, k_offset: Val<'k>) -> TapEntry<'k> {
        let at = self.entries + (class.first + k_offset) * u32::from(self.words);
        let words = self.table.load_vec(at, self.words);
        let Some(plane) = self.plane else {
            let offset = words.first().copied().unwrap_or(k_offset);
            return TapEntry { offset, bounds: words.into_iter().skip(1).take(self.bound_words()).collect() };
        };
        let rank = self.axes.len();
        let offset = (0..rank).fold(words[0] * plane, |offset, i| offset + words[1 + i] * self.axes[i].step);
        let bounds = match self.bounds {
            Bounds::Inside => Vec::new(),
            Bounds::Bits => vec![words[1 + rank]],
            Bounds::Coordinates => words[1..=rank].to_vec(),
        };
        TapEntry { offset, bounds }
    }

    /// Words that say whether an index along K is outside.
    pub(crate) fn bound_words(&self) -> usize {
        match self.bounds {
            Bounds::Inside => 0,
            Bounds::Bits => 1,
            Bounds::Coordinates => self.axes.len(),
        }
    }

    /// Where an index along K's weight is, from its filter's first.
    pub(crate) fn weight(&self, class: &Pattern<'k>, k_offset: Val<'k>) -> Val<'k> {
        match self.weights {
            Some(weights) => self.table.load(weights + class.first + k_offset),
            None => k_offset,
        }
    }

    /// Whether a tap of a pixel is inside; `None` where all are.
    pub(crate) fn inside(&self, pixel: &[Val<'k>], entry: &[Val<'k>]) -> Option<Val<'k>> {
        match self.bounds {
            Bounds::Inside => None,
            Bounds::Bits => Some((pixel[0] & entry[0]).eq(0u32)),
            Bounds::Coordinates => {
                let axes = pixel.iter().zip(entry).zip(&self.axes).filter(|(_, axis)| axis.padded);
                axes.map(|((at, delta), axis)| (*at + *delta).lt(axis.size)).reduce(|a, b| a & b)
            }
        }
    }

    /// A column's index in the result's images and in the further operands'.
    pub(crate) fn result_index(&self, class: &Pattern<'k>, column: Val<'k>) -> (Val<'k>, Vec<Val<'k>>) {
        let (image, pixel) = self.pixel(class, column);
        let mut out = image * self.out_image;
        if self.strided {
            out = out + class.out;
            for (c, axis) in self.coordinates(class, pixel).into_iter().zip(&self.axes) {
                out = out + c * axis.out;
            }
        } else {
            out = out + pixel;
        }
        let mut extras = self.extra_pixels.at(pixel);
        for (extra, stride) in extras.iter_mut().zip(&self.extra_images) {
            *extra = *extra + image * *stride;
        }
        (out, extras)
    }
}
