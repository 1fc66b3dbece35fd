//! Whole small graphs: what fusion, views and memory planning have to keep right.

use olivine_ir::DType::{self, BF16, Bool, F16, F32, F64, I16, I32, I64, U32};
use olivine_ir::op::{
    Attention, Binary, HeadLayout, MaskKind, ReduceKind, Rope, RopeScaling, RopeStyle, Window,
};
use olivine_ir::{Error, ValueId};

use super::{FLOATS, PAIR};
use crate::bound::Bound::{Exact, Near, Peak};
use crate::case::{Build, Table};
use crate::fill::Fill::{Chance, Normal};
use crate::fill::{normal, uniform, whole};

pub(super) fn rows(t: &mut Table) {
    chains(t);
    matmuls(t);
    norms(t);
    by_hand(t);
    layers(t);
    sharing(t);
}

fn chains(t: &mut Table) {
    t.case("chain/mid-axis", &[F32, F16, F64], whole(-4, 4), Exact, |g| {
        let (a, b, c) = (g.x([3, 1, 5])?, g.x([4, 1])?, g.x([3, 4, 5])?);
        let s = g.add(a, b)?;
        let p = g.mul(s, c)?;
        let m = g.max(p, a)?;
        g.sub(m, b)
    });
    t.case("chain/where-compare", &[F32, F16], whole(-4, 4), Exact, |g| {
        let (a, b, c) = (g.x([2, 1, 6])?, g.x([3, 1])?, g.x([2, 3, 6])?);
        let less = g.lt(a, b)?;
        let (x, y) = (g.add(a, c)?, g.mul(b, c)?);
        let chosen = g.select(less, x, y)?;
        let large = g.gt(chosen, c)?;
        g.and(large, less)
    });
    t.case("chain/casts", &[F32], normal(), Exact, |g| {
        let x = g.x([5, 9])?;
        let h = g.cast(x, F16)?;
        let i = g.cast(h, I64)?;
        let b = g.cast(x, BF16)?;
        let (i, b) = (g.cast(i, F32)?, g.cast(b, F32)?);
        g.add(i, b)
    });
    for (name, from, to) in
        [("f32", F32, I32), ("f16", F16, I16), ("bf16", BF16, I16), ("f64", F64, I64), ("i32", I32, U32)]
    {
        t.case(&format!("bitcast/of-{name}"), &[from], normal(), Exact, move |g| {
            let x = g.x([3, 11])?;
            g.bitcast(x, to)
        });
        t.case(&format!("bitcast/to-{name}"), &[to], whole(0, 120), Exact, move |g| {
            let x = g.x([3, 11])?;
            let y = g.bitcast(x, from)?;
            let turned = g.neg(y)?;
            g.bitcast(turned, to)
        });
    }
    t.case("chain/long", FLOATS, uniform(0.5, 2.0), Near(200.0, 0.0), |g| {
        let x = g.x([7, 33])?;
        let mut y = x;
        for _ in 0..6 {
            y = g.mul(y, x)?;
            y = g.sqrt(y)?;
            y = g.binary_scalar(Binary::Add, y, 0.25)?;
        }
        Ok(y)
    });
    t.case("chain/several-outputs", &[F32], whole(-9, 9), Exact, |g| {
        let (x, y) = (g.x([4, 6])?, g.x([6])?);
        let s = g.add(x, y)?;
        let p = g.mul(s, x)?;
        let n = g.neg(p)?;
        Ok(vec![n, s, p, s])
    });
    t.case("chain/diamond", &[F32, F16], whole(-9, 9), Exact, |g| {
        let x = g.x([4, 6])?;
        let (a, b) = (g.relu(x)?, g.neg(x)?);
        let b = g.relu(b)?;
        g.add(a, b)
    });
    t.case("chain/through-views", &[F32, F16], whole(-9, 9), Exact, |g| {
        let (x, y) = (g.x([4, 6])?, g.x([6, 4])?);
        let xt = g.transpose(x, &[1, 0])?;
        let s = g.add(xt, y)?;
        let s = g.slice(s, 0, 5, 0, -2)?;
        let s = g.reshape(s, &[2, 6])?;
        let x = g.narrow(x, 0, 1, 2)?;
        g.mul(s, x)
    });
    t.case("chain/rank-8", &[F32], whole(-9, 9), Exact, |g| {
        let (x, y) = (g.x([2, 1, 2, 1, 3, 1, 2, 2])?, g.x([1, 3, 1, 2, 1, 2, 1, 2])?);
        let s = g.add(x, y)?;
        let s = g.transpose(s, &[7, 6, 5, 4, 3, 2, 1, 0])?;
        g.reduce(ReduceKind::Sum, s, &[1, 3, 5], false)
    });
    t.case("chain/scalars", FLOATS, normal(), Near(4.0, 4.0), |g| {
        let (x, y) = (g.x([])?, g.x([])?);
        let e = g.exp(x)?;
        let s = g.add(e, y)?;
        g.tanh(s)
    });
    t.case("chain/zero-size", &[F32], normal(), Exact, |g| {
        let (x, y) = (g.x([0, 5])?, g.x([5])?);
        let s = g.add(x, y)?;
        let s = g.exp(s)?;
        g.reduce(ReduceKind::Sum, s, &[0], false)
    });
    t.case("chain/reduce-then-scale", FLOATS, normal(), Peak(16.0), |g| {
        let x = g.x([5, 40])?;
        let top = g.reduce(ReduceKind::Max, x, &[1], true)?;
        let d = g.sub(x, top)?;
        let e = g.exp(d)?;
        let s = g.reduce(ReduceKind::Sum, e, &[1], true)?;
        g.div(e, s)
    });
}

fn matmuls(t: &mut Table) {
    t.case("matmul-bias-gelu-residual", FLOATS, normal(), Peak(64.0), |g| {
        let (x, w, b, r) = (g.x([9, 24])?, g.w([24, 24])?, g.w([24])?, g.x([9, 24])?);
        let y = g.linear(x, w, b)?;
        let y = g.gelu(y)?;
        g.add(y, r)
    });
    // A gate and what it lets through, from one operand.
    for (name, rows, width) in [("swiglu", 9, 20), ("swiglu-row", 1, 36), ("swiglu-odd", 12, 7)] {
        t.case(name, FLOATS, normal(), Peak(96.0), move |g| {
            let (x, w, v) = (g.x([rows, 24])?, g.w([24, width])?, g.w([24, width])?);
            let (b, r) = (g.w([width])?, g.x([rows, width])?);
            let (gate, up) = (g.linear(x, w, b)?, g.matmul(x, v)?);
            let gate = g.silu(gate)?;
            let y = g.mul(gate, up)?;
            g.add(r, y)
        });
    }
    t.case("gated-by-itself", PAIR, normal(), Peak(96.0), |g| {
        // The matmul's operand is also the epilogue's.
        let (x, w, v) = (g.x([2, 5, 16])?, g.w([16, 16])?, g.w([16, 16])?);
        let x = g.relu(x)?;
        let (gate, up) = (g.matmul(x, w)?, g.matmul(x, v)?);
        let gate = g.sigmoid(gate)?;
        let y = g.mul(gate, up)?;
        let y = g.add(y, x)?;
        g.relu(y)
    });
    t.case("matmul-column-bias", PAIR, normal(), Peak(32.0), |g| {
        let (x, w, b) = (g.x([2, 9, 24])?, g.w([24, 7])?, g.x([2, 9, 1])?);
        let y = g.matmul(x, w)?;
        let y = g.add(b, y)?;
        g.silu(y)
    });
    t.case("matmul-used-twice", PAIR, normal(), Peak(32.0), |g| {
        let (x, w) = (g.x([9, 24])?, g.w([24, 7])?);
        let y = g.matmul(x, w)?;
        let a = g.tanh(y)?;
        let b = g.mul(y, a)?;
        Ok(vec![b, y])
    });
    t.case("matmul-scaled-subtracted", PAIR, normal(), Peak(32.0), |g| {
        let (x, w, c) = (g.x([9, 24])?, g.w([24, 7])?, g.x([9, 7])?);
        let y = g.matmul(x, w)?;
        let y = g.binary_scalar(Binary::Mul, y, 0.125)?;
        g.sub(c, y)
    });
    t.case("matmul-cast-out", &[F16, BF16], normal(), Peak(64.0), |g| {
        let (x, w) = (g.x([9, 24])?, g.w([24, 7])?);
        let y = g.matmul(x, w)?;
        let y = g.cast(y, F32)?;
        g.cast(y, F16)
    });
    t.case("matmul-epilogue-larger", PAIR, normal(), Peak(32.0), |g| {
        let (x, w, c) = (g.x([1, 24])?, g.w([24, 7])?, g.x([5, 7])?);
        let y = g.matmul(x, w)?;
        g.add(y, c)
    });
    t.case("conv-bias-relu-residual", PAIR, normal(), Peak(64.0), |g| {
        let (x, w, b) = (g.x([1, 4, 7, 7])?, g.w([4, 4, 3, 3])?, g.w([4])?);
        let y = g.conv(x, w, Some(b), Window::same(2, 1, 1), 1)?;
        let y = g.relu(y)?;
        g.add(y, x)
    });
    t.case("conv-batch-norm-silu", &[F32], normal(), Peak(64.0), |g| {
        let (x, w) = (g.x([2, 3, 8, 8])?, g.w([6, 3, 3, 3])?);
        let y = g.conv(x, w, None, Window::same(2, 2, 1), 1)?;
        let (gamma, beta, mean) = (g.w([6])?, g.w([6])?, g.w([6])?);
        let variance = g.weight([6], uniform(0.5, 2.0))?;
        let y = g.batch_norm(y, gamma, beta, [mean, variance], 1e-5)?;
        g.silu(y)
    });
    t.case("gated-mlp", FLOATS, normal(), Peak(128.0), |g| {
        let (x, gate, up, down) = (g.x([2, 5, 16])?, g.w([16, 24])?, g.w([16, 24])?, g.w([24, 16])?);
        let (a, b) = (g.matmul(x, gate)?, g.matmul(x, up)?);
        let a = g.silu(a)?;
        let h = g.mul(a, b)?;
        g.matmul(h, down)
    });
}

fn norms(t: &mut Table) {
    t.case("residual-layer-norm", FLOATS, normal(), Peak(48.0), |g| {
        let (x, r, gamma, beta) = (g.x([2, 5, 32])?, g.x([2, 5, 32])?, g.w([32])?, g.w([32])?);
        let s = g.add(x, r)?;
        let y = g.layer_norm(s, gamma, Some(beta), 1e-5)?;
        Ok(vec![y, s])
    });
    t.case("residual-rms-norm", FLOATS, normal(), Peak(48.0), |g| {
        let (x, r, gamma) = (g.x([2, 5, 32])?, g.x([2, 1, 32])?, g.w([32])?);
        let s = g.add(x, r)?;
        g.rms_norm(s, gamma, None, 1e-6)
    });
    // Products over a long axis, in parts that the norm sums.
    t.case("long-k-layer-norm", FLOATS, normal(), Peak(96.0), |g| {
        let (x, w, b, r) = (g.x([12, 768])?, g.w([768, 32])?, g.w([32])?, g.x([12, 32])?);
        let (gamma, beta) = (g.w([32])?, g.w([32])?);
        let y = g.linear(x, w, b)?;
        let y = g.add(y, r)?;
        g.layer_norm(y, gamma, Some(beta), 1e-5)
    });
    t.case("long-k-rms-norm-residual", PAIR, normal(), Peak(96.0), |g| {
        let (x, w, r, gamma) = (g.x([3, 1024])?, g.w([1024, 36])?, g.x([3, 36])?, g.w([36])?);
        let y = g.matmul(x, w)?;
        let s = g.add(y, r)?;
        let n = g.rms_norm(s, gamma, None, 1e-6)?;
        let n = g.add(n, s)?;
        Ok(vec![n, s])
    });
    t.case("long-k-scaled-norm", PAIR, normal(), Peak(96.0), |g| {
        let (x, w, c, gamma) = (g.x([10, 640])?, g.w([640, 17])?, g.x([17])?, g.w([17])?);
        let y = g.matmul(x, w)?;
        let s = g.mul(c, y)?;
        let n = g.rms_norm(s, gamma, None, 1e-6)?;
        let z = g.sub(y, n)?;
        Ok(vec![z, s])
    });
    t.case("layer-norm-by-hand", &[F32, F64], normal(), Peak(64.0), |g| {
        let (x, gamma, beta) = (g.x([2, 5, 32])?, g.w([32])?, g.w([32])?);
        let mean = g.reduce(ReduceKind::Mean, x, &[-1], true)?;
        let d = g.sub(x, mean)?;
        let sq = g.binary_scalar(Binary::Pow, d, 2.0)?;
        let var = g.reduce(ReduceKind::Mean, sq, &[-1], true)?;
        let var = g.binary_scalar(Binary::Add, var, 1e-5)?;
        let std = g.sqrt(var)?;
        let y = g.div(d, std)?;
        let y = g.mul(y, gamma)?;
        g.add(y, beta)
    });
    t.case("rms-norm-by-hand", &[F32, F64], normal(), Peak(64.0), |g| {
        let (x, gamma) = (g.x([2, 5, 32])?, g.w([32])?);
        let sq = g.mul(x, x)?;
        let mean = g.reduce(ReduceKind::Mean, sq, &[-1], true)?;
        let mean = g.binary_scalar(Binary::Add, mean, 1e-6)?;
        let r = g.rsqrt(mean)?;
        let y = g.mul(x, r)?;
        g.mul(gamma, y)
    });
    t.case("gelu-by-hand", &[F32, F64], normal(), Near(16.0, 4.0), |g| {
        let x = g.x([5, 33])?;
        let e = g.binary_scalar(Binary::Div, x, std::f64::consts::SQRT_2)?;
        let e = g.erf(e)?;
        let e = g.binary_scalar(Binary::Add, e, 1.0)?;
        let y = g.mul(x, e)?;
        g.binary_scalar(Binary::Mul, y, 0.5)
    });
}

fn by_hand(t: &mut Table) {
    for masked in [false, true] {
        let name = if masked { "attention-by-hand-masked" } else { "attention-by-hand" };
        t.case(name, PAIR, normal(), Peak(64.0), move |g| {
            let (q, k, v) = (g.x([2, 5, 3, 8])?, g.x([2, 7, 3, 8])?, g.x([2, 7, 3, 8])?);
            let q = g.transpose(q, &[0, 2, 1, 3])?;
            let k = g.transpose(k, &[0, 2, 3, 1])?;
            let v = g.transpose(v, &[0, 2, 1, 3])?;
            let mut s = g.matmul(q, k)?;
            s = g.binary_scalar(Binary::Mul, s, 0.35355339059327373)?;
            if masked {
                let keep = g.of(Bool, [2, 1, 1, 7], Chance(0.8))?;
                let low = g.numbers([], &[-10000.0])?;
                s = g.select(keep, s, low)?;
            }
            let p = g.softmax(s, -1)?;
            let y = g.matmul(p, v)?;
            let y = g.transpose(y, &[0, 2, 1, 3])?;
            g.reshape(y, &[0, 0, -1])
        });
    }
    t.case("cached-decode-step", &[F32, F16], normal(), Peak(48.0), |g| {
        let layout = HeadLayout::Bshd;
        let (q, k, v) = (g.x([1, 1, 4, 16])?, g.x([1, 1, 2, 16])?, g.x([1, 1, 2, 16])?);
        let (kc, vc) = (g.x([1, 12, 2, 16])?, g.x([1, 12, 2, 16])?);
        let at = g.ints(I64, [], &[6])?;
        let length = g.ints(I64, [], &[7])?;
        let places = g.ints(I64, [1], &[6])?;
        let rope = Rope {
            layout,
            style: RopeStyle::NeoX,
            rotary: 16,
            base: 10000.0,
            scaling: RopeScaling::None,
            tables: false,
        };
        let (q, k) = (g.rope(rope.clone(), q, &[places])?, g.rope(rope, k, &[places])?);
        let (kc, vc) = (g.kv_append(layout, kc, k, at)?, g.kv_append(layout, vc, v, at)?);
        let spec = Attention { causal: true, lengths: true, ..Attention::new(layout) };
        let y = g.attention(spec, q, kc, vc, &[length])?;
        Ok(vec![y, kc, vc])
    });
}

/// `[B, S, C]` through one pre-norm encoder layer of four heads.
fn encoder_layer(g: &mut Build, x: ValueId, c: usize) -> Result<ValueId, Error> {
    let small = |n: usize| Normal(0.0, 1.0 / (n as f64).sqrt());
    let (gamma, beta) = (g.weight([c], Normal(1.0, 0.1))?, g.weight([c], Normal(0.0, 0.1))?);
    let h = g.layer_norm(x, gamma, Some(beta), 1e-5)?;
    let (w, b) = (g.weight([c, 3 * c], small(c))?, g.weight([3 * c], Normal(0.0, 0.1))?);
    let qkv = g.linear(h, w, b)?;
    let parts = g.split(qkv, -1, &[c, c, c])?;
    let mut heads = Vec::new();
    for part in parts {
        heads.push(g.reshape(part, &[0, 0, 4, -1])?);
    }
    let a = g.attention(Attention::new(HeadLayout::Bshd), heads[0], heads[1], heads[2], &[])?;
    let a = g.reshape(a, &[0, 0, -1])?;
    let (w, b) = (g.weight([c, c], small(c))?, g.weight([c], Normal(0.0, 0.1))?);
    let a = g.linear(a, w, b)?;
    let x = g.add(x, a)?;
    let (gamma, beta) = (g.weight([c], Normal(1.0, 0.1))?, g.weight([c], Normal(0.0, 0.1))?);
    let h = g.layer_norm(x, gamma, Some(beta), 1e-5)?;
    let (w, b) = (g.weight([c, 4 * c], small(c))?, g.weight([4 * c], Normal(0.0, 0.1))?);
    let h = g.linear(h, w, b)?;
    let h = g.gelu(h)?;
    let (w, b) = (g.weight([4 * c, c], small(4 * c))?, g.weight([c], Normal(0.0, 0.1))?);
    let h = g.linear(h, w, b)?;
    g.add(x, h)
}

fn layers(t: &mut Table) {
    t.case("encoder-layer", FLOATS, normal(), Peak(64.0), |g| {
        let x = g.x([2, 7, 32])?;
        encoder_layer(g, x, 32)
    });
    t.case("encoder-two-layers", &[F32, F64], normal(), Peak(128.0), |g| {
        let x = g.x([1, 9, 48])?;
        let x = encoder_layer(g, x, 48)?;
        encoder_layer(g, x, 48)
    });
    t.case("embedding-encoder-logits", &[F32], normal(), Peak(128.0), |g| {
        let (ids, table) = (g.of(I64, [2, 6], crate::fill::Fill::Index(50, false))?, g.w([50, 16])?);
        let x = g.gather(table, ids, 0)?;
        let x = encoder_layer(g, x, 16)?;
        g.matmul_nt(x, table)
    });
    t.case("masked-bias-attention", PAIR, normal(), Peak(48.0), |g| {
        let x = g.x([2, 6, 3, 8])?;
        let ids = g.of(I64, [2, 6], Chance(0.7))?;
        let d: DType = g.dtype();
        // As exporters write it: (1 − mask)·−10000, broadcast over heads and queries.
        let mask = g.cast(ids, d)?;
        let one = g.numbers([], &[1.0])?;
        let mask = g.sub(one, mask)?;
        let mask = g.binary_scalar(Binary::Mul, mask, -10000.0)?;
        let mask = g.reshape(mask, &[2, 1, 1, 6])?;
        let spec = Attention { mask: MaskKind::Bias, ..Attention::new(HeadLayout::Bshd) };
        g.attention(spec, x, x, x, &[mask])
    });
}

fn sharing(t: &mut Table) {
    for (name, layout, style, hidden, each) in [
        ("decoder-rows", HeadLayout::Bshd, RopeStyle::NeoX, 640, false),
        ("decoder-rows-gptj", HeadLayout::Bhsd, RopeStyle::GptJ, 24, false),
        ("decoder-rows-each", HeadLayout::Bshd, RopeStyle::NeoX, 640, true),
        ("decoder-rows-each-gptj", HeadLayout::Bhsd, RopeStyle::GptJ, 24, true),
    ] {
        // q and k rotated, k and v appended to caches, from one matmul.
        t.case(name, PAIR, normal(), Peak(96.0), move |g| {
            let x = g.x([2, 3, hidden])?;
            let (places, at, length) = if each {
                let places = g.ints(I64, [2, 3], &[4, 5, 6, 1, 2, 3])?;
                (places, g.ints(I64, [2], &[4, 1])?, g.ints(I64, [2], &[7, 4])?)
            } else {
                (g.ints(I64, [3], &[4, 5, 6])?, g.ints(I64, [], &[4])?, g.ints(I64, [], &[7])?)
            };
            let dims = |s: usize, h: usize| layout.dims(2, h, s, 8);
            let (keys, values) = (g.x(dims(9, 2))?, g.x(dims(9, 2))?);
            let mut heads = |count: usize| -> Result<ValueId, Error> {
                let w = g.weight([hidden, 8 * count], Normal(0.0, (hidden as f64).sqrt().recip()))?;
                let y = g.matmul(x, w)?;
                let y = g.reshape(y, &[0, 0, count as i64, 8])?;
                match layout {
                    HeadLayout::Bshd => Ok(y),
                    HeadLayout::Bhsd => g.transpose(y, &[0, 2, 1, 3]),
                }
            };
            let (q, k, v) = (heads(4)?, heads(2)?, heads(2)?);
            let (rotary, base, scaling, tables) = (8, 10000.0, RopeScaling::None, false);
            let rope = Rope { layout, style, rotary, base, scaling, tables };
            let (q, k) = (g.rope(rope.clone(), q, &[places])?, g.rope(rope, k, &[places])?);
            let keys = g.kv_append(layout, keys, k, at)?;
            let values = g.kv_append(layout, values, v, at)?;
            let spec = Attention { causal: true, lengths: true, ..Attention::new(layout) };
            let y = g.attention(spec, q, keys, values, &[length])?;
            Ok(vec![y, keys, values])
        });
    }
    t.case("qkv-sharing-one-input", FLOATS, normal(), Peak(64.0), |g| {
        let x = g.x([2, 7, 24])?;
        let mut parts = Vec::new();
        for _ in 0..3 {
            let (w, b) = (g.weight([24, 24], Normal(0.0, 0.2))?, g.w([24])?);
            let y = g.linear(x, w, b)?;
            parts.push(g.reshape(y, &[0, 0, 3, 8])?);
        }
        let spec = Attention { causal: true, ..Attention::new(HeadLayout::Bshd) };
        let y = g.attention(spec, parts[0], parts[1], parts[2], &[])?;
        let y = g.reshape(y, &[0, 0, 24])?;
        g.add(y, x)
    });
    t.case("in-place-hazard", &[F32], whole(-9, 9), Exact, |g| {
        // x is read after the sum that could have taken its place.
        let x = g.x([6, 6])?;
        let a = g.relu(x)?;
        let b = g.add(a, x)?;
        let c = g.transpose(a, &[1, 0])?;
        let d = g.mul(b, c)?;
        g.sub(d, a)
    });
    t.case("broadcast-operand-in-place", &[F32, F16], whole(-9, 9), Exact, |g| {
        let (x, y) = (g.x([4, 1])?, g.x([4, 5])?);
        let a = g.neg(x)?;
        let b = g.add(a, y)?;
        g.mul(b, a)
    });
    t.case("constants-fold", &[F32], whole(-9, 9), Exact, |g| {
        let x = g.x([2, 3])?;
        let (a, b) = (g.numbers([3], &[1.0, 2.0, 3.0])?, g.numbers([2, 1], &[10.0, 20.0])?);
        let c = g.mul(a, b)?;
        let c = g.transpose(c, &[1, 0])?;
        let c = g.transpose(c, &[1, 0])?;
        g.add(x, c)
    });
    t.case("shuffle-channels", &[F32, F16], normal(), Exact, |g| {
        let x = g.x([2, 6, 3, 3])?;
        let x = g.reshape(x, &[2, 2, 3, 3, 3])?;
        let x = g.transpose(x, &[0, 2, 1, 3, 4])?;
        g.reshape(x, &[2, 6, 3, 3])
    });
    t.case("dead-branch", &[F64], normal(), Exact, |g| {
        let x = g.x([4, 4])?;
        let _unused = g.exp(x)?;
        g.neg(x)
    });
}
