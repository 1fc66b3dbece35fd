//! Identities of elementwise operations.

use olivine_ir::op::{Binary, Compare, ScalarOp, Unary};
use olivine_ir::{DType, Data, Graph, Op, Shape, Tensor, TensorType, ValueId};

use super::Simpler;

/// Constants with more elements are not searched for one number that fills them.
const MOST_SEARCHED: usize = 4096;

pub(super) fn simplify(g: &Graph, op: ScalarOp, x: &[ValueId], ty: TensorType) -> Option<Simpler> {
    unstretched(g, op, x, ty).or_else(|| identity(g, op, x, ty))
}

/// Operands before they were stretched, where the operation's own broadcasting does the same.
fn unstretched(g: &Graph, op: ScalarOp, x: &[ValueId], ty: TensorType) -> Option<Simpler> {
    for (i, id) in x.iter().enumerate() {
        let ty_of = g.ty(*id).ok()?;
        let inner = match g.producer(*id) {
            Some(node) if matches!(node.op, Op::Expand(_)) => node.inputs.first().copied(),
            _ => None,
        };
        let number = if ty_of.shape.rank() > 0 { filled_with(g, *id) } else { None };
        let instead = match (inner, number) {
            (Some(inner), _) => g.ty(inner).ok()?,
            (None, Some(_)) => TensorType::new(ty_of.dtype, Shape::SCALAR),
            (None, None) => continue,
        };
        let mut types = x.iter().map(|id| g.ty(*id)).collect::<Result<Vec<_>, _>>().ok()?;
        types[i] = instead;
        if Op::ScalarOp(op).infer(&types) != Ok(vec![ty]) {
            continue;
        }
        let mut operands = x.to_vec();
        return Some(match inner {
            Some(inner) => {
                operands[i] = inner;
                Simpler::Node(op.into(), operands)
            }
            None => Simpler::WithConstant(op.into(), operands, i, first_element(g.as_const(*id)?)?),
        });
    }
    None
}

fn identity(g: &Graph, op: ScalarOp, x: &[ValueId], ty: TensorType) -> Option<Simpler> {
    match (op, x) {
        (ScalarOp::Cast(to), [a]) => cast(g, to, *a),
        (ScalarOp::Unary(op), [a]) => unary(g, op, *a),
        (ScalarOp::Binary(op), [a, b]) => binary(g, op, *a, *b, ty),
        (ScalarOp::Compare(op), [a, b]) => {
            let flipped = match op {
                Compare::Eq | Compare::Ne => op,
                Compare::Lt => Compare::Gt,
                Compare::Gt => Compare::Lt,
                Compare::Le => Compare::Ge,
                Compare::Ge => Compare::Le,
            };
            constant_to_the_right(g, ScalarOp::Compare(flipped), *a, *b)
        }
        (ScalarOp::Where, [_, a, b]) if a == b => Some(Simpler::Value(*a)),
        (ScalarOp::Where, [condition, a, b]) => {
            Some(Simpler::Value(if filled_with(g, *condition)? != 0.0 { *a } else { *b }))
        }
        (ScalarOp::Clamp, [a, low, high]) => {
            let unbounded = g.ty(*a).ok()?.dtype.is_float()
                && filled_with(g, *low)? == f64::NEG_INFINITY
                && filled_with(g, *high)? == f64::INFINITY;
            unbounded.then_some(Simpler::Value(*a))
        }
        _ => None,
    }
}

fn unary(g: &Graph, op: Unary, x: ValueId) -> Option<Simpler> {
    let before = g.producer(x)?;
    let (Op::ScalarOp(ScalarOp::Unary(first)), [inner]) = (&before.op, before.inputs.as_slice()) else {
        return None;
    };
    match (op, *first) {
        (Unary::Neg, Unary::Neg) | (Unary::Not, Unary::Not) => Some(Simpler::Value(*inner)),
        (Unary::Abs, Unary::Abs | Unary::Square) if g.ty(x).ok()?.dtype.is_float() => Some(Simpler::Value(x)),
        (Unary::Relu, Unary::Relu) => Some(Simpler::Value(x)),
        (
            Unary::Floor | Unary::Ceil | Unary::Round | Unary::Trunc,
            Unary::Floor | Unary::Ceil | Unary::Round | Unary::Trunc,
        ) => Some(Simpler::Value(x)),
        // The negative of an unsigned number wraps to another one of another size.
        (Unary::Abs, Unary::Neg) if !g.ty(x).ok()?.dtype.is_signed() => None,
        (Unary::Abs | Unary::Square, Unary::Neg) => {
            Some(Simpler::Node(ScalarOp::Unary(op).into(), vec![*inner]))
        }
        _ => None,
    }
}

fn cast(g: &Graph, to: DType, x: ValueId) -> Option<Simpler> {
    if g.ty(x).ok()?.dtype == to {
        return Some(Simpler::Value(x));
    }
    let before = g.producer(x)?;
    let (Op::ScalarOp(ScalarOp::Cast(between)), [inner]) = (&before.op, before.inputs.as_slice()) else {
        return None;
    };
    // A step that loses nothing can be left out, whatever follows.
    holds_all_of(*between, g.ty(*inner).ok()?.dtype)
        .then(|| Simpler::Node(ScalarOp::Cast(to).into(), vec![*inner]))
}

/// True when every number of `narrow` is one of `wide`.
fn holds_all_of(wide: DType, narrow: DType) -> bool {
    use DType::{BF16, Bool, F16, F32, F64, I8, I16, I32, I64, U8, U32};
    match narrow {
        Bool => true,
        I8 => matches!(wide, I8 | I16 | I32 | I64 | F16 | BF16 | F32 | F64),
        U8 => matches!(wide, U8 | I16 | I32 | U32 | I64 | F16 | BF16 | F32 | F64),
        I16 => matches!(wide, I16 | I32 | I64 | F32 | F64),
        I32 => matches!(wide, I32 | I64 | F64),
        U32 => matches!(wide, U32 | I64 | F64),
        I64 => wide == I64,
        F16 => matches!(wide, F16 | F32 | F64),
        BF16 => matches!(wide, BF16 | F32 | F64),
        F32 => matches!(wide, F32 | F64),
        F64 => wide == F64,
    }
}

fn binary(g: &Graph, op: Binary, a: ValueId, b: ValueId, ty: TensorType) -> Option<Simpler> {
    if matches!(op, Binary::Add | Binary::Mul | Binary::And | Binary::Or | Binary::Xor)
        && let Some(swapped) = constant_to_the_right(g, ScalarOp::Binary(op), a, b)
    {
        return Some(swapped);
    }
    if a == b && matches!(op, Binary::And | Binary::Or | Binary::Max | Binary::Min) {
        return Some(Simpler::Value(a));
    }
    let number = filled_with(g, b)?;
    let float = ty.dtype.is_float();
    let neutral = match op {
        // 0.0 would turn −0.0 into 0.0.
        Binary::Add if float => number == 0.0 && number.is_sign_negative(),
        Binary::Sub if float => number == 0.0 && number.is_sign_positive(),
        Binary::Add | Binary::Sub | Binary::Shl | Binary::Shr => number == 0.0,
        Binary::Mul | Binary::Div | Binary::Pow => number == 1.0,
        Binary::Max => float && number == f64::NEG_INFINITY,
        Binary::Min => float && number == f64::INFINITY,
        Binary::And => ty.dtype == DType::Bool && number == 1.0,
        Binary::Or | Binary::Xor => number == 0.0,
        Binary::Rem | Binary::Mod | Binary::Atan2 => false,
    };
    if neutral {
        return Some(Simpler::Value(a));
    }
    match op {
        Binary::Pow if number == 2.0 => Some(Simpler::Node(ScalarOp::Unary(Unary::Square).into(), vec![a])),
        Binary::Div if float => {
            let reciprocal = Tensor::scalar_of(ty.dtype, exact_reciprocal(ty.dtype, number)?);
            Some(Simpler::WithConstant(ScalarOp::Binary(Binary::Mul).into(), vec![a, b], 1, reciprocal))
        }
        _ => None,
    }
}

fn constant_to_the_right(g: &Graph, op: ScalarOp, a: ValueId, b: ValueId) -> Option<Simpler> {
    (g.as_const(a).is_some() && g.as_const(b).is_none()).then(|| Simpler::Node(op.into(), vec![b, a]))
}

/// The number that fills a constant.
fn filled_with(g: &Graph, id: ValueId) -> Option<f64> {
    let tensor = g.as_const(id)?;
    if !(1..=MOST_SEARCHED).contains(&tensor.shape().numel()) {
        return None;
    }
    let bytes = tensor.bytes();
    let (first, rest) = bytes.split_at_checked(tensor.dtype().size())?;
    rest.chunks_exact(first.len()).all(|c| c == first).then(|| tensor.to_f64().first().copied())?
}

/// The first element as a scalar, to the bit.
fn first_element(tensor: &Tensor) -> Option<Tensor> {
    let bytes = tensor.bytes().get(..tensor.dtype().size())?;
    Tensor::from_data(Shape::SCALAR, Data::from_bytes(tensor.dtype(), bytes).ok()?).ok()
}

/// `1 / number` for a power of two whose reciprocal is a normal number of the dtype, so that dividing and multiplying
/// round the same quotient.
fn exact_reciprocal(dtype: DType, number: f64) -> Option<f64> {
    let (least, most) = match dtype {
        DType::F16 => (-14, 15),
        DType::F64 => (-1022, 1023),
        _ => (-126, 127),
    };
    let mantissa = number.to_bits() & ((1 << 52) - 1);
    let reciprocal = 1.0 / number;
    let fits = (2f64.powi(least)..=2f64.powi(most)).contains(&reciprocal.abs());
    (number.is_normal() && mantissa == 0 && fits).then_some(reciprocal)
}

#[cfg(test)]
mod tests {
    use super::super::Canonicalise;
    use super::*;
    use crate::{Options, Pass};
    use olivine_ir::Error;

    /// The operations left of one binary operation with a number, and the number then on the right.
    fn with_number(dtype: DType, op: Binary, number: f64) -> Result<(Vec<&'static str>, Option<f64>), Error> {
        let mut g = Graph::new("g");
        let x = g.input("x", dtype, [3])?;
        let y = g.binary_scalar(op, x, number)?;
        g.output("y", y)?;
        let out = Canonicalise.run(&g, &Options::default())?;
        let right =
            out.nodes().first().and_then(|n| out.as_const(*n.inputs.get(1)?)?.to_f64().first().copied());
        Ok((out.nodes().iter().map(|n| n.op.name()).collect(), right))
    }

    #[test]
    fn only_numbers_neutral_for_every_input_are_dropped() -> Result<(), Error> {
        use Binary::{Add, Div, Max, Mul, Pow, Sub};
        for (dtype, op, number, dropped) in [
            (DType::F32, Add, 0.0, false),
            (DType::F32, Add, -0.0, true),
            (DType::F32, Sub, 0.0, true),
            (DType::F32, Sub, -0.0, false),
            (DType::I32, Add, 0.0, true),
            (DType::F16, Mul, 1.0, true),
            (DType::F32, Mul, 0.0, false),
            (DType::I64, Div, 1.0, true),
            (DType::F32, Pow, 1.0, true),
            (DType::F32, Pow, 0.5, false),
            (DType::F32, Max, f64::NEG_INFINITY, true),
            (DType::I32, Max, 0.0, false),
        ] {
            let left = with_number(dtype, op, number)?.0;
            assert_eq!(left.is_empty(), dropped, "{dtype} {} {number}", op.name());
        }
        Ok(())
    }

    #[test]
    fn division_by_a_power_of_two_multiplies_where_the_reciprocal_is_normal() -> Result<(), Error> {
        let mul = |x| (vec!["mul"], Some(x));
        assert_eq!(with_number(DType::F32, Binary::Div, 8.0)?, mul(0.125));
        assert_eq!(with_number(DType::F32, Binary::Div, -0.25)?, mul(-4.0));
        assert_eq!(with_number(DType::F32, Binary::Div, 3.0)?.0, ["div"]);
        assert_eq!(with_number(DType::F16, Binary::Div, 32768.0)?.0, ["div"]);
        assert_eq!(with_number(DType::I32, Binary::Div, 8.0)?.0, ["div"]);
        assert_eq!(with_number(DType::F32, Binary::Div, 0.0)?.0, ["div"]);
        assert_eq!(with_number(DType::F32, Binary::Pow, 2.0)?.0, ["square"]);
        Ok(())
    }

    #[test]
    fn a_neutral_constant_that_broadcasts_the_other_operand_stays() -> Result<(), Error> {
        let mut g = Graph::new("g");
        let x = g.input("x", DType::F32, Shape::SCALAR)?;
        let ones = g.constant(Tensor::new([3], vec![1.0f32; 3])?);
        let y = g.mul(ones, x)?;
        g.output("y", y)?;
        let out = Canonicalise.run(&g, &Options::default())?;
        assert_eq!(out.nodes().len(), 1);
        assert!(out.as_const(out.nodes()[0].inputs[1]).is_some(), "the constant goes to the right");
        assert_eq!(out.ty(out.output_named("y")?)?, g.ty(y)?);
        Ok(())
    }

    #[test]
    fn casts_through_a_wider_dtype_and_double_negation_vanish() -> Result<(), Error> {
        let mut g = Graph::new("g");
        let x = g.input("x", DType::F16, [3])?;
        let wide = g.cast(x, DType::F32)?;
        let back = g.cast(wide, DType::F16)?;
        let n = g.neg(back)?;
        let n = g.neg(n)?;
        let narrow = g.cast(wide, DType::BF16)?;
        let lossy = g.cast(narrow, DType::F16)?;
        g.output("n", n)?;
        g.output("lossy", lossy)?;
        let out = Canonicalise.run(&g, &Options::default())?;
        assert_eq!(out.output_named("n")?, ValueId::new(0));
        let kept = out.producer(out.output_named("lossy")?).and_then(|n| out.producer(n.inputs[0]));
        assert_eq!(kept.map(|n| n.op.clone()), Some(ScalarOp::Cast(DType::BF16).into()));
        Ok(())
    }

    #[test]
    fn a_choice_known_now_is_made_now() -> Result<(), Error> {
        let mut g = Graph::new("g");
        let (a, b) = (g.input("a", DType::F32, [2])?, g.input("b", DType::F32, [2])?);
        let no = g.constant(Tensor::new([2], vec![false, false])?);
        let mixed = g.constant(Tensor::new([2], vec![false, true])?);
        let (y, z) = (g.select(no, a, b)?, g.select(mixed, a, b)?);
        g.output("y", y)?;
        g.output("z", z)?;
        let out = Canonicalise.run(&g, &Options::default())?;
        assert_eq!(out.output_named("y")?, b);
        assert_eq!(out.nodes().len(), 1);
        Ok(())
    }

    #[test]
    fn stretching_that_broadcasting_does_anyway_is_left_out() -> Result<(), Error> {
        let mut g = Graph::new("g");
        let x = g.input("x", DType::I64, [2, 3])?;
        let row = g.input("row", DType::I64, [3])?;
        let wide = g.expand(row, [2, 3])?;
        let y = g.add(x, wide)?;
        let filled = g.constant(Tensor::new([2, 3], vec![i64::MAX - 1; 6])?);
        let y = g.max(y, filled)?;
        let needed = g.expand(row, [4, 3])?;
        let z = g.mul(needed, row)?;
        g.output("y", y)?;
        g.output("z", z)?;
        let out = Canonicalise.run(&g, &Options::default())?;
        let add = out.nodes().iter().find(|n| n.op.name() == "add").map(|n| n.inputs.clone());
        assert_eq!(add, Some(vec![x, row]));
        let max = out.producer(out.output_named("y")?).map(|n| out.as_const(n.inputs[1]).cloned());
        assert_eq!(max, Some(Some(Tensor::scalar(i64::MAX - 1))));
        assert_eq!(out.ty(out.output_named("z")?)?, g.ty(z)?);
        Ok(())
    }
}
