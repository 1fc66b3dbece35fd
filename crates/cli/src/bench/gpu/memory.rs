//! What memory bounds: element by element, rows and columns, and sorting.

use olivine::ir::op::{Binary, CumulativeKind, ReduceKind};
use olivine::ir::{DType, Error, Graph, ValueId};

use super::{Measurement, Unit, device};
use crate::answer::Failure;

type Body = fn(&mut Graph, ValueId) -> Result<ValueId, Error>;

/// Two long inputs, element by element.
pub(super) fn elementwise(quick: bool) -> Result<Vec<Measurement>, Failure> {
    let n = if quick { 1 << 16 } else { 64 << 20 };
    let two = |name: &str, body: fn(&mut Graph, ValueId, ValueId) -> Result<ValueId, Error>| {
        device(format!("{name} {n}"), Unit::Bytes(12.0 * n as f64), |g| {
            let (a, b) = (g.input("a", DType::F32, [n])?, g.input("b", DType::F32, [n])?);
            body(g, a, b)
        })
    };
    Ok(vec![
        two("add", |g, a, b| g.add(a, b))?,
        // gelu(a·b + 0.5)·a − b
        two("gelu chain", |g, a, b| {
            let product = g.mul(a, b)?;
            let shifted = g.binary_scalar(Binary::Add, product, 0.5)?;
            let gelu = g.gelu(shifted)?;
            let scaled = g.mul(gelu, a)?;
            g.sub(scaled, b)
        })?,
        device(format!("cumsum {n}"), Unit::Bytes(8.0 * n as f64), |g| {
            let x = g.input("x", DType::F32, [n])?;
            running_sum(g, x, 0)
        })?,
    ])
}

/// Rows and columns of a square.
pub(super) fn squares(quick: bool) -> Result<Vec<Measurement>, Failure> {
    let n = if quick { 128 } else { 4096 };
    let square = 4.0 * (n * n) as f64;
    let of_square = |name: &str, parts: f64, body: Body| {
        device(format!("{name} {n}x{n}"), Unit::Bytes(parts * square), |g| {
            let x = g.input("x", DType::F32, [n, n])?;
            body(g, x)
        })
    };
    let norm = device(format!("layer_norm {n}x{n}"), Unit::Bytes(2.0 * square), |g| {
        let x = g.input("x", DType::F32, [n, n])?;
        let (gamma, beta) = (g.param("n.gamma", DType::F32, [n])?, g.param("n.beta", DType::F32, [n])?);
        g.layer_norm(x, gamma, Some(beta), 1e-5)
    })?;
    Ok(vec![
        norm,
        of_square("softmax", 2.0, |g, x| g.softmax(x, -1))?,
        of_square("transpose", 2.0, |g, x| g.transpose(x, &[1, 0]))?,
        of_square("sum rows", 1.0, |g, x| g.reduce(ReduceKind::Sum, x, &[-1], false))?,
        of_square("sum columns", 1.0, |g, x| g.reduce(ReduceKind::Sum, x, &[0], false))?,
        of_square("cumsum rows", 2.0, |g, x| running_sum(g, x, 1))?,
        of_square("cumsum columns", 2.0, |g, x| running_sum(g, x, 0))?,
    ])
}

/// Sorting long rows.
pub(super) fn ordered(quick: bool) -> Result<Vec<Measurement>, Failure> {
    let long = if quick { 5000 } else { 128 << 10 };
    let of_rows = |name: &str, rows: usize, body: Body| {
        device(format!("{name} {rows}x{long}"), Unit::Time, |g| {
            let x = g.input("x", DType::F32, [rows, long])?;
            body(g, x)
        })
    };
    Ok(vec![
        of_rows("sort", 64, |g, x| g.sort(x, 1, false))?,
        of_rows("argsort", 64, |g, x| g.argsort(x, 1, false))?,
        of_rows("top_k 50 of", 64, |g, x| Ok(g.top_k(x, 50, 1, true)?.0))?,
        of_rows("top_k 50 of", 1, |g, x| Ok(g.top_k(x, 50, 1, true)?.0))?,
    ])
}

fn running_sum(g: &mut Graph, x: ValueId, axis: isize) -> Result<ValueId, Error> {
    g.cumulative(CumulativeKind::Sum, x, axis, false, false)
}
