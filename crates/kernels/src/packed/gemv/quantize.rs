//! x as digits in memory, laid out for the lanes that read them: made once for all matmuls that read the same x.
//!
//! ```text
//!   row ─ stretch of as many runs as a cluster has lanes ─ vector of a run's words ─ lane ─ up to four words
//! ```
//! The largest magnitude of every run follows behind all words. Runs past the end of K are zeros.

use olivine_ir::Dim;
use olivine_kernel::{Access, Buf, Elem, Scalar, Val};

use super::cut::GemvCut;
use crate::launch::Launch;
use crate::matmul::problem::Problem;
use crate::packed::digits::{self, Digits};
use crate::packed::weight::Weight;
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
    fn unit(self) -> u32 {
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

    /// An invocation makes the words of a unit, together with others that have the rest of its run. Without subgroups it
    /// makes those of a run.
    fn emit(self, problem: &Problem<'_>, to: Memory, site: &mut Site<'_>) -> Result<(), String> {
        let group = site.group_size(256);
        let k = site.builder("quantize_rows", group);
        let unit = self.unit();
        let bits: Vec<u32> = self.shape.bits(unit).into_iter().map(|bit| bit / unit).collect();
        let last = bits.last().copied().unwrap_or(0);
        let exchanged = k.target().subgroup.is_some_and(|subgroup| last < subgroup);
        let each = if exchanged { unit } else { self.shape.run };
        let total = self.runs() * (self.shape.run / each);
        let of_row = self.stretches * (self.width * self.shape.run / each) as usize;

        let l = Launch::new(&k);
        let x = l.read("x", &problem.a.operand);
        let out = l.bind("out", Elem::U32, Access::Write, to);
        let (total_size, of_row) = (l.size("n", total), l.size("of_row", of_row));
        let (k_size, m) = (l.size("k", problem.k), l.size("m", problem.m));
        let outer = l.stride("x_row", problem.a.outer);
        let walker = problem.batch.declare(&l, &problem.offsets());
        let scales_at = l.size("scales_at", self.runs() * self.words());
        let stretches = l.size("stretches", self.stretches);
        let lanes = super::vector_lanes(problem, unit);

        let work = linear_group(&k) * group + k.local_index();
        // Lanes past the last take part in the exchange.
        let number = work.min(total_size - 1u32);
        let row = number / of_row;
        let within = number - row * of_row;
        let batch = row / m;
        let first = walker.at(batch)[0] + (row - batch * m) * outer;
        let (run, element) = match exchanged {
            true => self.shape.place(within * unit),
            false => (within, k.u32(0)),
        };
        let start = if exchanged { within * unit } else { self.shape.first(run) };
        let zero = k.f32(0.0);
        let mut values = Vec::new();
        for i in (0..each).step_by(lanes as usize) {
            let at = start + if exchanged { i } else { self.shape.offset(i) };
            // Vectors end where K does.
            let inside = at.lt(k_size);
            let loaded = x.load_vec(first + at.min(k_size - lanes), lanes as u8);
            values.extend(loaded.into_iter().map(|x| inside.select(x, zero)));
        }
        let steps = bits.iter().filter(|_| exchanged);
        let largest = steps.fold(digits::largest(&values), |most, bit| most.max(most.shuffle_xor(*bit)));
        let words: Vec<Val<'_>> = digits::words(&values, largest, self.digits, self.turns).concat();
        let (stretch, lane) = (run / self.width, run % self.width);
        let first_word = element / 4u32 * self.digits;
        let vector = self.vector();
        let base = (row * stretches + stretch) * (self.words() * self.width) + lane * vector;
        k.if_(work.lt(total_size), || {
            for (i, two) in (0u32..).step_by(2).zip(words.chunks(2)) {
                let word = first_word + i;
                out.store_vec(base + word / vector * (self.width * vector) + word % vector, two);
            }
            k.if_(element.eq(0u32), || {
                let number = row * stretches * self.width + run;
                out.store(scales_at + number, largest.bitcast(Scalar::U32));
            });
        });
        let moved = self.bytes() + self.rows * problem.k * problem.dtype().size();
        let bound = l.done();
        site.dispatch(k, bound, total.div_ceil(group), (0, moved))
    }

    /// Declares the digits to a kernel that reads them; elements that share a scale of the weight are summed.
    pub(crate) fn declare<'k>(self, l: &Launch<'k>, memory: Memory, group: u32) -> DeclaredDigits<'k> {
        DeclaredDigits {
            layout: self,
            words: l.bind("x_digits", Elem::U32, Access::Read, memory),
            scales_at: l.size("scales_at", self.runs() * self.words()),
            stretches: l.size("stretches", self.stretches),
            group,
        }
    }
}

/// Digits that a kernel reads.
pub(crate) struct DeclaredDigits<'k> {
    layout: DigitLayout,
    words: Buf<'k>,
    scales_at: Val<'k>,
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
        let load = |i: u32| self.words.load_vec(base + i * (width * vector), vector as u8);
        let all: Vec<Val<'k>> = (0..words / vector).flat_map(load).collect();
        let largest = self.words.load(self.scales_at + number * width + lane).bitcast(Scalar::F32);
        // Clusters past the end of K multiply by nothing.
        let scale = digits::scale(largest, digits);
        let scale = stretch.lt(self.stretches).select(scale, scale.like(0.0));
        Digits::new(all.chunks(digits as usize).map(<[_]>::to_vec).collect(), scale, self.group)
    }
}
