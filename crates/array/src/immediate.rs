//! Immediate operations on buffers by number. Everything is checked before the device is asked for anything.

use olivine_ir::op::{MatMul, Reduce, ScalarOp, Transpose, Unary};
use olivine_ir::{DType, IntoShape};

use crate::{Array, Buffer, Context, Error, ops};

impl Context {
    /// `out[i] = a[i] op b[i]` for the first `n` elements; `op` is a number of [`ops::binary`].
    pub fn binary(
        &self,
        out: &Buffer,
        a: &Buffer,
        b: &Buffer,
        n: usize,
        op: u32,
        dtype: DType,
    ) -> Result<(), Error> {
        let kind = ops::binary::of(op).ok_or_else(|| unknown("binary", op, ops::binary::ALL.len()))?;
        let op = ScalarOp::Binary(kind);
        self.check(&[out, a, b], dtype)?;
        supported(op, &[dtype, dtype], dtype)?;
        for (name, buffer) in [("out", out), ("a", a), ("b", b)] {
            holds(name, buffer, &[n], dtype)?;
        }
        if n == 0 {
            return Ok(());
        }
        out.update(&[(a, n), (b, n)], dtype, |arrays| Array::apply1(op, arrays))
    }

    /// `out[i] = op(a[i])` for the first `n` elements; `op` is a number of [`ops::unary`].
    pub fn unary(&self, out: &Buffer, a: &Buffer, n: usize, op: u32, dtype: DType) -> Result<(), Error> {
        let kind = ops::unary::of(op).ok_or_else(|| unknown("unary", op, ops::unary::ALL.len()))?;
        self.check(&[out, a], dtype)?;
        // An integer is whole already.
        let copies =
            dtype.is_int() && matches!(kind, Unary::Ceil | Unary::Floor | Unary::Round | Unary::Trunc);
        let op = if copies { ScalarOp::Cast(dtype) } else { ScalarOp::Unary(kind) };
        supported(op, &[dtype], dtype)?;
        for (name, buffer) in [("out", out), ("a", a)] {
            holds(name, buffer, &[n], dtype)?;
        }
        if n == 0 {
            return Ok(());
        }
        out.update(&[(a, n)], dtype, |arrays| Array::apply1(op, arrays))
    }

    /// Reduces the middle axis of `a[outer, reduce, inner]` to `out[outer, inner]`; `op` is a number of [`ops::reduce`].
    pub fn reduce(
        &self,
        out: &Buffer,
        a: &Buffer,
        outer: usize,
        reduce: usize,
        inner: usize,
        op: u32,
        dtype: DType,
    ) -> Result<(), Error> {
        let kind = ops::reduce::of(op).ok_or_else(|| unknown("reduce", op, ops::reduce::ALL.len()))?;
        self.check(&[out, a], dtype)?;
        let count = holds("a", a, &[outer, reduce, inner], dtype)?;
        let results = holds("out", out, &[outer, inner], dtype)?;
        let shape = [outer, reduce, inner].into_shape()?;
        let op = Reduce { kind, axes: vec![1], keepdims: false };
        let unsupported = |e: Error| Error::unsupported(e.message().to_string());
        if results == 0 {
            return Ok(());
        }
        out.update(&[(a, count)], dtype, |arrays| {
            let [a] = arrays else { return Err(Error::bad("reduce takes one operand")) };
            let reduced = Array::apply1(op, &[&a.reshaped(shape)?]).map_err(unsupported)?;
            reduced.reshaped([results])
        })
    }

    /// The matmul `out[m, n] = a[m, k] · b[k, n]`, all row-major.
    pub fn matmul(
        &self,
        out: &Buffer,
        a: &Buffer,
        b: &Buffer,
        m: usize,
        n: usize,
        k: usize,
        dtype: DType,
    ) -> Result<(), Error> {
        self.check(&[out, a, b], dtype)?;
        let (of_a, of_b) = (holds("a", a, &[m, k], dtype)?, holds("b", b, &[k, n], dtype)?);
        let results = holds("out", out, &[m, n], dtype)?;
        let (of_m, of_n) = ([m, k].into_shape()?, [k, n].into_shape()?);
        if results == 0 {
            return Ok(());
        }
        out.update(&[(a, of_a), (b, of_b)], dtype, |arrays| {
            let [a, b] = arrays else { return Err(Error::bad("matmul takes two operands")) };
            let (a, b) = (a.reshaped(of_m)?, b.reshaped(of_n)?);
            Array::apply1(MatMul { epilogue: None }, &[&a, &b])?.reshaped([results])
        })
    }

    /// The transpose `out[n, m]` of `a[m, n]`, both row-major.
    pub fn transpose_2d(
        &self,
        out: &Buffer,
        a: &Buffer,
        m: usize,
        n: usize,
        dtype: DType,
    ) -> Result<(), Error> {
        self.check(&[out, a], dtype)?;
        let count = holds("a", a, &[m, n], dtype)?;
        holds("out", out, &[m, n], dtype)?;
        let shape = [m, n].into_shape()?;
        if count == 0 {
            return Ok(());
        }
        out.update(&[(a, count)], dtype, |arrays| {
            let [a] = arrays else { return Err(Error::bad("transpose takes one operand")) };
            Array::apply1(Transpose { perm: vec![1, 0] }, &[&a.reshaped(shape)?])?.reshaped([count])
        })
    }

    fn check(&self, buffers: &[&Buffer], dtype: DType) -> Result<(), Error> {
        if buffers.iter().any(|buffer| !buffer.context().same(self)) {
            return Err(Error::bad("a buffer belongs to another context"));
        }
        match dtype {
            DType::F32 | DType::F64 | DType::I32 => Ok(()),
            _ => Err(Error::unsupported(format!("immediate operations take f32, f64 and i32, not {dtype}"))),
        }
    }
}

impl Buffer {
    /// Replaces its first bytes by what an operation computes of the first elements of others.
    fn update(
        &self,
        operands: &[(&Buffer, usize)],
        dtype: DType,
        op: impl FnOnce(&[&Array]) -> Result<Array, Error>,
    ) -> Result<(), Error> {
        let read = |(buffer, count): &(&Buffer, usize)| buffer.elements(dtype, *count);
        let arrays = operands.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        self.replace(|| op(&arrays.iter().collect::<Vec<_>>()))
    }
}

fn unknown(family: &str, op: u32, known: usize) -> Error {
    Error::bad(format!("{family} operation {op} is not one of 0 to {}", known - 1))
}

fn supported(op: ScalarOp, operands: &[DType], dtype: DType) -> Result<(), Error> {
    match op.result_dtype(operands) {
        Ok(_) => Ok(()),
        Err(problem) => {
            Err(Error::unsupported(format!("{} of {dtype}: {problem}", olivine_ir::Op::from(op).name())))
        }
    }
}

/// How many elements sizes say, if a buffer holds them.
fn holds(name: &str, buffer: &Buffer, sizes: &[usize], dtype: DType) -> Result<usize, Error> {
    let wrong = |what: &str| {
        let bytes = buffer.byte_size();
        Err(Error::size(format!(
            "{name}: {sizes:?} elements of {dtype} {what}; the buffer has {bytes} bytes"
        )))
    };
    let count = sizes.iter().try_fold(1usize, |count, size| count.checked_mul(*size));
    match count.and_then(|count| Some((count, count.checked_mul(dtype.size())?))) {
        None => wrong("overflow"),
        Some((_, bytes)) if bytes > buffer.byte_size() => wrong(&format!("are {bytes} bytes")),
        Some((count, _)) => Ok(count),
    }
}
