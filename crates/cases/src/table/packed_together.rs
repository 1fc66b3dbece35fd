//! Matmuls of one x by packed weights, and norms that only such matmuls read: what devices compute together where x has few rows.

use olivine_ir::BlockFormat::{
    self, IQ2_S, IQ4_XS, MXFP4, Q2_K, Q3_K, Q4_0, Q4_K, Q5_0, Q5_K, Q6_K, Q8_0, U4,
};
use olivine_ir::DType::{BF16, F16, F32};
use olivine_ir::op::{DequantMatMul, Scaling};
use olivine_ir::{Error, ValueId};

use crate::bound::Bound;
use crate::case::{Build, Table};
use crate::fill::{normal, uniform};

/// Sums of a few hundred products of numbers near one.
const SUM: Bound = Bound::Scaled(24.0);
/// Of such sums behind a norm, or of products of two.
const NORMED: Bound = Bound::Peak(64.0);
const EPS: f64 = 1e-5;

/// Formats of three weights, and K: a whole number of blocks that is none of a workgroup's steps.
const MIXES: [(&str, [BlockFormat; 3], usize); 8] = [
    ("q4_k", [Q4_K, Q4_K, Q4_K], 768),
    ("q4_k-q6_k", [Q4_K, Q4_K, Q6_K], 512),
    ("q8_0", [Q8_0, Q8_0, Q8_0], 544),
    ("mxfp4", [MXFP4, MXFP4, MXFP4], 96),
    ("q4_0-q8_0", [Q4_0, Q8_0, Q5_0], 160),
    ("strided", [Q6_K, Q3_K, Q2_K], 256),
    ("tables", [IQ4_XS, IQ2_S, Q5_K], 512),
    ("large-k", [Q6_K, Q4_K, Q4_K], 4352),
];

pub(super) fn rows(t: &mut Table) {
    of_one_x(t);
    normed(t);
    apart(t);
}

/// The matmuls of x by weights of some formats: odd numbers of columns, a bias, an activation with a residual.
fn three(
    g: &mut Build,
    x: ValueId,
    m: usize,
    k: usize,
    formats: [BlockFormat; 3],
) -> Result<Vec<ValueId>, Error> {
    let [first, second, third] = formats;
    let w = [g.packed(first, [37, k])?, g.packed(second, [5, k])?, g.packed(third, [70, k])?];
    let (bias, residual) = (g.w([5])?, g.x([m, 70])?);
    let [a, b, c] = [g.dequant_matmul(x, w[0])?, g.dequant_matmul(x, w[1])?, g.dequant_matmul(x, w[2])?];
    let (b, c) = (g.add(b, bias)?, g.silu(c)?);
    Ok(vec![a, b, g.add(c, residual)?])
}

fn of_one_x(t: &mut Table) {
    for (name, formats, k) in MIXES {
        for m in [1usize, 2, 3, 4] {
            let name = format!("dequant_matmul/together-{name}-{m}");
            t.case(&name, &[F32, F16, BF16], normal(), NORMED, move |g| {
                let x = g.x([m, k])?;
                three(g, x, m, k, formats)
            });
        }
    }
    t.case("dequant_matmul/together-scaled", &[F32], normal(), SUM, |g| {
        let x = g.x([2, 96])?;
        let (w, v) = (g.packed(U4, [13, 96])?, g.packed(Q8_0, [21, 96])?);
        let scales = g.weight([13, 3], uniform(0.1, 0.2))?;
        let op = DequantMatMul::scaled(Scaling { block: 32, zero: false, offset: 8 });
        let scaled = g.add1(op, &[x, w, scales])?;
        Ok((scaled, g.dequant_matmul(x, v)?))
    });
    t.case("dequant_matmul/together-batches", &[F32], normal(), SUM, |g| {
        let x = g.x([3, 1, 256])?;
        let (w, v) = (g.packed(Q4_K, [13, 256])?, g.packed(Q6_K, [21, 256])?);
        Ok((g.dequant_matmul(x, w)?, g.dequant_matmul(x, v)?))
    });
    // More of x than a workgroup has memory for.
    t.case("dequant_matmul/together-long", &[F32], normal(), SUM, |g| {
        let (x, gamma) = (g.x([1, 16384])?, g.w([16384])?);
        let x = g.rms_norm(x, gamma, None, EPS)?;
        let (w, v) = (g.packed(Q4_K, [5, 16384])?, g.packed(Q6_K, [3, 16384])?);
        Ok((g.dequant_matmul(x, w)?, g.dequant_matmul(x, v)?))
    });
    // The second x is what the first matmul makes: only one of each pair waits for nothing.
    t.case("dequant_matmul/together-in-turn", &[F32], normal(), NORMED, |g| {
        let x = g.x([1, 256])?;
        let (w, v) = (g.packed(Q4_K, [256, 256])?, g.packed(Q4_K, [256, 256])?);
        let (first, second) = (g.dequant_matmul(x, w)?, g.dequant_matmul(x, v)?);
        let third = g.mul(first, second)?;
        let u = g.packed(Q4_K, [256, 256])?;
        let last = g.dequant_matmul(x, u)?;
        let last = g.add(last, third)?;
        Ok((third, last))
    });
}

fn normed(t: &mut Table) {
    for (name, formats, k) in MIXES {
        for m in [1usize, 2, 3, 4] {
            let name = format!("dequant_matmul/rms-normed-{name}-{m}");
            t.case(&name, &[F32, F16, BF16], normal(), NORMED, move |g| {
                let (x, gamma) = (g.x([m, k])?, g.w([k])?);
                let x = g.rms_norm(x, gamma, None, EPS)?;
                three(g, x, m, k, formats)
            });
        }
    }
    for m in [1usize, 3] {
        t.case(&format!("dequant_matmul/layer-normed-{m}"), &[F32, F16], normal(), NORMED, move |g| {
            let (x, gamma, beta) = (g.x([m, 512])?, g.w([512])?, g.w([512])?);
            // A mean far from zero costs no digits.
            let offset = g.numbers([1], &[20.0])?;
            let x = g.add(x, offset)?;
            let x = g.layer_norm(x, gamma, Some(beta), EPS)?;
            three(g, x, m, 512, [Q4_K, Q4_K, Q6_K])
        });
        t.case(&format!("dequant_matmul/rms-normed-gated-{m}"), &[F32, F16], normal(), NORMED, move |g| {
            let (x, gamma) = (g.x([m, 512])?, g.w([512])?);
            let one = g.numbers([1], &[1.0])?;
            let gamma = g.add(gamma, one)?;
            let y = g.rms_norm(x, gamma, None, EPS)?;
            let (w, v) = (g.packed(Q4_K, [37, 512])?, g.packed(Q4_K, [37, 512])?);
            let (gate, up) = (g.dequant_matmul(y, w)?, g.dequant_matmul(y, v)?);
            let gate = g.silu(gate)?;
            g.mul(gate, up)
        });
        t.case(&format!("dequant_matmul/rms-normed-parallel-{m}"), &[F32], normal(), NORMED, move |g| {
            let (x, gamma) = (g.x([m, 256])?, g.w([256])?);
            let y = g.rms_norm(x, gamma, None, EPS)?;
            let (w, v) = (g.packed(Q8_0, [35, 256])?, g.packed(Q8_0, [35, 256])?);
            let (gate, up) = (g.dequant_matmul(y, w)?, g.dequant_matmul(y, v)?);
            let gate = g.silu(gate)?;
            let gated = g.mul(gate, up)?;
            let others = three(g, y, m, 256, [Q4_K, Q6_K, Q4_K])?;
            Ok([vec![gated], others].concat())
        });
        t.case(&format!("dequant_matmul/rms-normed-one-{m}"), &[F32, BF16], normal(), NORMED, move |g| {
            let (x, gamma, w) = (g.x([1, m, 544])?, g.w([544])?, g.packed(Q8_0, [133, 544])?);
            let y = g.rms_norm(x, gamma, None, EPS)?;
            g.dequant_matmul(y, w)
        });
    }
}

/// Norms that others read as well.
fn apart(t: &mut Table) {
    t.case("dequant_matmul/rms-normed-returned", &[F32], normal(), NORMED, |g| {
        let (x, gamma, w) = (g.x([1, 256])?, g.w([256])?, g.packed(Q4_K, [37, 256])?);
        let y = g.rms_norm(x, gamma, None, EPS)?;
        Ok((y, g.dequant_matmul(y, w)?))
    });
    t.case("dequant_matmul/rms-normed-residual", &[F32], normal(), NORMED, |g| {
        let (x, gamma, w) = (g.x([2, 256])?, g.w([256])?, g.packed(Q4_K, [256, 256])?);
        let y = g.rms_norm(x, gamma, None, EPS)?;
        let sum = g.dequant_matmul(y, w)?;
        g.add(sum, y)
    });
    t.case("dequant_matmul/rms-normed-and-added", &[F32], normal(), NORMED, |g| {
        let (x, other, gamma) = (g.x([2, 256])?, g.x([2, 256])?, g.w([256])?);
        let x = g.add(x, other)?;
        let y = g.rms_norm(x, gamma, None, EPS)?;
        let (w, v) = (g.packed(Q4_K, [256, 256])?, g.packed(Q4_K, [256, 256])?);
        let (a, b) = (g.dequant_matmul(y, w)?, g.dequant_matmul(y, v)?);
        Ok((g.add(a, x)?, b))
    });
}
