//! Packed weights, by definition. Blocks are decoded by the crate of formats, which is compared bit for bit with the `gguf`
//! package; nothing else is shared with a backend.

use olivine_ir::op::{DequantGather, DequantMatMul, Scaling};
use olivine_ir::{DType, TensorType};

use super::region::apply_region;
use super::{Value, meanings, one};
use crate::bound::round_to;

meanings! { |op, x, call|
    DequantMatMul => one(matmul(op, x, call.ty())),
    DequantGather => one(gather(op, x, call.ty())),
}

/// The elements that an operand's bytes encode, row by row; floats and integers that are not packed as they are.
pub(super) fn elements(x: &Value) -> Result<Vec<f64>, String> {
    let Some(format) = x.ty.packed else {
        return x
            .as_floats()
            .map(<[f64]>::to_vec)
            .or_else(|_| Ok(x.as_ints()?.iter().map(|i| *i as f64).collect()));
    };
    let bytes: Vec<u8> = x.as_ints()?.iter().map(|byte| *byte as u8).collect();
    let mut decoded = vec![0.0; x.ty.elements().numel()];
    olivine_quant::decode(format, &bytes, &mut decoded).map_err(|e| e.to_string())?;
    Ok(decoded.into_iter().map(f64::from).collect())
}

/// A weight's elements with their scales and zero points, which are the operands after it; every step rounds to f32.
fn weights(w: &Value, scaling: Scaling, operands: &[Value]) -> Result<Vec<f64>, String> {
    let mut all = elements(w)?;
    if scaling.block == 0 {
        return Ok(all);
    }
    let columns = w.ty.elements().last().copied().unwrap_or(0);
    let blocks = columns.div_ceil(scaling.block);
    let scales = elements(&operands[0])?;
    let zeros = if scaling.zero { elements(&operands[1])? } else { Vec::new() };
    let padded =
        operands.get(1).filter(|_| scaling.zero).and_then(|z| z.ty.elements().last().copied()).unwrap_or(0);
    for (i, x) in all.iter_mut().enumerate() {
        let (row, block) = (i / columns, i % columns / scaling.block);
        let zero = if scaling.zero { zeros[row * padded + block] } else { scaling.offset as f64 };
        *x = round_to(DType::F32, round_to(DType::F32, *x - zero) * scales[row * blocks + block]);
    }
    Ok(all)
}

fn matmul(op: &DequantMatMul, x: &[Value], ty: TensorType) -> Result<Value, String> {
    let w = weights(&x[1], op.scaling(), &x[op.first_scale()..])?;
    let rows = x[0].as_floats()?;
    let shape = x[1].ty.elements();
    let (n, columns) = (shape[shape.rank() - 2], shape[shape.rank() - 1]);
    let k = x[0].shape()[x[0].shape().rank() - 1];
    let experts = if op.grouped { Some(x[2].as_ints()?) } else { None };
    let mut out = Vec::with_capacity(ty.shape.numel());
    for i in 0..ty.shape.numel() {
        let (row, column) = (i / n, i % n);
        let expert = experts.map_or(0, |ids| ids[row]);
        let matrix = usize::try_from(expert).ok().filter(|e| !op.grouped || *e < shape[0]);
        out.push(matrix.map_or(0.0, |e| {
            let from = (e * n + column) * columns;
            (0..k).map(|j| rows[row * k + j] * w[from + j]).sum()
        }));
    }
    let product = Value::floats(TensorType::new(x[0].ty.dtype, ty.shape), out);
    apply_region(&op.epilogue, product, &x[op.first_extra()..], ty)
}

fn gather(op: &DequantGather, x: &[Value], ty: TensorType) -> Result<Value, String> {
    let w = weights(&x[0], op.scaling(), &x[2..])?;
    let [n, columns] = *x[0].ty.elements().dims() else { return Err("a weight has two axes".into()) };
    let mut out = Vec::with_capacity(ty.shape.numel());
    for index in x[1].as_ints()? {
        let row = if *index < 0 { index + n as i64 } else { *index };
        let row = row.clamp(0, n as i64 - 1) as usize;
        out.extend_from_slice(&w[row * columns..][..columns]);
    }
    Ok(Value::floats(ty, out))
}
