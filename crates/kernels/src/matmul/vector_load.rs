//! A factor read straight from memory by runs of neighbours along one axis, at most 16 bytes at a time.

use olivine_kernel::{Access, Buf, Elem, Scalar, Val};

use crate::launch::Launch;
use crate::math;
use crate::matmul::problem::{Axis, Factor, Problem};

/// Halves of a run of 16 bytes, which is read as four words.
pub(crate) const HALVES: u32 = 8;

/// Which factor of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    A,
    B,
}

/// A declared factor.
pub(crate) struct Stream<'k> {
    buffer: Buf<'k>,
    /// Elements of a run.
    run: u32,
    /// The halves that words hold two of.
    halves: Option<Elem>,
    /// Strides over rows (of A) or columns (of B) and over depths.
    pub(crate) outer: Val<'k>,
    pub(crate) depth: Val<'k>,
}

fn factor<'p>(problem: &'p Problem<'_>, side: Side) -> (&'p Factor, usize, usize) {
    match side {
        Side::A => (&problem.a, problem.m, 0),
        Side::B => (&problem.b, problem.n, 1),
    }
}

/// Neighbours along an axis that one load may take: a power of two that divides their number.
pub(crate) fn longest(problem: &Problem<'_>, side: Side, along: Axis) -> u32 {
    let (factor, extent, number) = factor(problem, side);
    let lie = if side == Side::A { problem.lie_of_a() } else { problem.lie_of_b() };
    if lie.along != along {
        return 1;
    }
    let (other, size) = match along {
        Axis::Outer => (factor.depth, extent),
        Axis::Depth => (factor.outer, problem.k),
    };
    let mut steps = problem.batch.strides[number].iter().copied();
    let whole = |x: i64| x % i64::from(HALVES) == 0;
    let halves = matches!(math::elem(factor.operand.ty.dtype), Elem::F16 | Elem::BF16);
    let starts = whole(other) && whole(factor.operand.offset as i64) && steps.all(whole);
    if halves && lie.lanes == 4 && whole(size as i64) && starts { HALVES } else { lie.lanes as u32 }
}

impl<'k> Stream<'k> {
    /// Declares a factor to be read in runs of `run` along an axis, which is a divisor of [`longest`].
    pub(crate) fn declare(l: &Launch<'k>, problem: &Problem<'_>, side: Side, along: Axis, run: u32) -> Self {
        let (factor, ..) = factor(problem, side);
        let name = if side == Side::A { "a" } else { "b" };
        let elem = math::elem(factor.operand.ty.dtype);
        let halves = (run == HALVES).then_some(elem);
        let held = if halves.is_some() { Elem::U32 } else { elem };
        let buffer = l.bind(name, held, Access::Read, factor.operand.memory);
        let stride = |axis: Axis, what: &str, value: i64| {
            if along == axis && run > 1 { l.k().u32(1) } else { l.stride(&format!("{name}_{what}"), value) }
        };
        let (outer, depth) =
            (stride(Axis::Outer, "outer", factor.outer), stride(Axis::Depth, "depth", factor.depth));
        Stream { buffer, run, halves, outer, depth }
    }

    /// The run from an element on, whose index is a multiple of the run's length; as registers that sums are made of.
    pub(crate) fn run(&self, index: Val<'k>) -> Vec<Val<'k>> {
        let Some(elem) = self.halves else { return self.buffer.load_vec(index, self.run as u8) };
        let words = self.buffer.load_vec(index / 2u32, 4);
        words.into_iter().flat_map(|word| [widened(word, elem, 0), widened(word, elem, 1)]).collect()
    }

    /// One element.
    pub(crate) fn one(&self, index: Val<'k>) -> Val<'k> {
        let Some(elem) = self.halves else { return self.buffer.load(index) };
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
