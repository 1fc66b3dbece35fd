//! Functions of numbers, one element at a time.

use olivine_ir::op::{Activation, Binary, Compare, ScalarOp, Unary};
use olivine_ir::{DType, ValueId};

use super::arity::Takes;
use super::integer;
use super::{Entry, angle};
use crate::ElementType;
use crate::import::{Answer, NodeContext, Value};

pub(super) const OPERATORS: &[Entry] = &[
    ("Abs", Takes(1, 1), |n| unary(n, Unary::Abs)),
    ("Acos", Takes(1, 1), |n| unary(n, Unary::Acos)),
    ("Acosh", Takes(1, 1), |n| unary(n, Unary::Acosh)),
    ("Add", Takes(2, 1), |n| binary(n, Binary::Add)),
    ("And", Takes(2, 1), |n| binary(n, Binary::And)),
    ("Asin", Takes(1, 1), |n| unary(n, Unary::Asin)),
    ("Asinh", Takes(1, 1), |n| unary(n, Unary::Asinh)),
    ("Atan", Takes(1, 1), |n| unary(n, Unary::Atan)),
    ("Atanh", Takes(1, 1), |n| unary(n, Unary::Atanh)),
    ("BitwiseAnd", Takes(2, 1), |n| binary(n, Binary::And)),
    ("BitwiseNot", Takes(1, 1), |n| unary(n, Unary::Not)),
    ("BitwiseOr", Takes(2, 1), |n| binary(n, Binary::Or)),
    ("BitwiseXor", Takes(2, 1), |n| binary(n, Binary::Xor)),
    ("Ceil", Takes(1, 1), |n| unary(n, Unary::Ceil)),
    ("Celu", Takes(1, 1), |n| {
        let alpha = f64::from(n.float_or("alpha", 1.0)?);
        activation(n, Activation::Celu { alpha })
    }),
    ("Cos", Takes(1, 1), |n| unary(n, Unary::Cos)),
    ("Cosh", Takes(1, 1), |n| unary(n, Unary::Cosh)),
    ("Div", Takes(2, 1), |n| binary(n, Binary::Div)),
    ("Elu", Takes(1, 1), |n| {
        let alpha = f64::from(n.float_or("alpha", 1.0)?);
        activation(n, Activation::Elu { alpha })
    }),
    ("Equal", Takes(2, 1), |n| compare(n, Compare::Eq)),
    ("Erf", Takes(1, 1), |n| unary(n, Unary::Erf)),
    ("Exp", Takes(1, 1), |n| unary(n, Unary::Exp)),
    ("Floor", Takes(1, 1), |n| unary(n, Unary::Floor)),
    ("Gelu", Takes(1, 1), gelu),
    ("Greater", Takes(2, 1), |n| compare(n, Compare::Gt)),
    ("GreaterOrEqual", Takes(2, 1), |n| compare(n, Compare::Ge)),
    ("HardSigmoid", Takes(1, 1), |n| {
        let (alpha, beta) = (f64::from(n.float_or("alpha", 0.2)?), f64::from(n.float_or("beta", 0.5)?));
        activation(n, Activation::HardSigmoid { alpha, beta })
    }),
    ("HardSwish", Takes(1, 1), |n| unary(n, Unary::HardSwish)),
    ("IsInf", Takes(1, 1), is_inf),
    ("IsNaN", Takes(1, 1), |n| unary(n, Unary::IsNan)),
    ("LeakyRelu", Takes(1, 1), |n| {
        let alpha = f64::from(n.float_or("alpha", 0.01)?);
        activation(n, Activation::LeakyRelu { alpha })
    }),
    ("Less", Takes(2, 1), |n| compare(n, Compare::Lt)),
    ("LessOrEqual", Takes(2, 1), |n| compare(n, Compare::Le)),
    ("Log", Takes(1, 1), |n| unary(n, Unary::Log)),
    ("Mish", Takes(1, 1), |n| unary(n, Unary::Mish)),
    ("Mul", Takes(2, 1), |n| binary(n, Binary::Mul)),
    ("Neg", Takes(1, 1), |n| unary(n, Unary::Neg)),
    ("Not", Takes(1, 1), |n| unary(n, Unary::Not)),
    ("Or", Takes(2, 1), |n| binary(n, Binary::Or)),
    ("PRelu", Takes(2, 1), prelu),
    ("Reciprocal", Takes(1, 1), |n| unary(n, Unary::Reciprocal)),
    ("Relu", Takes(1, 1), |n| unary(n, Unary::Relu)),
    ("Round", Takes(1, 1), |n| unary(n, Unary::Round)),
    ("Selu", Takes(1, 1), selu),
    ("Shrink", Takes(1, 1), shrink),
    ("Sigmoid", Takes(1, 1), |n| unary(n, Unary::Sigmoid)),
    ("Sign", Takes(1, 1), |n| unary(n, Unary::Sign)),
    ("Sin", Takes(1, 1), |n| unary(n, Unary::Sin)),
    ("Sinh", Takes(1, 1), |n| unary(n, Unary::Sinh)),
    ("Softplus", Takes(1, 1), |n| unary(n, Unary::Softplus)),
    ("Softsign", Takes(1, 1), |n| unary(n, Unary::Softsign)),
    ("Sqrt", Takes(1, 1), |n| unary(n, Unary::Sqrt)),
    ("Sub", Takes(2, 1), |n| binary(n, Binary::Sub)),
    ("Swish", Takes(1, 1), swish),
    ("Tan", Takes(1, 1), |n| unary(n, Unary::Tan)),
    ("Tanh", Takes(1, 1), |n| unary(n, Unary::Tanh)),
    ("ThresholdedRelu", Takes(1, 1), thresholded_relu),
    ("Where", Takes(3, 1), select),
    ("Xor", Takes(2, 1), |n| binary(n, Binary::Xor)),
];

fn unary(n: &mut NodeContext<'_, '_>, op: Unary) -> Answer<Vec<Value>> {
    let (x, element) = (n.tensor(0)?, n.element(0)?);
    let y = n.build(|g| integer::unary(g, op, x, element))?;
    if matches!(op, Unary::IsNan | Unary::IsInf) { Ok(vec![n.native(y)?]) } else { n.like_first(y) }
}

fn activation(n: &mut NodeContext<'_, '_>, op: Activation) -> Answer<Vec<Value>> {
    let x = n.tensor(0)?;
    let y = n.add(ScalarOp::Activation(op), &[x])?;
    n.like_first(y)
}

/// Two operands of one element type, as they broadcast.
pub(super) fn pair(n: &mut NodeContext<'_, '_>) -> Answer<(ValueId, ValueId, ElementType)> {
    let (a, b) = (n.element(0)?, n.element(1)?);
    if a != b {
        return Err(n.wrong(format!("its inputs are of {a} and of {b}")));
    }
    let (x, y) = broadcast_pair(n)?;
    Ok((x, y, a))
}

/// Two operands as they broadcast: by NumPy's rule, or below opset 7 the second over a run of the first's axes.
pub(super) fn broadcast_pair(n: &mut NodeContext<'_, '_>) -> Answer<(ValueId, ValueId)> {
    let (a, b) = (n.tensor(0)?, n.tensor(1)?);
    if n.opset() >= 7 || !n.flag("broadcast", false)? {
        return Ok((a, b));
    }
    let (over, of) = (n.shape(a)?, n.shape(b)?);
    let axis = match n.int("axis")? {
        Some(axis) => n.axis(axis, over.rank())?,
        None => return Ok((a, b)),
    };
    let Some(after) = over.rank().checked_sub(axis + of.rank()) else {
        return Err(n.wrong(format!("{of} from axis {axis} on does not lie over {over}")));
    };
    let dims = [of.dims(), &vec![1; after]].concat();
    Ok((a, reshaped(n, b, &dims)?))
}

/// A tensor in another shape of as many elements, zeros among its sizes or not.
pub(super) fn reshaped(n: &mut NodeContext<'_, '_>, x: ValueId, dims: &[usize]) -> Answer<ValueId> {
    if dims.contains(&0) {
        // To the graph's reshape a zero is a size to copy.
        let dtype = n.dtype(x)?;
        let nothing = n.scalar(dtype, 0.0);
        return n.build(|g| g.fill(nothing, dims));
    }
    let dims: Vec<i64> = dims.iter().map(|d| *d as i64).collect();
    n.build(|g| g.reshape(x, &dims))
}

fn binary(n: &mut NodeContext<'_, '_>, op: Binary) -> Answer<Vec<Value>> {
    let (a, b, element) = pair(n)?;
    let y = n.build(|g| integer::binary(g, op, a, b, element))?;
    n.like_first(y)
}

fn compare(n: &mut NodeContext<'_, '_>, op: Compare) -> Answer<Vec<Value>> {
    let (a, b, element) = pair(n)?;
    let y = n.build(|g| integer::compare(g, op, a, b, element))?;
    Ok(vec![n.result(y, ElementType::Bool)])
}

fn gelu(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    match n.string_or("approximate", "none")?.as_str() {
        "none" => unary(n, Unary::Gelu),
        "tanh" => unary(n, Unary::GeluTanh),
        other => Err(n.wrong(format!("approximate `{other}` is unknown"))),
    }
}

fn is_inf(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (negative, positive) = (n.flag("detect_negative", true)?, n.flag("detect_positive", true)?);
    let x = n.tensor(0)?;
    let (dtype, shape) = (n.dtype(x)?, n.shape(x)?);
    let y = match (negative, positive) {
        (true, true) => n.build(|g| g.isinf(x))?,
        (false, false) => {
            let no = n.scalar(DType::Bool, 0.0);
            n.build(|g| g.fill(no, shape))?
        }
        (_, positive) => {
            let infinity = n.scalar(dtype, if positive { f64::INFINITY } else { f64::NEG_INFINITY });
            n.build(|g| g.eq(x, infinity))?
        }
    };
    Ok(vec![n.result(y, ElementType::Bool)])
}

fn prelu(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (x, mut slope, element) = (n.tensor(0)?, n.tensor(1)?, n.element(0)?);
    if n.element(1)? != element {
        return Err(n.wrong("its slope is of another type than its input"));
    }
    let (over, of) = (n.shape(x)?, n.shape(slope)?);
    if n.opset() < 7 && of.rank() == 1 && of.numel() > 1 && over.rank() > 2 {
        // One slope a channel.
        let dims = [of.dims(), &vec![1; over.rank() - 2]].concat();
        slope = reshaped(n, slope, &dims)?;
    }
    let dtype = n.dtype(x)?;
    let zero = n.scalar(dtype, 0.0);
    let y = n.build(|g| {
        let below = integer::compare(g, Compare::Lt, x, zero, element)?;
        let scaled = integer::binary(g, Binary::Mul, x, slope, element)?;
        g.select(below, scaled, x)
    })?;
    n.like_first(y)
}

fn selu(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    // The numbers as the specification writes them, rounded to f32 as attributes are.
    let (alpha, gamma) = (1.673_263_2_f32, 1.050_701_f32);
    let (own_alpha, own_gamma) = (n.float_or("alpha", alpha)?, n.float_or("gamma", gamma)?);
    if (own_alpha, own_gamma) == (alpha, gamma) {
        return unary(n, Unary::Selu);
    }
    let x = n.tensor(0)?;
    let y = n.build(|g| {
        let bent = g.activation(Activation::Elu { alpha: f64::from(own_alpha) }, x)?;
        g.binary_scalar(Binary::Mul, bent, f64::from(own_gamma))
    })?;
    n.like_first(y)
}

fn shrink(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (bias, lambda) = (f64::from(n.float_or("bias", 0.0)?), f64::from(n.float_or("lambd", 0.5)?));
    let (x, element) = (n.tensor(0)?, n.element(0)?);
    // Both numbers are floats: integers meet them as such.
    let wide = if matches!(element, ElementType::F64 | ElementType::F16 | ElementType::BF16) {
        element
    } else {
        ElementType::F32
    };
    let dtype = n.dtype(x)?;
    let own = if element == wide { dtype } else { DType::F32 };
    let (low, high, bias) = (n.scalar(own, -lambda), n.scalar(own, lambda), n.scalar(own, bias));
    let zero = n.scalar(own, 0.0);
    let y = n.build(|g| {
        let x = super::cast::convert(g, x, element, wide)?;
        let (under, over) = (g.lt(x, low)?, g.gt(x, high)?);
        let (raised, lowered) = (g.add(x, bias)?, g.sub(x, bias)?);
        let y = g.select(over, lowered, zero)?;
        let y = g.select(under, raised, y)?;
        super::cast::convert(g, y, wide, element)
    })?;
    n.like_first(y)
}

fn swish(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let alpha = n.float_or("alpha", 1.0)?;
    if alpha == 1.0 {
        return unary(n, Unary::Silu);
    }
    let x = n.tensor(0)?;
    let y = n.build(|g| {
        let scaled = g.binary_scalar(Binary::Mul, x, f64::from(alpha))?;
        let gate = g.sigmoid(scaled)?;
        g.mul(x, gate)
    })?;
    n.like_first(y)
}

fn thresholded_relu(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let alpha = f64::from(n.float_or("alpha", 1.0)?);
    let x = n.tensor(0)?;
    let dtype = n.dtype(x)?;
    let (alpha, zero) = (n.scalar(dtype, alpha), n.scalar(dtype, 0.0));
    let y = n.build(|g| {
        let over = g.gt(x, alpha)?;
        g.select(over, x, zero)
    })?;
    n.like_first(y)
}

fn select(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (condition, a, b) = (n.tensor(0)?, n.tensor(1)?, n.tensor(2)?);
    if n.dtype(condition)? != DType::Bool {
        return Err(n.wrong("its condition is not bool"));
    }
    let element = n.element(1)?;
    if n.element(2)? != element {
        return Err(n.wrong(format!("it chooses between {element} and {}", n.element(2)?)));
    }
    let y = match angle::angle(n, condition, a, b)? {
        Some(angle) => angle,
        None => n.build(|g| g.select(condition, a, b))?,
    };
    Ok(vec![n.result(y, element)])
}
