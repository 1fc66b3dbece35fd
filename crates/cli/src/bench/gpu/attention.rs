//! Attention of many positions to each other.

use olivine::ir::DType;
use olivine::ir::op::{Attention, HeadLayout};

use super::{Measurement, Unit, device};
use crate::answer::Failure;

/// Long, many and few heads, in full and causal; a causal one counts half of the operations.
pub(super) fn heads(quick: bool) -> Result<Vec<Measurement>, Failure> {
    let sizes = if quick {
        [[1, 2, 64, 32], [2, 2, 48, 16], [1, 2, 32, 16]]
    } else {
        [[1, 32, 4096, 128], [4, 16, 2048, 64], [1, 12, 512, 64]]
    };
    let mut list = Vec::new();
    for dtype in [DType::F16, DType::F32] {
        for [batch, heads, positions, dim] in sizes {
            for causal in [false, true] {
                let flops = 4.0 * (batch * heads * positions * positions * dim) as f64;
                let flops = if causal { flops / 2.0 } else { flops };
                let kind = if causal { " causal" } else { "" };
                let name = format!("attention {dtype} b{batch} h{heads} s{positions} d{dim}{kind}");
                list.push(device(name, Unit::Flops(flops), |g| {
                    let shape = [batch, heads, positions, dim];
                    let q = g.input("q", dtype, shape)?;
                    let k = g.input("k", dtype, shape)?;
                    let v = g.input("v", dtype, shape)?;
                    g.attention(Attention { causal, ..Attention::new(HeadLayout::Bhsd) }, q, k, v, &[])
                })?);
            }
        }
    }
    Ok(list)
}

/// One query of each head over a long cache; counted in the bytes of keys and values.
pub(super) fn decode(quick: bool) -> Result<Measurement, Failure> {
    let [heads, kv_heads, positions, dim] = if quick { [4, 2, 64, 32] } else { [32, 8, 8192, 128] };
    let dtype = DType::F16;
    let bytes = 2 * kv_heads * positions * dim * dtype.size();
    let name = format!("decode {dtype} b1 h{heads} kv{kv_heads} s{positions} d{dim}");
    device(name, Unit::Bytes(bytes as f64), |g| {
        let q = g.input("q", dtype, [1, heads, 1, dim])?;
        let k = g.input("k", dtype, [1, kv_heads, positions, dim])?;
        let v = g.input("v", dtype, [1, kv_heads, positions, dim])?;
        g.attention(Attention::new(HeadLayout::Bhsd), q, k, v, &[])
    })
}
