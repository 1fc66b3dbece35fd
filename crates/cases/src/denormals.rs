//! Devices that flush denormal numbers: how the table finds out, and what it then expects of them.

use olivine_ir::{DType, Error, Graph, Tensor};

use crate::oracle::{Numbers, Value};

/// The least normal f32. That of bf16 is the same.
const LEAST_NORMAL: f64 = f32::MIN_POSITIVE as f64;

/// What a device does with f32 numbers below 2^-126 in its own arithmetic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Denormals {
    /// They are numbers like others.
    #[default]
    Kept,
    /// They are read and returned as zeros, where they meet arithmetic: moves and functions made of integers keep them.
    Flushed,
}

impl Denormals {
    /// A graph and inputs that show it: the sum of two denormal numbers.
    pub fn trial() -> Result<(Graph, Vec<(String, Tensor)>), Error> {
        let mut graph = Graph::new("denormals");
        let x = graph.input("x", DType::F32, [1])?;
        let y = graph.input("y", DType::F32, [1])?;
        let sum = graph.add(x, y)?;
        graph.output("sum", sum)?;
        let denormal = Tensor::new([1], vec![1e-40f32])?;
        Ok((graph, vec![("x".into(), denormal.clone()), ("y".into(), denormal)]))
    }

    /// What the outputs of the [`trial`](Denormals::trial) say.
    pub fn found(outputs: &[Tensor]) -> Denormals {
        let zero = |t: &Tensor| t.to_f64().iter().all(|x| *x == 0.0);
        if outputs.iter().all(zero) { Denormals::Flushed } else { Denormals::Kept }
    }
}

/// The value with its denormal f32 and bf16 numbers as zeros. f16 is computed in f32, where none of its numbers is denormal.
pub(crate) fn flushed(value: Value) -> Value {
    let Value { ty, data } = value;
    match data {
        Numbers::Floats(v) if matches!(ty.dtype, DType::F32 | DType::BF16) => {
            Value::floats(ty, v.into_iter().map(flush).collect())
        }
        data => Value { ty, data },
    }
}

/// A device may look before it rounds: what would be rounded up to 2^-126 is flushed too.
fn flush(x: f64) -> f64 {
    if x.abs() < LEAST_NORMAL { 0f64.copysign(x) } else { x }
}

/// Of two results, element by element the one that is nearer to what came out. `want` is the exact one. Where both are below
/// 2^-126, so is any sum of what some steps keep and others flush, and every such number is right.
pub(crate) fn nearest(want: &Value, flushed: &Value, got: &Tensor) -> Value {
    match (&want.data, &flushed.data) {
        (Numbers::Floats(w), Numbers::Floats(f)) if matches!(want.ty.dtype, DType::F32 | DType::BF16) => {
            let chosen = w.iter().zip(f).zip(got.to_f64()).map(|((w, f), g)| {
                let same = |x: f64| x.to_bits() == g.to_bits() || x.is_nan() && g.is_nan();
                if same(*w) {
                    *w
                } else if [*w, *f, g].iter().all(|x| x.abs() < LEAST_NORMAL) {
                    g
                } else if same(*f) || (f - g).abs() < (w - g).abs() {
                    *f
                } else {
                    *w
                }
            });
            Value::floats(want.ty, chosen.collect())
        }
        _ => want.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(want: f64, flushed: f64, got: f32) -> f64 {
        let ty = Tensor::scalar(0f32).ty();
        let of = |x| Value::floats(ty, vec![x]);
        nearest(&of(want), &of(flushed), &Tensor::scalar(got)).to_f64()[0]
    }

    #[test]
    fn a_result_is_held_to_what_its_device_may_return() {
        // A denormal number times a large one.
        assert_eq!(judged(0.01, 0.0, 0.0), 0.0);
        assert_eq!(judged(0.01, 0.0, 0.01), 0.01);
        assert_eq!(judged(0.01, 0.0, 0.004), 0.0);
        // max(x + y, y) where the sum is flushed and the maximum is not.
        assert_eq!(judged(2e-40, 0.0, 1e-40), f64::from(1e-40f32));
        assert_eq!(judged(2e-40, 0.0, 1e-30), 2e-40);
        assert!(judged(f64::NAN, 0.0, f32::NAN).is_nan());
        assert_eq!(judged(1.0, 1.0, 2.0), 1.0);
    }

    #[test]
    fn only_what_f32_calls_denormal_is_flushed() {
        assert_eq!(flush(1.1e-38), 0.0);
        assert_eq!(flush(-1.1e-38).to_bits(), (-0f64).to_bits());
        assert_eq!(flush(LEAST_NORMAL), LEAST_NORMAL);
        assert!(flush(f64::NAN).is_nan());
        assert_eq!(Denormals::found(&[Tensor::scalar(2e-40f32)]), Denormals::Kept);
        assert_eq!(Denormals::found(&[Tensor::scalar(0f32)]), Denormals::Flushed);
    }
}
