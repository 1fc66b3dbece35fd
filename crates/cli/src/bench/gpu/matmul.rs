//! Matmuls.

use olivine::ir::{DType, Error, Graph, ValueId};

use super::{Measurement, Unit, device};
use crate::answer::Failure;

/// Matmuls of two square inputs; f16 results in f16, i8 in i32.
pub(super) fn squares(quick: bool) -> Result<Vec<Measurement>, Failure> {
    let (f32, f16, i8) = if quick {
        (&[16, 32, 48, 64], &[16, 24, 32, 40, 48, 64], &[64])
    } else {
        (&[1024, 2048, 4096, 8192], &[256, 512, 1024, 2048, 4096, 8192], &[4096])
    };
    let of = |dtype: DType, sizes: &'static [usize]| sizes.iter().map(move |n| (dtype, *n));
    let all = of(DType::F32, f32).chain(of(DType::F16, f16)).chain(of(DType::I8, i8));
    all.map(|(dtype, n)| square(dtype, n)).collect()
}

fn square(dtype: DType, n: usize) -> Result<Measurement, Failure> {
    device(format!("matmul {dtype} {n}"), Unit::Flops(2.0 * (n as f64).powi(3)), |g| {
        let (a, b) = (g.input("a", dtype, [n, n])?, g.input("b", dtype, [n, n])?);
        if dtype == DType::I8 { g.qmatmul(a, b, None, None) } else { g.matmul(a, b) }
    })
}

/// Matmuls of an input with weights: the three of a BERT-base layer at 128 tokens, and gemv.
pub(super) fn by_weights(quick: bool) -> Result<Vec<Measurement>, Failure> {
    let (m, shapes) = if quick {
        (8, [(24, 24), (96, 24), (24, 96)])
    } else {
        (128, [(768, 768), (3072, 768), (768, 3072)])
    };
    let mut list = Vec::new();
    for dtype in [DType::F16, DType::F32] {
        for (n, k) in shapes {
            let flops = 2.0 * (m * n * k) as f64;
            list.push(device(format!("matmul {dtype} m{m} n{n} k{k}"), Unit::Flops(flops), |g| {
                let (x, w) = (g.input("x", dtype, [m, k])?, g.param("w", dtype, [k, n])?);
                g.matmul(x, w)
            })?);
        }
    }
    let (n, count) = if quick { (64, 4) } else { (4096, 16) };
    for dtype in [DType::F32, DType::F16] {
        let bytes = (count * n * n * dtype.size()) as f64;
        list.push(device(format!("gemv {dtype} {n} x{count}"), Unit::Bytes(bytes), |g| {
            gemvs(g, dtype, n, count)
        })?);
        list.push(super::gemv::apart(dtype, n, count)?);
    }
    Ok(list)
}

/// One vector through matrices of weights, one after the other.
fn gemvs(g: &mut Graph, dtype: DType, n: usize, count: usize) -> Result<ValueId, Error> {
    let mut x = g.input("x", dtype, [1, n])?;
    for i in 0..count {
        let w = g.param(&format!("w{i}"), dtype, [n, n])?;
        x = g.matmul(x, w)?;
    }
    Ok(x)
}
