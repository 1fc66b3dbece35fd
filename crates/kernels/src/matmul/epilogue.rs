//! What happens to sums when they are complete: the epilogue and the store, or a store among the parts of a split sum.

use std::rc::Rc;

use olivine_ir::op::{Binary, InstrOp, Region, ScalarOp, Unary};
use olivine_ir::{DType, Dim};
use olivine_kernel::{Access, Buf, Builder, Elem, Scalar, Val};

use crate::conv::taps::{DeclaredTaps, Pattern};
use crate::launch::Launch;
use crate::math::{self, Typed};
use crate::matmul::problem::Problem;
use crate::site::Memory;

/// The element type that holds unrounded sums of an element type.
pub(crate) fn accumulator_elem(elem: Elem) -> Elem {
    match elem.scalar() {
        Scalar::F64 => Elem::F64,
        Scalar::I32 => Elem::I32,
        Scalar::U32 | Scalar::Bool => Elem::U32,
        Scalar::I64 => Elem::I64,
        Scalar::U64 => Elem::U64,
        Scalar::F32 | Scalar::F16 => Elem::F32,
    }
}

/// A sum as the matmul's dtype holds it, which is what epilogues take.
pub(crate) fn rounded_sum(sum: Val<'_>, dtype: DType) -> Typed<'_> {
    let signed = |bits: u32| (sum << bits) >> bits;
    let val = match dtype {
        DType::I8 => signed(24),
        DType::I16 => signed(16),
        DType::U8 => sum & 0xffu32,
        _ => math::round_to(sum, dtype),
    };
    Typed { val, dtype }
}

/// Where sums go.
pub(crate) enum Destination {
    /// Through the epilogue to the target.
    Target,
    /// As they are, to the partial sums of split-K: contiguous buffers, each as large as the target.
    Partials(Memory),
}

/// A declared extra operand.
struct EpilogueInput<'k> {
    buffer: Buf<'k>,
    row: Val<'k>,
    column: Val<'k>,
    lanes: usize,
    once: bool,
}

/// The declared end of a matmul.
pub(crate) struct Epilogue<'k, 'p> {
    k: &'k Builder,
    problem: &'p Problem<'p>,
    out: Buf<'k>,
    strides: (Val<'k>, Val<'k>),
    lanes: usize,
    epilogue_inputs: Vec<EpilogueInput<'k>>,
    to_target: bool,
    columns: Val<'k>,
    /// Whether sums come rounded to their dtype.
    is_rounded: bool,
    /// Where columns go, if not by strides.
    pixels: Option<(Rc<DeclaredTaps<'k>>, Pattern<'k>)>,
}

/// A column's place in the target, or in the parts, and in the extra operands.
pub(crate) struct ColumnOffset<'k> {
    out: Val<'k>,
    extras: Vec<Val<'k>>,
}

/// What the extra operands have at neighbouring columns of a row.
pub(crate) struct LoadedInputs<'k>(Vec<Vec<Vec<Val<'k>>>>);

/// Where a batch begins.
pub(crate) struct BatchOffset<'k> {
    /// In the target, or in the parts.
    pub(crate) out: Val<'k>,
    /// In the extra operands.
    pub(crate) extras: Vec<Val<'k>>,
}

impl<'k, 'p> Epilogue<'k, 'p> {
    /// Declares what the end needs; `columns` is the matmul's `n`.
    pub(crate) fn declare(
        l: &Launch<'k>,
        problem: &'p Problem<'p>,
        destination: &Destination,
        columns: Val<'k>,
    ) -> Self {
        let k = l.k();
        let stride = |name: &str, value: Dim| match value.as_constant() {
            Some(small @ (0 | 1)) => k.u32(small as u32),
            _ => l.stride(name, value),
        };
        let strides = (stride("out_row", problem.out.0), stride("out_column", problem.out.1));
        let (out, epilogue_inputs) = match destination {
            Destination::Target => {
                let input = |i: usize| {
                    let extra = &problem.extras[i];
                    EpilogueInput {
                        buffer: l.read(&format!("x{i}"), &extra.operand),
                        row: stride(&format!("x{i}_row"), extra.row),
                        column: stride(&format!("x{i}_column"), extra.column),
                        lanes: problem.extra_lanes(i),
                        once: extra.column.as_constant() == Some(0),
                    }
                };
                (l.write("out", &problem.target), (0..problem.extras.len()).map(input).collect())
            }
            Destination::Partials(memory) => {
                let elem = accumulator_elem(math::elem(problem.dtype()));
                (l.bind("parts", elem, Access::Write, *memory), Vec::new())
            }
        };
        let wide = out.elem().size() > 4;
        let lanes = problem.store_lanes().min(if wide { 2 } else { 4 });
        let to_target = matches!(destination, Destination::Target);
        Epilogue {
            k,
            problem,
            out,
            strides,
            lanes,
            epilogue_inputs,
            to_target,
            columns,
            is_rounded: false,
            pixels: None,
        }
    }

    /// The same end for the columns of a class of pixels.
    pub(crate) fn over(self, taps: Rc<DeclaredTaps<'k>>, class: Pattern<'k>) -> Self {
        Epilogue { columns: class.columns, pixels: Some((taps, class)), ..self }
    }

    /// The same end for sums that come rounded to their dtype, or not.
    pub(crate) fn of_rounded(self, is_rounded: bool) -> Self {
        Epilogue { is_rounded, ..self }
    }

    /// The same end, whose results caches need not keep.
    pub(crate) fn streaming(self) -> Self {
        Epilogue { out: self.out.streaming(), ..self }
    }

    /// Where a column goes.
    fn pixel(&self, column: Val<'k>) -> ColumnOffset<'k> {
        match &self.pixels {
            Some((taps, class)) => {
                let (out, extras) = taps.result_index(class, column);
                ColumnOffset { out, extras }
            }
            None => {
                let column = if self.problem.pairs { column >> 1 } else { column };
                ColumnOffset {
                    out: column * self.strides.1,
                    extras: self.epilogue_inputs.iter().map(|input| column * input.column).collect(),
                }
            }
        }
    }

    /// Where each vector of the neighbouring columns from `column` on goes; those of several rows are the same.
    pub(crate) fn offsets_of(&self, column: Val<'k>, count: usize) -> Vec<(Val<'k>, ColumnOffset<'k>)> {
        let firsts = (0..count).step_by(self.lanes).map(|i| column + i);
        firsts.map(|first| (first, self.pixel(first))).collect()
    }

    /// Whether the epilogue is long enough that its copies in a kernel should be few.
    pub(crate) fn is_heavy(&self) -> bool {
        self.to_target && self.problem.region.is_some_and(is_heavy)
    }

    /// Neighbouring columns that are stored as one vector.
    pub(crate) fn lanes(&self) -> usize {
        self.lanes
    }

    /// Whether sums may come rounded to their dtype: nothing is added before.
    pub(crate) fn accepts_rounded(&self) -> bool {
        self.to_target && !self.problem.bias && self.problem.result == self.problem.dtype()
    }

    /// Whether the epilogue's extra operands can be loaded ahead of the sums, and whether they are the same for all
    /// rows.
    pub(crate) fn preload(&self) -> Option<bool> {
        let preload = self.to_target
            && self.pixels.is_none()
            && !self.problem.pairs
            && !self.epilogue_inputs.is_empty();
        preload.then(|| self.problem.extras.iter().all(|extra| extra.row.as_constant() == Some(0)))
    }

    /// Loads the extra operands at neighbouring columns of a row that exists; columns past the last give others'.
    pub(crate) fn load_inputs(
        &self,
        base: &BatchOffset<'k>,
        row: Val<'k>,
        column: Val<'k>,
        count: usize,
    ) -> LoadedInputs<'k> {
        let last = self.columns - self.lanes as u32;
        let firsts = (0..count).step_by(self.lanes).map(|i| (column + i).min(last));
        LoadedInputs(firsts.map(|first| self.load(base, row, &self.pixel(first), self.lanes)).collect())
    }

    /// Finishes sums of neighbouring columns of a row that exists with the extra operands loaded before.
    pub(crate) fn store_with_inputs(
        &self,
        base: &BatchOffset<'k>,
        row: Val<'k>,
        column: Val<'k>,
        sums: &[Val<'k>],
        loaded: &LoadedInputs<'k>,
    ) {
        let runs = sums.chunks(self.lanes).zip(&loaded.0);
        for ((first, pixel), (run, loaded)) in self.offsets_of(column, sums.len()).iter().zip(runs) {
            self.k.if_(first.lt(self.columns), || {
                self.store_loaded(base, row, pixel, run, loaded.clone());
            });
        }
    }

    /// Finishes sums of neighbouring columns of a row that exists; columns past the last are left out.
    pub(crate) fn store(&self, base: &BatchOffset<'k>, row: Val<'k>, column: Val<'k>, sums: &[Val<'k>]) {
        self.store_at(base, row, &self.offsets_of(column, sums.len()), sums);
    }

    /// The same for columns whose places are known.
    pub(crate) fn store_at(
        &self,
        base: &BatchOffset<'k>,
        row: Val<'k>,
        offsets_of: &[(Val<'k>, ColumnOffset<'k>)],
        sums: &[Val<'k>],
    ) {
        for ((first, pixel), run) in offsets_of.iter().zip(sums.chunks(self.lanes)) {
            self.k.if_(first.lt(self.columns), || self.store_run(base, row, pixel, run));
        }
    }

    fn store_run(&self, base: &BatchOffset<'k>, row: Val<'k>, pixel: &ColumnOffset<'k>, sums: &[Val<'k>]) {
        let count = sums.len() / self.each();
        self.store_loaded(base, row, pixel, sums, self.load(base, row, pixel, count));
    }

    /// How many neighbouring columns go into an element.
    fn each(&self) -> usize {
        if self.problem.pairs { 2 } else { 1 }
    }

    /// So many neighbouring elements of every extra operand.
    fn load(
        &self,
        base: &BatchOffset<'k>,
        row: Val<'k>,
        pixel: &ColumnOffset<'k>,
        count: usize,
    ) -> Vec<Vec<Val<'k>>> {
        let places = base.extras.iter().zip(&pixel.extras);
        (self.epilogue_inputs.iter().zip(places))
            .map(|(input, (start, place))| {
                let at = *start + row * input.row + *place;
                if input.once {
                    vec![input.buffer.load(at); count]
                } else if input.lanes >= count {
                    input.buffer.load_vec(at, count as u8)
                } else {
                    (0..count).map(|i| input.buffer.load(at + input.column * i)).collect()
                }
            })
            .collect()
    }

    fn store_loaded(
        &self,
        base: &BatchOffset<'k>,
        row: Val<'k>,
        pixel: &ColumnOffset<'k>,
        sums: &[Val<'k>],
        mut loaded: Vec<Vec<Val<'k>>>,
    ) {
        let at = base.out + row * self.strides.0 + pixel.out;
        if !self.to_target {
            return self.out.store_vec(at, sums);
        }
        let bias = if self.problem.bias { loaded.pop() } else { None };
        let sums: Vec<Val<'k>> = match bias {
            Some(bias) => sums.iter().zip(bias).map(|(sum, bias)| *sum + bias).collect(),
            None => sums.to_vec(),
        };
        let Some(region) = self.problem.region else { return self.out.store_vec(at, &sums) };
        let finished = |(i, sums): (usize, &[Val<'k>])| {
            let dtype = self.problem.result;
            let settle = |val| if self.is_rounded { Typed { val, dtype } } else { rounded_sum(val, dtype) };
            let mut inputs: Vec<_> = sums.iter().map(|sum| settle(*sum)).collect();
            for (values, extra) in loaded.iter().zip(&self.problem.extras) {
                inputs.push(Typed { val: values[i], dtype: extra.operand.ty.dtype });
            }
            math::region(region, &inputs).first().map(|result| result.val)
        };
        let results: Vec<Val<'k>> = sums.chunks(self.each()).enumerate().filter_map(finished).collect();
        self.out.store_vec(at, &results);
    }
}

/// Whether a region is long enough that its copies in a kernel should be few.
pub(crate) fn is_heavy(region: &Region) -> bool {
    weight(region) > 8
}

/// About how many instructions a region becomes.
fn weight(region: &Region) -> usize {
    use ScalarOp as S;
    let of = |op: &InstrOp| match op {
        InstrOp::Splat(..) => 0,
        InstrOp::Scalar(S::Binary(Binary::Add | Binary::Sub | Binary::Mul) | S::Compare(_) | S::Where) => 1,
        InstrOp::Scalar(S::Unary(Unary::Relu | Unary::Neg | Unary::Abs | Unary::Square)) => 1,
        InstrOp::Scalar(S::Binary(Binary::Max | Binary::Min) | S::Clamp | S::Cast(_)) => 3,
        InstrOp::Scalar(_) => 9,
    };
    region.instrs.iter().map(|i| of(&i.op)).sum()
}
