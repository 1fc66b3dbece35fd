//! Graphs inside operations, interpreted.

use olivine_ir::op::{If, Loop, Scan};
use olivine_ir::{DType, Shape, SubGraph, TensorType};

use super::meanings;
use super::{Between, Value, run};
use crate::oracle::value::{Numbers, flat};

meanings! { |op, x, call|
    If => if_(op, x, call.between),
    Loop => loop_(op, x, call.results, call.between),
    Scan => scan(op, x, call.results, call.between),
    Custom => Err(format!("the oracle does not know the custom operation `{}`", op.op.name())),
}

/// Runs an inner graph on values in the order of its inputs.
fn inner(body: &SubGraph, given: Vec<Value>, between: Between) -> Result<Vec<Value>, String> {
    let names = body.graph().inputs().map(|(name, _)| name.to_string());
    let feeds: Vec<(String, Value)> = names.zip(given).collect();
    run(body.graph(), &feeds, between)
}

fn number(x: &Value) -> Result<i64, String> {
    x.as_ints()?.first().copied().ok_or_else(|| format!("{} holds nothing", x.ty))
}

pub(super) fn if_(op: &If, x: &[Value], between: Between) -> Result<Vec<Value>, String> {
    let branch = if number(&x[0])? != 0 { &op.then_branch } else { &op.else_branch };
    inner(branch, x[1..].to_vec(), between)
}

/// Rows as they come, written into results that begin as zeros.
struct Rows(Vec<Value>);

impl Rows {
    fn new(types: &[TensorType]) -> Self {
        let zeros = |ty: &TensorType| match ty.dtype.is_float() {
            true => Value::floats(*ty, vec![0.0; ty.shape.numel()]),
            false => Value::ints(*ty, vec![0; ty.shape.numel()]),
        };
        Rows(types.iter().map(zeros).collect())
    }

    /// Puts a row at `place` of an axis of result `i`.
    fn put(&mut self, i: usize, row: &Value, axis: usize, place: usize) -> Result<(), String> {
        let to = &mut self.0[i];
        let dims = to.ty.shape.to_vec();
        let mut from = 0;
        super::value::each(row.shape(), |at| {
            let mut there = at.to_vec();
            there.insert(axis, place);
            let there = flat(&dims, &there);
            match (&mut to.data, &row.data) {
                (Numbers::Floats(to), Numbers::Floats(row)) => to[there] = row[from],
                (Numbers::Ints(to), Numbers::Ints(row)) => to[there] = row[from],
                _ => {}
            }
            from += 1;
        });
        Ok(())
    }
}

pub(super) fn loop_(
    op: &Loop,
    x: &[Value],
    results: &[TensorType],
    between: Between,
) -> Result<Vec<Value>, String> {
    let most = op.max_iterations.map_or(i64::MAX, |most| most as i64).min(number(&x[0])?);
    let mut going = number(&x[1])? != 0;
    let (mut carried, captures) = (x[2..2 + op.carried].to_vec(), &x[2 + op.carried..]);
    let mut rows = Rows::new(&results[op.carried..results.len() - 1]);
    let scalar = TensorType::new(DType::I64, Shape::SCALAR);
    let mut iteration = 0;
    while going && iteration < most {
        let given = [vec![Value::ints(scalar, vec![iteration])], carried, captures.to_vec()].concat();
        let mut outputs = inner(&op.body, given, between)?.into_iter();
        let go_on = outputs.next().ok_or("the body gives nothing")?;
        going = number(&go_on)? != 0;
        carried = outputs.by_ref().take(op.carried).collect();
        for (i, row) in outputs.enumerate() {
            rows.put(i, &row, 0, iteration as usize)?;
        }
        iteration += 1;
    }
    carried.extend(rows.0);
    carried.push(Value::ints(scalar, vec![iteration]));
    Ok(carried)
}

pub(super) fn scan(
    op: &Scan,
    x: &[Value],
    results: &[TensorType],
    between: Between,
) -> Result<Vec<Value>, String> {
    let slices = op.states..op.states + op.axes.len();
    let mut states = x[..op.states].to_vec();
    let captures = &x[slices.end..];
    let iterations = x[slices.start].shape()[op.axes[0]];
    let mut rows = Rows::new(&results[op.states..]);
    for iteration in 0..iterations {
        let mut given = states;
        for (i, sliced) in x[slices.clone()].iter().enumerate() {
            let axis = op.axes[i];
            let back = op.reverse.get(i).copied().unwrap_or(false);
            let place = if back { iterations - 1 - iteration } else { iteration };
            let mut dims = sliced.ty.shape.to_vec();
            dims.remove(axis);
            let shape = Shape::new(&dims).map_err(|e| e.to_string())?;
            given.push(sliced.pick(TensorType::new(sliced.ty.dtype, shape), |at| {
                let mut from = at.to_vec();
                from.insert(axis, place);
                Some(flat(sliced.shape(), &from))
            }));
        }
        given.extend_from_slice(captures);
        let mut outputs = inner(&op.body, given, between)?.into_iter();
        states = outputs.by_ref().take(op.states).collect();
        for (i, row) in outputs.enumerate() {
            let back = op.out_reverse.get(i).copied().unwrap_or(false);
            rows.put(i, &row, op.out_axis(i), if back { iterations - 1 - iteration } else { iteration })?;
        }
    }
    states.extend(rows.0);
    Ok(states)
}
