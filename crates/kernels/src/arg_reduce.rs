//! Argmax and argmin: a reduction of keys, which are unsigned integers in the order of the elements, with their
//! indices.

use olivine_ir::DType;
use olivine_ir::op::{ArgReduce, ArgReduceKind};
use olivine_kernel::{Builder, Elem, Scalar, Val};

use super::reduce::{self, Fold, ReduceOutput};
use super::rows::{State, tree};
use crate::kernels;
use crate::math;
use crate::site::Site;

kernels! { |op, site|
    ArgReduce => arg_reduce(op, site),
}

/// Lowers argmax or argmin.
pub(crate) fn arg_reduce(op: &ArgReduce, site: &mut Site<'_>) -> Result<(), String> {
    let operand = site.operands[0].clone();
    let fold = Position { kind: op.kind, last: op.last, nan_leads: true, dtype: operand.ty.dtype };
    // Positions fit in the low words, so no device needs 64-bit registers for them.
    let to = ReduceOutput::Result { memory: site.targets[0].memory, elem: Elem::U32, lanes: 2 };
    reduce::run(&fold, &operand, &[op.axis], to, site)
}

/// Lowers the choice of each row's largest logit, as i32; NaN counts as −∞.
pub(crate) fn largest_logit(site: &mut Site<'_>) -> Result<(), String> {
    let logits = site.operands[0].clone();
    let fold = Position { kind: ArgReduceKind::Max, last: false, nan_leads: false, dtype: logits.ty.dtype };
    let to = ReduceOutput::Result { memory: site.targets[0].memory, elem: Elem::I32, lanes: 1 };
    reduce::run(&fold, &logits, &[logits.ty.shape.rank() - 1], to, site)
}

struct Position {
    kind: ArgReduceKind,
    last: bool,
    /// Whether NaN is before all numbers; else it counts as −∞, and the result is a single i32.
    nan_leads: bool,
    dtype: DType,
}

impl Position {
    fn key_scalar(&self) -> Scalar {
        if math::elem(self.dtype).scalar().bits() == 64 { Scalar::U64 } else { Scalar::U32 }
    }

    /// A number's key: the best one has the greatest, equal numbers have the same.
    fn key<'k>(&self, x: Val<'k>) -> Val<'k> {
        let (k, scalar) = (x.builder(), self.key_scalar());
        let width = scalar.bits();
        let constant = |bits: u64| k.constant(scalar, bits);
        let sign = constant(1 << (width - 1));
        let bits = x.bitcast(scalar);
        let ascending = match x.scalar() {
            Scalar::F32 | Scalar::F64 => {
                let zero_is_one = bits.eq(sign).select(constant(0), bits);
                (zero_is_one & sign).ne(constant(0)).select(!zero_is_one, zero_is_one | sign)
            }
            s if s.is_signed_int() => bits ^ sign,
            _ => bits,
        };
        let key = match self.kind {
            ArgReduceKind::Max => ascending,
            ArgReduceKind::Min => !ascending,
        };
        if !x.scalar().is_float() {
            return key;
        }
        let infinity = if width == 64 { f64::INFINITY.to_bits() } else { f32::INFINITY.to_bits().into() };
        let nan = (bits & !sign).gt(constant(infinity));
        let all = u64::MAX >> (64 - width);
        let lowest = all ^ (infinity | 1 << (width - 1));
        nan.select(constant(if self.nan_leads { all } else { lowest }), key)
    }
}

impl Fold for Position {
    fn name(&self) -> &'static str {
        self.kind.name()
    }

    fn identity<'k>(&self, k: &'k Builder) -> State<'k> {
        // Among equal keys it loses, too.
        vec![k.constant(self.key_scalar(), 0), k.u32(if self.last { 0 } else { u32::MAX })]
    }

    fn lift<'k>(&self, x: Val<'k>, position: Val<'k>) -> State<'k> {
        vec![self.key(x), position]
    }

    fn join<'k>(&self, a: &[Val<'k>], b: &[Val<'k>]) -> State<'k> {
        let preferred = if self.last { b[1].gt(a[1]) } else { b[1].lt(a[1]) };
        let b_wins = b[0].gt(a[0]) | (b[0].eq(a[0]) & preferred);
        vec![b_wins.select(b[0], a[0]), b_wins.select(b[1], a[1])]
    }

    /// Positions of a batch grow, so that keys decide alone.
    fn batch<'k>(&self, elements: &[(Val<'k>, Val<'k>)]) -> State<'k> {
        let lifted = elements.iter().map(|(x, position)| self.lift(*x, *position)).collect();
        tree(lifted, |a, b| {
            let b_wins = if self.last { b[0].ge(a[0]) } else { b[0].gt(a[0]) };
            vec![b_wins.select(b[0], a[0]), b_wins.select(b[1], a[1])]
        })
    }

    fn finish<'k>(&self, state: &[Val<'k>], _: Val<'k>) -> Vec<Val<'k>> {
        let position = state[1];
        match self.nan_leads {
            true => vec![position, position.builder().u32(0)],
            false => vec![position.bitcast(Scalar::I32)],
        }
    }
}
