//! Whether a result is what a data set expects.

use olivine::internals::onnx::ElementType;
use olivine::ir::{DType, Data, Tensor};

/// Compares as ONNX's own runner does: relative 1e-3, absolute 1e-7; two units in the last place of bfloat16.
pub(super) fn compare(got: &Tensor, want: &Tensor, element: ElementType) -> Result<(), String> {
    if got.ty() != want.ty() {
        return Err(format!("got {}, want {}", got.ty(), want.ty()));
    }
    let relative = if want.dtype() == DType::BF16 { 2f64.powi(-7) } else { 1e-3 };
    if let (Data::I64(got), Data::I64(want)) = (got.data(), want.data()) {
        return match (0..got.len()).find(|i| got[*i] != want[*i]) {
            None => Ok(()),
            Some(i) => Err(format!("at {i}: got {}, want {}", got[i], want[i])),
        };
    }
    // Small floats are equal or they are not: a tolerance would hide their rounding.
    let exact = !want.dtype().is_float() || element.bits() <= 8;
    let (got, want) = (got.to_f64(), want.to_f64());
    for (i, (g, w)) in got.iter().zip(&want).enumerate() {
        let same = g == w || g.is_nan() && w.is_nan();
        let near = !exact && (g - w).abs() <= 1e-7 + relative * w.abs();
        if !same && !near {
            return Err(format!("at {i}: got {g}, want {w}"));
        }
    }
    Ok(())
}
