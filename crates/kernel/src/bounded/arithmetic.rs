//! Arithmetic without results that a compiler may take for impossible.

use super::Writer;
use crate::Error;
use crate::build::bits_of;
use crate::ir::*;
use crate::types::{Scalar, Type};

impl Writer {
    /// Integers divided by 0 stay as they are, the least one divided by -1 wraps, and shifts count modulo the width.
    pub(super) fn binary(&mut self, op: BinaryOp, a: Value, b: Value) -> Result<Expr, Error> {
        let scalar = self.scalar(a)?;
        if !scalar.is_int() {
            return Ok(Expr::Binary(op, a, b));
        }
        let minus_one = if scalar.bits() == 64 { u64::MAX } else { u32::MAX.into() };
        let b = match (op, self.as_const(b)) {
            (BinaryOp::Div | BinaryOp::Rem, Some(c)) if c != 0 && c != minus_one => b,
            (BinaryOp::Div | BinaryOp::Rem, _) => {
                let (zero, one) = (self.constant(scalar, 0), self.constant(scalar, 1));
                let mut bad = self.compare(CompareOp::Eq, b, zero);
                if scalar.is_signed_int() {
                    let (least, minus) =
                        (self.constant(scalar, 1 << (scalar.bits() - 1)), self.constant(scalar, minus_one));
                    let (is_least, is_minus) =
                        (self.compare(CompareOp::Eq, a, least), self.compare(CompareOp::Eq, b, minus));
                    let wraps = self.op(BinaryOp::And, is_least, is_minus)?;
                    bad = self.op(BinaryOp::Or, bad, wraps)?;
                }
                self.select(bad, one, b)?
            }
            (BinaryOp::Shl | BinaryOp::Shr, None) => {
                let mask = self.constant(scalar, u64::from(scalar.bits()) - 1);
                self.op(BinaryOp::And, b, mask)?
            }
            _ => b,
        };
        Ok(Expr::Binary(op, a, b))
    }

    /// Floats that an integer type does not hold become its least or greatest number, about; NaN becomes the least.
    pub(super) fn convert(&mut self, to: Scalar, a: Value) -> Result<Expr, Error> {
        let from = self.scalar(a)?;
        if !from.is_float() || !to.is_int() {
            return Ok(Expr::Convert(to, a));
        }
        let (low, high) = range(from, to);
        let (low, high) = (self.constant(from, bits_of(from, low)), self.constant(from, bits_of(from, high)));
        let above = self.compare(CompareOp::Gt, a, low);
        let held = self.select(above, a, low)?;
        let below = self.compare(CompareOp::Lt, held, high);
        let held = self.let_(Expr::Select(below, held, high), Type::Scalar(from));
        Ok(Expr::Convert(to, held))
    }
}

/// The least and the greatest number of a float type that an integer type holds.
fn range(from: Scalar, to: Scalar) -> (f64, f64) {
    let past = 2f64.powi(to.bits() as i32 - i32::from(to.is_signed_int()));
    let high = match from {
        // 65504 is the last f16, and every integer type holds it.
        Scalar::F16 => 65504.0,
        Scalar::F32 => f64::from((past as f32).next_down()),
        _ => past.next_down().min(if to.bits() == 32 { past - 1.0 } else { f64::MAX }),
    };
    let low = match (to.is_signed_int(), from) {
        (false, _) => 0.0,
        (true, Scalar::F16) => -65504.0,
        (true, _) => -past,
    };
    (low, high)
}
