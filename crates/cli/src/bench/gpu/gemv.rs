//! Matmuls bound by the reading of weights, grouped matmuls, and matmuls of 8-bit integers.

use olivine::ir::{DType, Graph, Tensor, ValueId};

use super::{Clock, Measurement, Source, Unit, device};
use crate::answer::Failure;

/// The layout of the weights.
#[derive(Clone, Copy, PartialEq)]
enum Weights {
    /// `[K, N]`, stored.
    Kn,
    /// `[N, K]`, an input of every run: a stored one would be transposed at load.
    Nk,
}

/// Matmuls of small M with weights that no cache holds; bytes are those of the weights.
pub(super) fn small_m(quick: bool) -> Result<Vec<Measurement>, Failure> {
    use Weights::{Kn, Nk};
    let (n, wide) = if quick { (64, 96) } else { (4096, 11008) };
    let mut list = Vec::new();
    for dtype in [DType::F32, DType::F16] {
        for weights in [Kn, Nk] {
            if weights == Nk {
                list.push(matmuls(16, dtype, [1, n, n], weights)?);
            }
            for rows in [4, 16, 64] {
                list.push(matmuls(4, dtype, [rows, n, n], weights)?);
            }
        }
        list.push(matmuls(4, dtype, [16, n, wide], Kn)?);
    }
    Ok(list)
}

/// Matmuls of one vector with several matrices of weights, none of which waits for another.
pub(super) fn apart(dtype: DType, n: usize, count: usize) -> Result<Measurement, Failure> {
    let matmuls = matmuls(count, dtype, [1, n, n], Weights::Kn)?;
    Ok(Measurement { name: format!("gemv {dtype} {n} x{count} apart"), ..matmuls })
}

/// Several matmuls of one input.
fn matmuls(
    count: usize,
    dtype: DType,
    [m, k, n]: [usize; 3],
    weights: Weights,
) -> Result<Measurement, Failure> {
    let order = if weights == Weights::Kn { "kn" } else { "nk" };
    let name = format!("gemv {dtype} {order} {count} of {m}x{k}x{n}");
    let mut graph = Graph::new(&name);
    let x = graph.input("x", dtype, [m, k])?;
    for i in 0..count {
        let y = matmul(&mut graph, x, &format!("w{i}"), (k, n), weights)?;
        graph.output(&format!("y{i}"), y)?;
    }
    let bytes = (count * k * n * dtype.size()) as f64;
    Ok(Measurement { name, unit: Unit::Bytes(bytes), clock: Clock::Device, source: Source::Graph(graph) })
}

fn matmul(
    g: &mut Graph,
    x: ValueId,
    name: &str,
    (k, n): (usize, usize),
    weights: Weights,
) -> Result<ValueId, Failure> {
    let dtype = g.ty(x)?.dtype;
    Ok(match weights {
        Weights::Kn => {
            let w = g.param(name, dtype, [k, n])?;
            g.matmul(x, w)?
        }
        Weights::Nk => {
            let w = g.input(name, dtype, [n, k])?;
            g.matmul_nt(x, w)?
        }
    })
}

/// Matmuls of signed bytes, with the rhs as it comes and transposed, and as a weight.
pub(super) fn integers(quick: bool) -> Result<Vec<Measurement>, Failure> {
    let mut list = Vec::new();
    let sizes = if quick { [64, 96] } else { [2048, 4096] };
    for n in sizes {
        let flops = Unit::Flops(2.0 * (n as f64).powi(3));
        list.push(device(format!("qmatmul i8 kn {n}"), flops, |g| {
            let (a, b) = (g.input("a", DType::I8, [n, n])?, g.input("b", DType::I8, [n, n])?);
            g.qmatmul(a, b, None, None)
        })?);
        list.push(device(format!("qmatmul i8 nk {n}"), flops, |g| {
            let (a, b) = (g.input("a", DType::I8, [n, n])?, g.input("b", DType::I8, [n, n])?);
            let b = g.transpose(b, &[1, 0])?;
            g.qmatmul(a, b, None, None)
        })?);
        list.push(device(format!("qmatmul u8 i8 weight {n}"), flops, |g| {
            let (a, b) = (g.input("a", DType::U8, [n, n])?, g.param("b", DType::I8, [n, n])?);
            let zero = g.input("zero", DType::U8, [0; 0])?;
            g.qmatmul(a, b, Some(zero), None)
        })?);
    }
    Ok(list)
}

/// Rows with the weights of an expert each, as routers deal them out, and a matmul of as many operations.
pub(super) fn grouped(quick: bool) -> Result<Vec<Measurement>, Failure> {
    let (count, k, n) = if quick { (4, 32, 24) } else { (64, 2048, 1408) };
    let rows = if quick { [24, 20, 18, 2] } else { [16384, 4096, 512, 16] };
    let mut list = Vec::new();
    for (dtype, m) in rows.map(|m| (DType::F16, m)).into_iter().chain([(DType::F32, rows[1])]) {
        let flops = 2.0 * (m * k * n) as f64;
        list.push(device(format!("grouped {dtype} m{m} k{k} n{n} e{count}"), Unit::Flops(flops), |g| {
            let (x, w) = (g.input("x", dtype, [m, k])?, g.param("w", dtype, [count, k, n])?);
            let ids = g.constant(Tensor::new([m], ids(m, count))?);
            g.grouped_matmul(x, w, ids)
        })?);
    }
    let m = rows[1];
    list.push(device(format!("matmul f16 m{m} n{n} k{k}"), Unit::Flops(2.0 * (m * k * n) as f64), |g| {
        let (x, w) = (g.input("x", DType::F16, [m, k])?, g.param("w", DType::F16, [k, n])?);
        g.matmul(x, w)
    })?);
    Ok(list)
}

/// Experts of rows, each as likely as any other.
fn ids(rows: usize, count: usize) -> Vec<i32> {
    let mut state = 0x2545_f491_u32;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state as usize % count) as i32
    };
    (0..rows).map(|_| next()).collect()
}
