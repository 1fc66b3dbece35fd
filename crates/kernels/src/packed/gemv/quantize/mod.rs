//! x as digits, laid out for the lanes that read them: in workgroup memory, made by each workgroup, or in memory, made once for all
//! matmuls that read the same x.
//!
//! ```text
//!   row ─ stretch of as many runs as a cluster has lanes ─ vector of a run's words ─ lane ─ up to four words
//! ```
//! The largest magnitude of every run follows behind all words. Runs past the end of K are zeros.

mod stage;

use olivine_ir::Dim;
use olivine_kernel::{Access, Buf, Builder, Elem, Scalar, Shared, Val};

use super::cut::GemvCut;
use super::norm::{DeclaredNorm, NormWeights};
use crate::launch::Launch;
use crate::matmul::problem::Problem;
use crate::norm::Scaling;
use crate::packed::digits::{self, Digits};
use crate::packed::weight::Weight;
use crate::rows::sum;
use crate::site::{Memory, Site, linear_group};

/// The elements of a run: `low` neighbours, again and again `step` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RunShape {
    pub(crate) run: u32,
    low: u32,
    step: u32,
}

impl RunShape {
    pub(crate) fn new(run: u32, strided: bool) -> Self {
        if strided { RunShape { run, low: 16, step: 32 } } else { RunShape { run, low: run, step: run } }
    }

    /// Runs that take turns.
    pub(crate) fn turns(self) -> u32 {
        self.step / self.low
    }

    /// The first element of a run.
    pub(crate) fn first<'k>(self, run: Val<'k>) -> Val<'k> {
        match self.turns() {
            1 => run * self.run,
            turns => run / turns * (self.run * turns) + run % turns * self.low,
        }
    }

    /// Where the i-th element is, from the first on.
    pub(crate) fn offset(self, i: u32) -> u32 {
        i / self.low * self.step + i % self.low
    }

    /// The run of an element, and which of its elements that is.
    fn place<'k>(self, element: Val<'k>) -> (Val<'k>, Val<'k>) {
        let turns = self.turns();
        if turns == 1 {
            return (element / self.run, element % self.run);
        }
        let window = self.run * turns;
        let within = element % window;
        let run = element / window * turns + within % self.step / self.low;
        (run, within / self.step * self.low + within % self.low)
    }

    /// The bits of an element's number by which elements of one run differ, above those of `unit` neighbours.
    fn bits(self, unit: u32) -> Vec<u32> {
        let powers = |from: u32, to: u32| (from.ilog2()..to.ilog2()).map(|i| 1 << i);
        let turns = self.turns();
        powers(unit, self.low).chain(powers(self.step, self.run * turns)).collect()
    }
}

/// How digits are laid out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DigitLayout {
    pub(crate) shape: RunShape,
    /// Lanes of a cluster.
    width: u32,
    digits: u32,
    /// How many words of integers take turns.
    turns: u32,
    /// Stretches of a row.
    stretches: usize,
    /// Rows of all batches.
    rows: Dim,
}

impl DigitLayout {
    pub(crate) fn new(problem: &Problem<'_>, weight: &Weight, cut: GemvCut) -> Self {
        let GemvCut { run, runs, width, digits, .. } = cut;
        DigitLayout {
            shape: RunShape::new(run, weight.is_strided(run)),
            width,
            digits,
            turns: weight.turns(),
            stretches: problem.k_number().div_ceil(cut.chunk() as usize) * runs as usize,
            rows: problem.m * problem.batches(),
        }
    }

    /// Elements that become words together.
    pub(crate) fn unit(self) -> u32 {
        (4 * self.turns).max(8)
    }

    /// Words of a run.
    fn words(self) -> u32 {
        self.shape.run / 4 * self.digits
    }

    /// Words of a run that are loaded together.
    fn vector(self) -> u32 {
        if self.words().is_multiple_of(4) { 4 } else { 2 }
    }

    /// Runs of all rows.
    fn runs(self) -> Dim {
        self.rows * self.stretches * self.width
    }

    fn bytes(self) -> Dim {
        4 * self.runs() * (self.words() + 1)
    }

    /// Emits the kernel, once for all matmuls with the same layout; returns where the digits are.
    pub(crate) fn make(self, problem: &Problem<'_>, site: &mut Site<'_>) -> Result<Memory, String> {
        let how = format!("{self:?} of {}x{}, {:?}", problem.m, problem.k, problem.batch.strides[0]);
        let how = format!("{how} by {}", problem.a.outer);
        site.shared(how, &problem.a.operand, self.bytes(), |site, to| self.emit(problem, to, site))
    }

    /// Whether the invocations of a subgroup that have a run's units find its largest magnitude together. Without subgroups an
    /// invocation makes the words of a run.
    fn is_exchanged(self, k: &Builder) -> bool {
        let last = self.exchanged_bits().last().copied().unwrap_or(0);
        k.target().subgroup.is_some_and(|subgroup| last < subgroup)
    }

    /// The bits of a unit's number by which units of one run differ.
    fn exchanged_bits(self) -> Vec<u32> {
        let unit = self.unit();
        self.shape.bits(unit).into_iter().map(|bit| bit / unit).collect()
    }

    /// Elements that an invocation makes words of.
    fn each(self, k: &Builder) -> u32 {
        if self.is_exchanged(k) { self.unit() } else { self.shape.run }
    }

    /// Units of a row.
    fn units(self, each: u32) -> usize {
        self.stretches * (self.width * self.shape.run / each) as usize
    }

    /// Loads unit `within` of a row whose first element is `first`.
    fn load<'k>(self, x: &XSource<'k>, first: Val<'k>, within: Val<'k>) -> Unit<'k> {
        let k = within.builder();
        let exchanged = self.is_exchanged(k);
        let (each, unit, lanes) = (self.each(k), self.unit(), x.lanes);
        let (run, element) = match exchanged {
            true => self.shape.place(within * unit),
            false => (within, k.u32(0)),
        };
        let start = if exchanged { within * unit } else { self.shape.first(run) };
        let zero = k.f32(0.0);
        let mut vectors = Vec::new();
        for i in (0..each).step_by(lanes as usize) {
            let at = start + if exchanged { i } else { self.shape.offset(i) };
            // Vectors end where K does.
            let (inside, place) = (at.lt(x.k_size), at.min(x.k_size - lanes));
            let loaded = x.x.load_vec(first + place, lanes as u8);
            vectors.push(UnitVector {
                inside,
                values: loaded.into_iter().map(|x| inside.select(x, zero)).collect(),
                weights: x.norm.map(|norm| norm.load(place, lanes)),
            });
        }
        Unit { run, element, vectors }
    }

    /// The words of a unit. All invocations of a subgroup must come here together.
    fn quantize<'k>(self, unit: &Unit<'k>, scaling: Option<&Scaling<'k>>) -> Quantized<'k> {
        let k = unit.run.builder();
        let values = unit.values(scaling);
        let bits = self.exchanged_bits();
        let steps = bits.iter().filter(|_| self.is_exchanged(k));
        let largest = steps.fold(digits::largest(&values), |most, bit| most.max(most.shuffle_xor(*bit)));
        let words = digits::words(&values, largest, self.digits, self.turns).concat();
        Quantized { run: unit.run, element: unit.element, words, largest }
    }

    /// Where word `i` of a unit is among those of a row.
    fn word_at<'k>(self, unit: &Quantized<'k>, i: u32) -> Val<'k> {
        let vector = self.vector();
        let (stretch, lane) = (unit.run / self.width, unit.run % self.width);
        let word = unit.element / 4u32 * self.digits + i;
        stretch * (self.words() * self.width)
            + lane * vector
            + word / vector * (self.width * vector)
            + word % vector
    }

    /// Emits a kernel in which an invocation makes the words of a unit.
    fn emit(self, problem: &Problem<'_>, to: Memory, site: &mut Site<'_>) -> Result<(), String> {
        let group = site.group_size(256);
        let k = site.builder("quantize_rows", group);
        let each = self.each(&k);
        let total = self.runs() * (self.shape.run / each);

        let l = Launch::new(&k);
        let x = l.read("x", &problem.a.operand);
        let out = l.bind("out", Elem::U32, Access::Write, to);
        let (total_size, of_row) = (l.size("n", total), l.size("of_row", self.units(each)));
        let (k_size, m) = (l.size("k", problem.k), l.size("m", problem.m));
        let outer = l.stride("x_row", problem.a.outer);
        let walker = problem.batch.declare(&l, &problem.offsets());
        let scales_at = l.size("scales_at", self.runs() * self.words());
        let stretches = l.size("stretches", self.stretches);
        let x = XSource { x, k_size, lanes: super::vector_lanes(problem, self.unit()), norm: None };

        let work = linear_group(&k) * group + k.local_index();
        // Lanes past the last take part in the exchange.
        let number = work.min(total_size - 1u32);
        let row = number / of_row;
        let batch = row / m;
        let first = walker.at(batch)[0] + (row - batch * m) * outer;
        let unit = self.quantize(&self.load(&x, first, number - row * of_row), None);
        let base = row * stretches * (self.words() * self.width);
        k.if_(work.lt(total_size), || {
            for (i, two) in (0u32..).step_by(2).zip(unit.words.chunks(2)) {
                out.store_vec(base + self.word_at(&unit, i), two);
            }
            k.if_(unit.element.eq(0u32), || {
                let number = row * stretches * self.width + unit.run;
                out.store(scales_at + number, unit.largest.bitcast(Scalar::U32));
            });
        });
        let moved = self.bytes() + self.rows * problem.k * problem.dtype().size();
        let bound = l.done();
        site.dispatch(k, bound, total.div_ceil(group), (0, moved))
    }

    /// Bytes of workgroup memory that the digits of so many rows take.
    pub(crate) fn staged_bytes(self, rows: u32) -> usize {
        4 * rows as usize * self.stretches * (self.width * (self.words() + 1)) as usize
    }

    /// Words of an element of workgroup memory: those of a unit are stored together.
    fn lanes(self) -> u32 {
        if self.digits == 2 { 4 } else { 2 }
    }

    /// Declares the digits to a kernel that reads them; elements that share a scale of the weight are summed.
    pub(crate) fn declare<'k>(self, l: &Launch<'k>, memory: Memory, group: u32) -> DeclaredDigits<'k> {
        DeclaredDigits {
            layout: self,
            memory: DigitMemory::Buffer {
                words: l.bind("x_digits", Elem::U32, Access::Read, memory),
                scales_at: l.size("scales_at", self.runs() * self.words()),
            },
            stretches: l.size("stretches", self.stretches),
            group,
        }
    }
}

/// What digits are made of.
#[derive(Clone, Copy)]
pub(crate) struct XSource<'k> {
    pub(crate) x: Buf<'k>,
    pub(crate) k_size: Val<'k>,
    /// Neighbours that one load may take.
    pub(crate) lanes: u32,
    /// What x becomes before it is made digits.
    pub(crate) norm: Option<DeclaredNorm<'k>>,
}

/// What is loaded of x for a unit.
struct Unit<'k> {
    /// The run that it is of, and the first of its elements there.
    run: Val<'k>,
    element: Val<'k>,
    vectors: Vec<UnitVector<'k>>,
}

/// Neighbours of x, zeros past the end of K.
struct UnitVector<'k> {
    inside: Val<'k>,
    values: Vec<Val<'k>>,
    weights: Option<NormWeights<'k>>,
}

impl<'k> Unit<'k> {
    /// Its elements, normalised where a norm comes first.
    fn values(&self, scaling: Option<&Scaling<'k>>) -> Vec<Val<'k>> {
        let of = |vector: &UnitVector<'k>| match (&vector.weights, scaling) {
            (Some(weights), Some(scaling)) => {
                let scaled = vector.values.iter().enumerate().map(|(i, v)| weights.apply(scaling, i, *v));
                scaled.map(|v| vector.inside.select(v, v.like(0.0))).collect()
            }
            _ => vector.values.clone(),
        };
        self.vectors.iter().flat_map(of).collect()
    }

    /// Sums of terms of its elements.
    fn sums(&self, terms: impl Fn(Val<'k>) -> Vec<Val<'k>>) -> Vec<Val<'k>> {
        let of_vector = |vector: &UnitVector<'k>| {
            let all: Vec<Vec<Val<'k>>> = vector.values.iter().map(|v| terms(*v)).collect();
            let each = (0..all[0].len()).map(|i| sum(all.iter().map(|terms| terms[i]).collect()));
            each.map(|sum| vector.inside.select(sum, sum.like(0.0))).collect::<Vec<_>>()
        };
        let all: Vec<Vec<Val<'k>>> = self.vectors.iter().map(of_vector).collect();
        (0..all[0].len()).map(|i| sum(all.iter().map(|terms| terms[i]).collect())).collect()
    }
}

/// The digits of a unit.
struct Quantized<'k> {
    /// The run that it is of, and the first of its elements there.
    run: Val<'k>,
    element: Val<'k>,
    words: Vec<Val<'k>>,
    /// The largest magnitude of the run.
    largest: Val<'k>,
}

/// Where digits are.
enum DigitMemory<'k> {
    Buffer { words: Buf<'k>, scales_at: Val<'k> },
    Workgroup { words: Shared<'k>, scales: Shared<'k> },
}

/// Digits that a kernel reads.
pub(crate) struct DeclaredDigits<'k> {
    layout: DigitLayout,
    memory: DigitMemory<'k>,
    stretches: Val<'k>,
    group: u32,
}

impl<'k> DeclaredDigits<'k> {
    /// A lane's run of a stretch of a row; that of the last stretch past it.
    pub(crate) fn load(&self, row: Val<'k>, stretch: Val<'k>, lane: Val<'k>) -> Digits<'k> {
        let DigitLayout { width, digits, .. } = self.layout;
        let (words, vector) = (self.layout.words(), self.layout.vector());
        let number = row * self.stretches + stretch.min(self.stretches - 1u32);
        let base = number * (words * width) + lane * vector;
        let at = |i: u32| base + i * (width * vector);
        let (all, largest): (Vec<Val<'k>>, Val<'k>) = match &self.memory {
            DigitMemory::Buffer { words: buffer, scales_at } => (
                (0..words / vector).flat_map(|i| buffer.load_vec(at(i), vector as u8)).collect(),
                buffer.load(*scales_at + number * width + lane).bitcast(Scalar::F32),
            ),
            DigitMemory::Workgroup { words: shared, scales } => {
                let lanes = self.layout.lanes();
                let parts = (0..words / vector).flat_map(|i| (0..vector / lanes).map(move |part| (i, part)));
                let load = |(i, part): (u32, u32)| shared.load_vec(at(i) / lanes + part);
                (parts.flat_map(load).collect(), scales.load(number * width + lane))
            }
        };
        // Clusters past the end of K multiply by nothing.
        let scale = digits::scale(largest, digits);
        let scale = stretch.lt(self.stretches).select(scale, scale.like(0.0));
        Digits::new(all.chunks(digits as usize).map(<[_]>::to_vec).collect(), scale, self.group)
    }
}
