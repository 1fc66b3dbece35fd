//! The way of sums from cooperative matrices to rows: through workgroup memory, a part of it to each subgroup.

use olivine_ir::DType;
use olivine_kernel::{Builder, Elem, Fragments, MatrixUse, Scalar, Shared, Target, Val};

use crate::matmul::coop::form::MatrixForm;
use crate::matmul::coop::{SIDE, matrix as matrix_of};

impl MatrixForm {
    /// Slots of workgroup memory that so many subgroups take on the way to memory where there is no panel.
    pub(crate) fn store_slots(self, subgroups: u32) -> u32 {
        StorePrecision::F32.pitch(2 * self.side) * self.side * subgroups
    }

    /// Slots that so many subgroups need at least.
    pub(crate) fn min_store_slots(self, subgroups: u32) -> u32 {
        StorePrecision::F32.pitch(self.side) * self.side * subgroups
    }
}

/// Slots of eight bytes that so many subgroups take on the way to memory as f16.
pub(crate) fn f16_slots(subgroups: u32) -> u32 {
    StorePrecision::F16.pitch(4 * SIDE) * SIDE * subgroups
}

/// Bytes of workgroup memory of which two workgroups have room at once.
const ROOM_FOR_TWO: u32 = 24 << 10;

/// Whether sums of a dtype's matmuls pass as f16, beside panels of so many slots.
pub(crate) fn stages_as_f16(dtype: DType, panels: u32, subgroups: u32, target: &Target) -> bool {
    let known = target.exact_f16 && target.fragments == Some(Fragments::Quads);
    dtype == DType::F16 && known && 16 * panels + 8 * f16_slots(subgroups) <= ROOM_FOR_TWO
}

/// How sums pass through workgroup memory, four columns of a row to a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StorePrecision {
    /// As they are, in slots of 16 bytes.
    F32,
    /// Rounded to f16, in slots of 8 bytes; only where lanes are known to hold the same elements of sums and of A.
    F16,
}

impl StorePrecision {
    /// The stride of rows of so many columns, in slots: an odd multiple of 16 bytes.
    fn pitch(self, columns: u32) -> u32 {
        match self {
            StorePrecision::F32 => columns / 4 + 1,
            StorePrecision::F16 => columns / 4 + 2,
        }
    }
}

/// Memory that nobody else uses any more, and who comes through it.
pub(crate) struct AccumulatorStore<'k> {
    pub(crate) k: &'k Builder,
    pub(crate) form: MatrixForm,
    /// Slots of four or, for f16, two words; of four elements where memory is typed.
    pub(crate) memory: Shared<'k>,
    pub(crate) slots: u32,
    pub(crate) grain: StorePrecision,
    /// Which part of the block, and which of those that share it.
    pub(crate) subgroup: Val<'k>,
    pub(crate) slice: Val<'k>,
    pub(crate) subgroups: u32,
    pub(crate) slices: u32,
}

impl<'k> AccumulatorStore<'k> {
    /// Matrices that a subgroup's part holds side by side.
    pub(crate) fn at_once(&self) -> u32 {
        let side = self.form.side;
        let fits = |matrices: &u32| {
            self.grain.pitch(*matrices * side) * side * self.subgroups * self.slices <= self.slots
        };
        [4, 2].into_iter().find(fits).unwrap_or(1)
    }

    /// Waits for those that share a part.
    fn wait(&self) {
        if self.slices > 1 { self.k.barrier() } else { self.k.subgroup_barrier() }
    }

    /// Rounds in which invocations hand on so many matrices side by side, four columns of a row each time.
    fn waves(&self, matrices: u32) -> u32 {
        self.runs(matrices).div_ceil(self.form.lanes * self.slices)
    }

    /// Runs of four columns of so many matrices.
    fn runs(&self, matrices: u32) -> u32 {
        self.form.side * matrices * self.form.side / 4
    }

    /// The row and the run of four columns that an invocation hands on in a round, counted from the matrices' first.
    fn place(&self, matrices: u32, round: Val<'k>) -> (Val<'k>, Val<'k>) {
        let (runs, lanes) = (matrices * self.form.side / 4, self.form.lanes);
        let number = round * (lanes * self.slices) + self.slice * lanes + self.k.lane();
        (number / runs, number % runs)
    }

    /// What `load` returns for the indices at which an invocation stores one, two or four matrices, round by round; the
    /// last row stands for those past it. An invocation has the same columns in every round: where rows are alike, one
    /// thing stands for all rounds.
    pub(crate) fn beside<T>(
        &self,
        matrices: u32,
        (row, end): (Val<'k>, Val<'k>),
        column: Val<'k>,
        alike: bool,
        load: impl Fn(Val<'k>, Val<'k>) -> T,
    ) -> Vec<T> {
        let rounds = if alike { 1 } else { self.waves(matrices) };
        let each = |round: u32| {
            let (line, run) = self.place(matrices, self.k.u32(round));
            load((row + line).min(end - 1u32), column + run * 4u32)
        };
        (0..rounds).map(each).collect()
    }

    /// Hands on matrices side by side, in runs of four columns of the rows below `end`; those that share a part add
    /// theirs, and each hands on some of the rows. What is long to write is written once. All subgroups that share a
    /// part must call it together.
    pub(crate) fn store(
        &self,
        matrices: &[Val<'k>],
        rows: (Val<'k>, Val<'k>),
        column: Val<'k>,
        is_long: bool,
        epilogue: impl Fn(Val<'k>, Val<'k>, &[Val<'k>]),
    ) {
        let none: [(); 0] = [];
        self.store_with(matrices, rows, column, (is_long, &none), |row, column, sums, _| {
            epilogue(row, column, sums);
        });
    }

    /// The same with what was loaded [`beside`](Self::beside) them; a long way with at most one thing to all rounds.
    pub(crate) fn store_with<T>(
        &self,
        matrices: &[Val<'k>],
        (row, end): (Val<'k>, Val<'k>),
        column: Val<'k>,
        (is_long, beside): (bool, &[T]),
        epilogue: impl Fn(Val<'k>, Val<'k>, &[Val<'k>], Option<&T>),
    ) {
        let k = self.k;
        let (count, side) = (matrices.len() as u32, self.form.side);
        let pitch = self.grain.pitch(count * side);
        let (each, all) = (pitch * side, self.subgroups * pitch * side);
        // Typed memory counts elements, four to a slot.
        let index = |slot: Val<'k>| if self.form.is_typed { slot * 4u32 } else { slot };
        let stride = if self.form.is_typed { 4 * pitch } else { pitch };
        let first = self.subgroup * each;
        let mine = first + self.slice * all;
        for (i, matrix) in matrices.iter().enumerate() {
            let matrix = match self.grain {
                StorePrecision::F32 => *matrix,
                StorePrecision::F16 => {
                    k.matrix_of(matrix_of(Elem::F16, MatrixUse::A), &matrix.matrix_parts())
                }
            };
            self.memory.store_matrix(index(mine + i as u32 * side / 4), k.u32(stride), false, matrix);
        }
        self.wait();
        let load = |at: Val<'k>| -> Vec<Val<'k>> {
            if self.form.is_typed {
                return (0..4u32).map(|i| self.memory.load(index(at) + i)).collect();
            }
            let words = self.memory.load_vec(at).into_iter();
            match self.grain {
                StorePrecision::F32 => words.map(|s| s.bitcast(Scalar::F32)).collect(),
                StorePrecision::F16 => words.flat_map(|w| [w.unpack_half(0), w.unpack_half(1)]).collect(),
            }
        };
        let put = |round: Val<'k>, beside: Option<&T>| {
            let (line, run) = self.place(count, round);
            let inside = (row + line).lt(end);
            // The last round may be of some subgroups only.
            let whole = self.runs(count).is_multiple_of(self.form.lanes * self.slices);
            let inside = if whole { inside } else { inside & line.lt(side) };
            k.if_(inside, || {
                let mut sums = load(first + line * pitch + run);
                for slice in 1..self.slices {
                    let more = load(first + line * pitch + run + slice * all);
                    sums.iter_mut().zip(more).for_each(|(sum, x)| *sum = *sum + x);
                }
                epilogue(row + line, column + run * 4u32, &sums, beside);
            });
        };
        let rounds = self.waves(count);
        if is_long {
            k.for_(k.u32(0), k.u32(rounds), k.u32(1), |round| put(round, beside.first()));
        } else {
            let beside = |round: u32| beside.get(round as usize).or(beside.first());
            (0..rounds).for_each(|round| put(k.u32(round), beside(round)));
        }
        self.wait();
    }
}
