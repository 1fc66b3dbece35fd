//! Weights that stay packed: every format, few and many rows.

use olivine_ir::BlockFormat::{self, F8_E4M3, F8_E5M2, I4, MXFP4, Q4_0, Q4_K, Q5_0, Q6_K, Q8_0, U2, U4};
use olivine_ir::DType::{self, BF16, F16, F32, I8, I32, U8};
use olivine_ir::Error;
use olivine_ir::ValueId;
use olivine_ir::op::{DequantGather, DequantMatMul, Scaling};

use crate::bound::Bound;
use crate::case::{Build, Table};
use crate::fill::Fill::{Anything, Index};
use crate::fill::{normal, uniform, whole};

/// Sums of a few hundred products of numbers near one.
const SUM: Bound = Bound::Scaled(24.0);
/// Of products of two such sums.
const GATED: Bound = Bound::Peak(64.0);

pub(super) fn rows(t: &mut Table) {
    blocks(t);
    scaled(t);
    grouped(t);
    fast_and_gated(t);
    gather(t);
    epilogues(t);
    super::packed_together::rows(t);
}

/// Formats with their scales inside.
fn formats() -> impl Iterator<Item = BlockFormat> {
    BlockFormat::ALL.iter().copied().filter(|format| format.ggml_id().is_some())
}

fn blocks(t: &mut Table) {
    for format in formats() {
        // An odd N, and more than one block.
        let k = format.elements() * if format.elements() < 256 { 5 } else { 2 };
        for m in [1usize, 2, 7, 64, 300] {
            let dtypes: &[DType] = if m == 300 { &[F16] } else { &[F32] };
            t.case(&format!("dequant_matmul/{format}-{m}"), dtypes, normal(), SUM, move |g| {
                let (x, w) = (g.x([m, k])?, g.packed(format, [35, k])?);
                g.dequant_matmul(x, w)
            });
        }
    }
    for (what, m, n, k) in [
        ("long", 1usize, 3usize, 65_536 + 512),
        ("wide", 1, 65_537, 256),
        ("tall", 65_537, 3, 256),
        ("none", 0, 5, 256),
        ("no-columns", 4, 0, 256),
        ("empty", 3, 5, 0),
        ("tiles", 129, 257, 768),
    ] {
        let bound = if what == "long" { Bound::Scaled(200.0) } else { SUM };
        for format in [Q4_K, Q8_0] {
            t.case(&format!("dequant_matmul/{what}-{format}"), &[F32, F16], normal(), bound, move |g| {
                let (x, w) = (g.x([m, k])?, g.packed(format, [n, k])?);
                g.dequant_matmul(x, w)
            });
        }
    }
    for dtype in [F32, F16, BF16] {
        for m in [1usize, 7, 64] {
            t.case(&format!("dequant_matmul/{dtype}-{m}"), &[F32, F16], normal(), SUM, move |g| {
                let (x, w) = (g.x([m, 200])?, g.weight_of(dtype, [35, 200], normal())?);
                g.dequant_matmul(x, w)
            });
        }
        t.case(&format!("dequant_gather/{dtype}"), &[F32, F16], normal(), Bound::Bits, move |g| {
            let (to, w) = (g.dtype(), g.weight_of(dtype, [11, 40], normal())?);
            let i = g.index([2, 3], 11)?;
            g.dequant_gather(w, i, to)
        });
    }
    for (what, dims) in [("vector", vec![512usize]), ("batches", vec![2, 3, 512])] {
        t.case(&format!("dequant_matmul/{what}"), &[F32, F16, BF16], normal(), SUM, move |g| {
            let (x, w) = (g.x(&dims)?, g.packed(Q4_K, [33, 512])?);
            g.dequant_matmul(x, w)
        });
    }
}

/// Whether zero points are given, and of what kind.
#[derive(Clone, Copy, PartialEq)]
enum Zero {
    None,
    Packed,
    Bytes,
    Floats,
}

/// A weight `[.., columns]` of a format, or of plain bytes, and its scales and zero points.
fn scaled_weight(
    g: &mut Build,
    format: Option<BlockFormat>,
    (rows, columns, block): (&[usize], usize, usize),
    (scale, zero): (DType, Zero),
) -> Result<(ValueId, Vec<ValueId>), Error> {
    let dims = |last: usize| [rows, &[last]].concat();
    let w = match format {
        Some(format) => g.packed(format, &dims(columns))?,
        None => g.weight_of(U8, &dims(columns), Anything)?,
    };
    let blocks = columns.div_ceil(block);
    let mut operands = vec![g.weight_of(scale, &dims(blocks), uniform(0.01, 0.02))?];
    match (zero, format) {
        (Zero::None, _) => {}
        (Zero::Packed, Some(format)) => {
            operands.push(g.packed(format, &dims(blocks.next_multiple_of(format.elements())))?);
        }
        (Zero::Floats, _) => operands.push(g.weight_of(scale, &dims(blocks), uniform(0.0, 9.0))?),
        _ => operands.push(g.weight_of(U8, &dims(blocks), whole(0, 15))?),
    }
    Ok((w, operands))
}

fn scaled(t: &mut Table) {
    let zeros =
        [("none", Zero::None), ("packed", Zero::Packed), ("bytes", Zero::Bytes), ("floats", Zero::Floats)];
    for m in [1usize, 2, 7, 64, 300] {
        for format in [Some(U4), Some(I4), Some(U2), Some(F8_E4M3), Some(F8_E5M2), None] {
            let name = format.map_or("u8", BlockFormat::name);
            for (what, zero) in zeros {
                let integer = matches!(format, Some(U4 | U2) | None);
                if zero != Zero::None && (!integer || (zero == Zero::Packed && format.is_none())) {
                    continue;
                }
                if zero != Zero::None && !matches!(m, 1 | 64) {
                    continue;
                }
                let offset = if integer && zero == Zero::None { 2 } else { 0 };
                t.case(&format!("dequant_matmul/{name}-{m}-{what}"), &[F32], normal(), SUM, move |g| {
                    let (w, rest) = scaled_weight(g, format, (&[35], 224, 32), (F32, zero))?;
                    let scaling = Scaling { block: 32, zero: zero != Zero::None, offset };
                    let x = g.x([m, 224])?;
                    g.add1(DequantMatMul::scaled(scaling), &[&[x, w], &rest[..]].concat())
                });
            }
        }
    }
    // K that is not whole blocks, every size of block, scales of every dtype.
    for (block, k) in [(16usize, 100usize), (32, 100), (64, 100), (128, 300), (256, 300), (7, 50)] {
        let columns = k.next_multiple_of(block).next_multiple_of(2);
        t.case(&format!("dequant_matmul/short-{block}"), &[F32, F16, BF16], normal(), SUM, move |g| {
            let dtype = g.dtype();
            let (w, rest) = scaled_weight(g, Some(U4), (&[9], columns, block), (dtype, Zero::None))?;
            let x = g.x([3, k])?;
            let scaling = Scaling { block, zero: false, offset: 8 };
            g.add1(DequantMatMul::scaled(scaling), &[&[x, w], &rest[..]].concat())
        });
    }
    t.case("dequant_matmul/i8", &[F32, F16], normal(), SUM, |g| {
        let (x, w) = (g.x([5, 96])?, g.weight_of(I8, [21, 96], Anything)?);
        let scales = g.weight_of(F16, [21, 3], uniform(0.01, 0.02))?;
        g.dequant_matmul_scaled(x, w, (scales, None), (32, 0))
    });
    t.case("dequant_matmul/scale-of-a-row", &[F32], normal(), SUM, |g| {
        let (x, w) = (g.x([2, 96])?, g.packed(F8_E4M3, [21, 96])?);
        let scales = g.weight_of(F32, [21, 1], uniform(0.5, 1.5))?;
        g.dequant_matmul_scaled(x, w, (scales, None), (96, 0))
    });
}

/// x that may be rounded to f16, and pairs of matmuls of which one gates the other.
fn fast_and_gated(t: &mut Table) {
    for m in [1usize, 5, 40, 300] {
        for format in [Q4_K, Q8_0] {
            // 2^13 roundings of f32 are one of f16.
            let bound = Bound::Scaled(24.0 * 8192.0);
            t.case(&format!("dequant_matmul/fast-{format}-{m}"), &[F32], normal(), bound, move |g| {
                let (x, w) = (g.x([m, 512])?, g.packed(format, [35, 512])?);
                g.add1(DequantMatMul { fast: true, ..DequantMatMul::new() }, &[x, w])
            });
        }
    }
    for (m, format) in [(1usize, Q4_K), (3, Q8_0), (8, Q6_K), (2, Q4_0), (1, MXFP4), (40, Q4_K)] {
        t.case(&format!("dequant_matmul/gated-{format}-{m}"), &[F32, F16], normal(), GATED, move |g| {
            let x = g.x([m, 512])?;
            let (w, v) = (g.packed(format, [37, 512])?, g.packed(format, [37, 512])?);
            let (gate, up) = (g.dequant_matmul(x, w)?, g.dequant_matmul(x, v)?);
            let gate = g.silu(gate)?;
            g.mul(gate, up)
        });
    }
    t.case("dequant_matmul/gated-experts", &[F32], normal(), GATED, |g| {
        let x = g.x([5, 256])?;
        let (w, v) = (g.packed(Q4_K, [3, 21, 256])?, g.packed(Q4_K, [3, 21, 256])?);
        let expert = g.of(I32, [5], Index(3, false))?;
        let (gate, up) = (g.dequant_grouped_matmul(x, w, expert)?, g.dequant_grouped_matmul(x, v, expert)?);
        let gate = g.silu(gate)?;
        g.mul(gate, up)
    });
    t.case("dequant_matmul/gated-residual", &[F32], normal(), GATED, |g| {
        let (x, y) = (g.x([2, 256])?, g.x([2, 33])?);
        let (w, v) = (g.packed(Q5_0, [33, 256])?, g.packed(Q5_0, [33, 256])?);
        let (gate, up) = (g.dequant_matmul(x, w)?, g.dequant_matmul(x, v)?);
        let product = g.mul(up, gate)?;
        g.add(product, y)
    });
}

fn grouped(t: &mut Table) {
    for format in formats() {
        let k = format.elements() * if format.elements() < 256 { 3 } else { 1 };
        t.case(&format!("dequant_matmul/experts-{format}"), &[F32], normal(), SUM, move |g| {
            let (x, w) = (g.x([9, k])?, g.packed(format, [4, 13, k])?);
            let expert = g.of(I32, [9], Index(4, false))?;
            g.dequant_grouped_matmul(x, w, expert)
        });
    }
    for m in [1usize, 64, 300] {
        t.case(&format!("dequant_matmul/experts-{m}"), &[F32, F16, BF16], normal(), SUM, move |g| {
            let (x, w) = (g.x([m, 512])?, g.packed(Q4_K, [8, 35, 512])?);
            let expert = g.of(I32, [m], Index(8, false))?;
            g.dequant_grouped_matmul(x, w, expert)
        });
    }
    t.case("dequant_matmul/experts-out-of-range", &[F32], normal(), SUM, |g| {
        let (x, w) = (g.x([5, 256])?, g.packed(Q6_K, [3, 7, 256])?);
        let expert = g.ints(I32, [5], &[0, 2, 3, -1, 1])?;
        g.dequant_grouped_matmul(x, w, expert)
    });
    t.case("dequant_matmul/experts-scaled", &[F32], normal(), SUM, |g| {
        let (w, rest) = scaled_weight(g, Some(U4), (&[4, 13], 96, 32), (F32, Zero::Packed))?;
        let (x, expert) = (g.x([9, 96])?, g.of(I32, [9], Index(4, false))?);
        let scaling = Scaling { block: 32, zero: true, offset: 0 };
        let op = DequantMatMul { grouped: true, ..DequantMatMul::scaled(scaling) };
        g.add1(op, &[&[x, w, expert], &rest[..]].concat())
    });
}

fn gather(t: &mut Table) {
    for format in formats() {
        let k = 2 * format.elements();
        t.case(&format!("dequant_gather/{format}"), &[F32], normal(), Bound::Bits, move |g| {
            let (w, i) = (g.packed(format, [11, k])?, g.index([2, 3], 11)?);
            g.dequant_gather(w, i, F32)
        });
    }
    for format in [U2, U4, I4, F8_E4M3, F8_E5M2] {
        t.case(
            &format!("dequant_gather/{format}-scaled"),
            &[F32, F16, BF16],
            normal(),
            Bound::Exact,
            move |g| {
                let dtype = g.dtype();
                let (w, rest) = scaled_weight(g, Some(format), (&[11], 96, 32), (dtype, Zero::None))?;
                let i = g.index([7], 11)?;
                let scaling = Scaling { block: 32, zero: false, offset: if format == U4 { 8 } else { 0 } };
                g.add1(DequantGather::new(dtype, scaling), &[&[w, i], &rest[..]].concat())
            },
        );
    }
    for dtype in [U8, I8] {
        t.case(&format!("dequant_gather/{dtype}-scaled"), &[F32, F16], normal(), Bound::Exact, move |g| {
            let (to, w) = (g.dtype(), g.weight_of(dtype, [11, 96], Anything)?);
            let scales = g.weight_of(to, [11, 3], uniform(0.01, 0.02))?;
            let i = g.index([7], 11)?;
            let scaling = Scaling { block: 32, zero: false, offset: 0 };
            g.add1(DequantGather::new(to, scaling), &[w, i, scales])
        });
    }
    t.case("dequant_gather/rounded", &[F16, BF16], normal(), Bound::Bits, |g| {
        let (dtype, w) = (g.dtype(), g.packed(Q4_K, [11, 512])?);
        let i = g.index([4], 11)?;
        g.dequant_gather(w, i, dtype)
    });
    t.case("dequant_gather/none", &[F32], normal(), Bound::Bits, |g| {
        let (w, i) = (g.packed(Q8_0, [11, 64])?, g.index([0, 3], 11)?);
        g.dequant_gather(w, i, F32)
    });
    t.case("dequant_gather/out-of-range", &[F32], normal(), Bound::Bits, |g| {
        let (w, i) = (g.packed(Q8_0, [11, 64])?, g.ints(I32, [4], &[99, -99, 11, -12])?);
        g.dequant_gather(w, i, F32)
    });
    t.case("dequant_gather/many", &[F32], normal(), Bound::Bits, |g| {
        let (w, i) = (g.packed(Q4_0, [300, 32])?, g.index([65_537], 300)?);
        g.dequant_gather(w, i, F32)
    });
}

fn epilogues(t: &mut Table) {
    for m in [1usize, 5, 70] {
        t.case(
            &format!("dequant_matmul/bias-silu-residual-{m}"),
            &[F32, F16],
            normal(),
            Bound::Scaled(64.0),
            move |g| {
                let (x, w) = (g.x([m, 256])?, g.packed(Q4_K, [37, 256])?);
                let (bias, residual) = (g.w([37])?, g.x([m, 37])?);
                let y = g.dequant_matmul(x, w)?;
                let y = g.add(y, bias)?;
                let y = g.silu(y)?;
                g.add(y, residual)
            },
        );
        t.case(&format!("dequant_matmul/gate-{m}"), &[F32], normal(), Bound::Scaled(64.0), move |g| {
            let x = g.x([m, 256])?;
            let (gate, up) = (g.packed(Q4_K, [37, 256])?, g.packed(Q4_K, [37, 256])?);
            let gate = g.dequant_matmul(x, gate)?;
            let up = g.dequant_matmul(x, up)?;
            let gate = g.silu(gate)?;
            g.mul(gate, up)
        });
    }
}
