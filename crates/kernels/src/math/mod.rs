//! Elementwise functions written in the kernel language, right on devices whose own are only roughly so.
//!
//! ```text
//!   scalar_op ─┬─ single, activation, trig, power: f32, which f16 and bf16 compute in
//!              ├─ exact: quotients, roots, fma, remainders to the last bit
//!              ├─ double, double_trig: f64
//!              └─ ints, casts
//! ```
//!
//! A result of f16 or bf16 is rounded after every operation, as the CPU backend does. Where a device flushes denormals
//! of f32, sums, products and conversions from f64 that give them are the device's own, and activations below 2^-126
//! may be zeros; quotients, roots, remainders, fma, comparisons, the lesser and the greater, powers and functions that
//! are nearly linear at zero are right there too. NaN is known by its bits, and rounding errors are taken from
//! [`Val::opaque`] values: some compilers expect no NaN and calculate as if numbers were real.

mod activation;
mod bits;
mod casts;
mod double;
mod double_trig;
mod exact;
mod ints;
mod power;
mod single;
#[cfg(test)]
mod tests;
mod trig;

use olivine_ir::op::{Arg, Binary, Compare, InstrOp, Region, ScalarOp, Unary};
use olivine_ir::{DType, half, round_to_odd};
use olivine_kernel::{Builder, CompareOp, Elem, Scalar, Val};

pub use bits::{compare, pick};
pub(crate) use bits::{is_inf, is_nan, round_to};
pub(crate) use casts::half_bits;
#[allow(unused_imports, reason = "kernel families call what they need")]
pub(crate) use exact::{div, div_near, rsqrt, sqrt};

/// A register with the dtype that it stands for: f16 and bf16 are held in f32, narrow integers in 32 bits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Typed<'k> {
    /// The register, of type `elem(dtype).scalar()`.
    pub(crate) val: Val<'k>,
    /// What it stands for.
    pub(crate) dtype: DType,
}

/// The layout of a dtype in memory.
pub fn elem(dtype: DType) -> Elem {
    match dtype {
        DType::F32 => Elem::F32,
        DType::F16 => Elem::F16,
        DType::BF16 => Elem::BF16,
        DType::F64 => Elem::F64,
        DType::I8 => Elem::I8,
        DType::U8 => Elem::U8,
        DType::I16 => Elem::I16,
        DType::I32 => Elem::I32,
        DType::U32 => Elem::U32,
        DType::I64 => Elem::I64,
        DType::Bool => Elem::Bool,
    }
}

/// A number of a dtype; integers saturate.
pub(crate) fn splat<'k>(k: &'k Builder, dtype: DType, value: f64) -> Typed<'k> {
    let within = |low: i64, high: i64| (value as i64).clamp(low, high) as u64;
    let narrow = |low: i32, high: i32| within(low.into(), high.into()) & 0xffff_ffff;
    let bits = match dtype {
        DType::F32 => u64::from((value as f32).to_bits()),
        DType::F16 => u64::from(half::f16::from_f32(round_to_odd(value)).to_f32().to_bits()),
        DType::BF16 => u64::from(half::bf16::from_f32(round_to_odd(value)).to_f32().to_bits()),
        DType::F64 => value.to_bits(),
        DType::I8 => narrow(-128, 127),
        DType::U8 => narrow(0, 255),
        DType::I16 => narrow(-32768, 32767),
        DType::I32 => narrow(i32::MIN, i32::MAX),
        DType::U32 => within(0, u32::MAX.into()),
        DType::I64 => value as i64 as u64,
        DType::Bool => u64::from(value != 0.0),
    };
    Typed { val: k.constant(elem(dtype).scalar(), bits), dtype }
}

/// One elementwise operation on registers of the dtypes that [`ScalarOp::result_dtype`] takes, giving `out`. There is
/// at least one operand.
pub(crate) fn scalar_op<'k>(op: &ScalarOp, args: &[Typed<'k>], out: DType) -> Typed<'k> {
    let val = match (*op, args) {
        (ScalarOp::Cast(to), [x]) => casts::cast(*x, to),
        (ScalarOp::Bitcast(to), [x]) => casts::bitcast(*x, to),
        (ScalarOp::Where, [c, a, b]) => pick(c.val, a.val, b.val),
        (ScalarOp::Compare(c), [a, b]) => compare(comparison(c), a.val, b.val),
        (ScalarOp::Unary(Unary::Gelu), [x]) if x.dtype == DType::F16 => {
            pick(is_nan(x.val), x.val, single::gelu_of_half(x.val))
        }
        (ScalarOp::Unary(u), [x]) if x.dtype.is_float() => unary(u, x.val),
        (ScalarOp::Unary(_), [x]) if x.dtype == DType::Bool => !x.val,
        (ScalarOp::Unary(u), [x]) => ints::unary(u, x.val, x.dtype),
        (ScalarOp::Activation(a), [x]) => activation::parametric(a, x.val),
        (ScalarOp::Binary(b), [x, y]) if is_native(b, *x) => return native(b, x.val, y.val),
        (ScalarOp::Binary(b), [x, y]) if x.dtype.is_float() => binary(b, x.val, y.val),
        (ScalarOp::Binary(b), [x, y]) if x.dtype == DType::Bool => ints::logic(b, x.val, y.val),
        (ScalarOp::Binary(b), [x, y]) => ints::binary(b, x.val, y.val, x.dtype),
        (ScalarOp::Fma, [a, b, c]) if a.dtype == DType::F64 => double::fma(a.val, b.val, c.val),
        (ScalarOp::Fma, [a, b, c]) if a.dtype.is_float() => exact::fma(a.val, b.val, c.val, a.dtype),
        (ScalarOp::Fma, [a, b, c]) => ints::wrap(a.val * b.val + c.val, a.dtype),
        (ScalarOp::Clamp, [x, low, high]) if x.dtype.is_float() => min_nan(max_nan(x.val, low.val), high.val),
        (ScalarOp::Clamp, [x, low, high]) => x.val.max(low.val).min(high.val),
        _ => {
            let first = args[0].val;
            first.builder().fail(format!("{op:?} of {} operands", args.len()));
            first
        }
    };
    let exact = matches!(
        op,
        ScalarOp::Cast(_) | ScalarOp::Bitcast(_) | ScalarOp::Where | ScalarOp::Fma | ScalarOp::Clamp
    );
    let val = if exact { val } else { round_to(val, out) };
    Typed { val, dtype: out }
}

fn comparison(c: Compare) -> CompareOp {
    match c {
        Compare::Eq => CompareOp::Eq,
        Compare::Ne => CompareOp::Ne,
        Compare::Lt => CompareOp::Lt,
        Compare::Le => CompareOp::Le,
        Compare::Gt => CompareOp::Gt,
        Compare::Ge => CompareOp::Ge,
    }
}

/// A function of one f32 or f64: the table of them all.
pub fn unary(u: Unary, x: Val<'_>) -> Val<'_> {
    use Unary as U;
    match u {
        U::Neg => bits::negative(x),
        U::Abs => bits::absolute(x),
        U::Square => x * x,
        U::Ceil => bits::lifted(x).ceil(),
        U::Floor => bits::lifted(x).floor(),
        U::Round => x.round_even(),
        U::Trunc => x.trunc(),
        U::Reciprocal => div(x.like(1.0), x),
        U::Sqrt => sqrt(x),
        U::Rsqrt => rsqrt(x),
        U::IsNan => is_nan(x),
        U::IsInf => is_inf(x),
        U::LogSigmoid => bits::negative(unary(U::Softplus, bits::negative(x))),
        U::Relu => {
            unless_nan(x, |x| bits::below_zero(x).select(x.like(0.0), x), |x| single::at_least(x, 0.0))
        }
        U::Sign => unless_nan(
            x,
            |x| bits::magnitude(x).eq(0).select(x, bits::copysign(x.like(1.0), x)),
            double::sign,
        ),
        U::Exp => unless_nan(x, single::exp, double::exp),
        U::Expm1 => unless_nan(x, single::expm1, double::expm1),
        U::Log => unless_nan(x, single::log, double::log),
        U::Log1p => unless_nan(x, single::log1p, double::log1p),
        U::Log2 => unless_nan(x, single::log2, double::log2),
        U::Tanh => unless_nan(x, single::tanh, double::tanh),
        U::Erf => unless_nan(x, single::erf, double::erf),
        U::Gelu => unless_nan(x, single::gelu, double::gelu),
        U::Sin => unless_nan(x, trig::sin, double_trig::sin),
        U::Cos => unless_nan(x, trig::cos, double_trig::cos),
        U::Tan => unless_nan(x, trig::tan, double_trig::tan),
        U::Asin => unless_nan(x, trig::asin, double_trig::asin),
        U::Acos => unless_nan(x, trig::acos, double_trig::acos),
        U::Atan => unless_nan(x, trig::atan, double_trig::atan),
        U::Sinh => unless_nan(x, trig::sinh, double_trig::sinh),
        U::Cosh => unless_nan(x, trig::cosh, double_trig::cosh),
        U::Asinh => unless_nan(x, trig::asinh, double_trig::asinh),
        U::Acosh => unless_nan(x, trig::acosh, double_trig::acosh),
        U::Atanh => unless_nan(x, trig::atanh, double_trig::atanh),
        U::Sigmoid => unless_nan(x, activation::sigmoid, double::sigmoid),
        U::Silu => unless_nan(x, activation::silu, double::silu),
        U::GeluTanh => unless_nan(x, activation::gelu_tanh, double::gelu_tanh),
        U::Softplus => unless_nan(x, activation::softplus, double::softplus),
        U::Softsign => unless_nan(x, activation::softsign, double::softsign),
        U::Selu => unless_nan(x, activation::selu, double::selu),
        U::Mish => unless_nan(x, activation::mish, double::mish),
        U::HardSwish => unless_nan(x, activation::hard_swish, double::hard_swish),
        U::Not => {
            x.builder().fail(format!("{u:?} of a float"));
            x
        }
    }
}

/// NaN, or one of two functions that may make anything of it: the first for f32, the second for f64.
fn unless_nan<'k>(x: Val<'k>, of_f32: fn(Val<'k>) -> Val<'k>, of_f64: fn(Val<'k>) -> Val<'k>) -> Val<'k> {
    let of = if x.scalar() == Scalar::F64 { of_f64 } else { of_f32 };
    pick(is_nan(x), x, of(x))
}

/// Whether the device's own instructions round an operation on two f16 or bf16 values correctly.
fn is_native(op: Binary, x: Typed<'_>) -> bool {
    let plain = matches!(op, Binary::Add | Binary::Sub | Binary::Mul);
    plain && x.dtype == DType::F16 && x.val.builder().target().exact_f16
}

/// A sum, difference or product of two f16 or bf16 values in their own registers.
fn native<'k>(op: Binary, a: Val<'k>, b: Val<'k>) -> Typed<'k> {
    let half = |x: Val<'k>| x.convert(Scalar::F16);
    let val = binary(op, half(a), half(b)).convert(Scalar::F32);
    Typed { val, dtype: DType::F16 }
}

/// A function of two f32 or f64; sums, differences and products of two f16 too.
pub fn binary<'k>(op: Binary, a: Val<'k>, b: Val<'k>) -> Val<'k> {
    let wide = a.scalar() == Scalar::F64;
    match op {
        Binary::Add => a + b,
        Binary::Sub => a - b,
        Binary::Mul => a * b,
        Binary::Div => div(a, b),
        Binary::Max => max_nan(a, b),
        Binary::Min => min_nan(a, b),
        Binary::Pow if wide => double::pow(a, b),
        Binary::Pow => power::pow(a, b),
        Binary::Rem if wide => double::rem(a, b),
        Binary::Rem => exact::rem(a, b),
        Binary::Mod if wide => double::modulo(a, b),
        Binary::Mod => exact::modulo(a, b),
        Binary::Atan2 if wide => double_trig::atan2(a, b),
        Binary::Atan2 => trig::atan2(a, b),
        Binary::And | Binary::Or | Binary::Xor | Binary::Shl | Binary::Shr => {
            a.builder().fail(format!("{op:?} of floats"));
            a
        }
    }
}

/// The larger of two floats; NaN if either is.
pub(crate) fn max_nan<'k>(a: Val<'k>, b: Val<'k>) -> Val<'k> {
    let other = compare(CompareOp::Le, a, b) | is_nan(b);
    pick(other, b, a)
}

/// The smaller of two floats; NaN if either is.
pub(crate) fn min_nan<'k>(a: Val<'k>, b: Val<'k>) -> Val<'k> {
    let other = compare(CompareOp::Ge, a, b) | is_nan(b);
    pick(other, b, a)
}

/// eˣ of f32 or f64.
pub(crate) fn exp(x: Val<'_>) -> Val<'_> {
    unary(Unary::Exp, x)
}

/// A multiple of eˣ, the same for all x, for x ≤ 0 and NaN of f32 or f64; and what to multiply it with to get eˣ. Far
/// below zero it is small, but no zero.
pub(crate) fn exp_multiple(x: Val<'_>) -> (Val<'_>, Val<'_>) {
    match x.scalar() {
        Scalar::F32 => (single::exp_raised(x), x.like(1.0 / (1u128 << 64) as f64)),
        _ => (exp(x), x.like(1.0)),
    }
}

/// eˣ − 1 of f32 or f64.
pub(crate) fn expm1(x: Val<'_>) -> Val<'_> {
    unary(Unary::Expm1, x)
}

/// ln x of f32 or f64.
pub(crate) fn log(x: Val<'_>) -> Val<'_> {
    unary(Unary::Log, x)
}

/// tanh x of f32 or f64.
pub(crate) fn tanh(x: Val<'_>) -> Val<'_> {
    unary(Unary::Tanh, x)
}

/// x·σ(x) of f32 or f64.
pub(crate) fn silu(x: Val<'_>) -> Val<'_> {
    unary(Unary::Silu, x)
}

/// ln(1 + eˣ) of f32 or f64.
pub(crate) fn softplus(x: Val<'_>) -> Val<'_> {
    unary(Unary::Softplus, x)
}

/// Evaluates a fused region on its inputs, of which there is at least one; what no output needs is left out. A region
/// that does not fit its inputs fails the kernel.
pub(crate) fn region<'k>(region: &Region, inputs: &[Typed<'k>]) -> Vec<Typed<'k>> {
    let Some(first) = inputs.first() else { return Vec::new() };
    let k = first.val.builder();
    let dtypes: Vec<DType> = inputs.iter().map(|x| x.dtype).collect();
    let results = match (region.dtypes(&dtypes), region.output_dtypes(&dtypes)) {
        (Ok(results), Ok(_)) => results,
        (Err(problem), _) | (_, Err(problem)) => {
            k.fail(problem);
            return Vec::new();
        }
    };
    let needed = needed(region);
    let mut values: Vec<Typed<'k>> = Vec::with_capacity(results.len());
    let find = |arg: &Arg, values: &[Typed<'k>]| match arg {
        Arg::Input(i) => inputs[*i],
        Arg::Instr(i) => values[*i],
    };
    for ((instr, dtype), needed) in region.instrs.iter().zip(results).zip(needed) {
        let value = match instr.op {
            _ if !needed => splat(k, dtype, 0.0),
            InstrOp::Splat(dtype, number) => splat(k, dtype, number),
            InstrOp::Scalar(op) => {
                let args: Vec<Typed<'k>> = instr.args.iter().map(|a| find(a, &values)).collect();
                scalar_op(&op, &args, dtype)
            }
        };
        values.push(value);
    }
    region.outputs.iter().map(|a| find(a, &values)).collect()
}

/// Which instructions some output depends on.
fn needed(region: &Region) -> Vec<bool> {
    let mut needed = vec![false; region.instrs.len()];
    let mark = |arg: &Arg, needed: &mut Vec<bool>| {
        if let Arg::Instr(i) = arg {
            needed[*i] = true;
        }
    };
    region.outputs.iter().for_each(|a| mark(a, &mut needed));
    for (i, instr) in region.instrs.iter().enumerate().rev() {
        if needed[i] {
            instr.args.iter().for_each(|a| mark(a, &mut needed));
        }
    }
    needed
}
