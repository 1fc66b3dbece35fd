//! An operand read straight from memory by runs of neighbours along one axis, at most 16 bytes at a time.

use olivine_ir::Dim;
use olivine_kernel::{Access, Buf, Elem, Scalar, Val};

use crate::launch::Launch;
use crate::math;
use crate::matmul::problem::{Axis, MatrixOperand, Problem};

/// F16 of a run of 16 bytes, which is read as four words.
pub(crate) const F16_PER_VECTOR: u32 = 8;

/// Which operand of a matmul.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MatrixRole {
    A,
    B,
}

/// A declared operand.
pub(crate) struct VectorLoads<'k> {
    buffer: Buf<'k>,
    /// Elements of a run.
    run: u32,
    /// The f16 that words hold two of.
    packed_f16: Option<Elem>,
    /// Strides over rows (of A) or columns (of B) and over K.
    pub(crate) outer: Val<'k>,
    pub(crate) k_stride: Val<'k>,
}

fn operand<'p>(problem: &'p Problem<'_>, side: MatrixRole) -> (&'p MatrixOperand, Dim, usize) {
    match side {
        MatrixRole::A => (&problem.a, problem.m, 0),
        MatrixRole::B => (&problem.b, problem.n, 1),
    }
}

/// Neighbours along an axis that one load may take: a power of two that divides their number.
pub(crate) fn max_vector(problem: &Problem<'_>, side: MatrixRole, along: Axis) -> u32 {
    let (operand, extent, number) = operand(problem, side);
    let layout = if side == MatrixRole::A { problem.layout_of_a() } else { problem.layout_of_b() };
    if layout.along != along {
        return 1;
    }
    let (other, size) = match along {
        Axis::Outer => (operand.k_stride, extent),
        Axis::K => (operand.outer, problem.k),
    };
    let steps = &problem.batch.strides[number];
    let whole = |x: Dim| x.is_multiple_of(F16_PER_VECTOR);
    let packed_f16 = matches!(math::elem(operand.operand.ty.dtype), Elem::F16 | Elem::BF16);
    let starts = || whole(other) && whole(operand.operand.offset) && steps.iter().all(|s| whole(*s));
    if packed_f16 && layout.lanes == 4 && starts() && whole(size) {
        F16_PER_VECTOR
    } else {
        layout.lanes as u32
    }
}

impl<'k> VectorLoads<'k> {
    /// Declares an operand to be read in runs of `run` along an axis, which is a divisor of [`longest`].
    pub(crate) fn declare(
        l: &Launch<'k>,
        problem: &Problem<'_>,
        side: MatrixRole,
        along: Axis,
        run: u32,
    ) -> Self {
        let (operand, ..) = operand(problem, side);
        let name = if side == MatrixRole::A { "a" } else { "b" };
        let elem = math::elem(operand.operand.ty.dtype);
        let packed_f16 = (run == F16_PER_VECTOR).then_some(elem);
        let held = if packed_f16.is_some() { Elem::U32 } else { elem };
        let buffer = l.bind(name, held, Access::Read, operand.operand.memory);
        let stride = |axis: Axis, what: &str, value: Dim| {
            if along == axis && run > 1 { l.k().u32(1) } else { l.stride(&format!("{name}_{what}"), value) }
        };
        let (outer, k_stride) =
            (stride(Axis::Outer, "outer", operand.outer), stride(Axis::K, "k_stride", operand.k_stride));
        VectorLoads { buffer, run, packed_f16, outer, k_stride }
    }

    /// The run from an element on, whose index is a multiple of the run's length; as registers that sums are made of.
    pub(crate) fn run(&self, index: Val<'k>) -> Vec<Val<'k>> {
        let Some(elem) = self.packed_f16 else { return self.buffer.load_vec(index, self.run as u8) };
        let words = self.buffer.load_vec(index / 2u32, 4);
        words.into_iter().flat_map(|word| [widened(word, elem, 0), widened(word, elem, 1)]).collect()
    }

    /// One element.
    pub(crate) fn one(&self, index: Val<'k>) -> Val<'k> {
        let Some(elem) = self.packed_f16 else { return self.buffer.load(index) };
        let word = self.buffer.load(index / 2u32);
        widened(word >> ((index & 1u32) * 16u32), elem, 0)
    }
}

/// The low (0) or high (1) half of a word as f32.
fn widened(word: Val<'_>, elem: Elem, half: u8) -> Val<'_> {
    match (elem, half) {
        (Elem::BF16, 0) => (word << 16u32).bitcast(Scalar::F32),
        (Elem::BF16, _) => (word & 0xffff_0000u32).bitcast(Scalar::F32),
        _ => word.unpack_half(half),
    }
}
