use bytemuck::Pod;
use olivine_ir::op::{Attention, AttentionOperands, HeadLayout, KvAppend, MaskKind};
use olivine_ir::{Op, Shape, TensorType};

use super::cache::kv_append;
use super::*;
use crate::operand::OperandSource;

fn packed<'a, T: Pod>(dtype: DType, dims: &[usize], data: &'a [T]) -> Operand<'a> {
    Operand::packed(TensorType::new(dtype, Shape::new(dims).unwrap()), bytemuck::cast_slice(data))
}

fn noise<T: Number>(n: usize, seed: u64) -> Vec<T> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..n)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            T::from_f64((state >> 40) as f64 / (1u64 << 23) as f64 - 1.0)
        })
        .collect()
}

/// One case: sizes, attributes and the seed of its numbers.
#[derive(Clone, Debug)]
struct Case {
    op: Attention,
    batch: usize,
    heads: usize,
    kv_heads: usize,
    queries: usize,
    keys: usize,
    dim: usize,
    value_dim: usize,
    mask: Vec<usize>,
    lengths: Vec<i64>,
}

fn case(layout: HeadLayout, heads: (usize, usize), sequence: (usize, usize), dims: (usize, usize)) -> Case {
    Case {
        op: Attention::new(layout),
        batch: 2,
        heads: heads.0,
        kv_heads: heads.1,
        queries: sequence.0,
        keys: sequence.1,
        dim: dims.0,
        value_dim: dims.1,
        mask: Vec::new(),
        lengths: Vec::new(),
    }
}

fn real(x: &Operand<'_>, at: isize) -> f64 {
    let at = at as usize;
    match x.ty.dtype {
        DType::F16 => x.elements::<f16>()[at].to_f64(),
        DType::BF16 => x.elements::<bf16>()[at].to_f64(),
        DType::F64 => x.elements::<f64>()[at],
        DType::Bool => f64::from(x.elements::<u8>()[at]),
        _ => f64::from(x.elements::<f32>()[at]),
    }
}

/// The element of a rank-4 operand at `[batch, head, sequence, dim]`.
fn get(layout: HeadLayout, x: &Operand<'_>, b: usize, h: usize, s: usize, d: usize) -> f64 {
    let at = layout.dims(b, h, s, d);
    real(x, x.offset as isize + at.iter().zip(x.strides()).map(|(i, s)| *i as isize * s).sum::<isize>())
}

/// The contract written as loops: all scores of a row, their softmax, the weighted values.
fn directly(op: &Attention, x: &[Operand<'_>], lengths: &[i64]) -> Vec<f64> {
    let layout = op.layout;
    let (batch, heads, queries, dim) = layout.numbers(x[0].shape());
    let (_, kv_heads, keys, value_dim) = layout.numbers(x[2].shape());
    let AttentionOperands { mask, sinks, .. } = op.optional_operands();
    let mut out = vec![0.0; batch * heads * queries * value_dim];
    for b in 0..batch {
        let length = match lengths {
            [] => keys as i64,
            [one] => (*one).clamp(0, keys as i64),
            many => many[b].clamp(0, keys as i64),
        };
        for h in 0..heads {
            let kv = h / (heads / kv_heads);
            for i in 0..queries {
                let position = length - queries as i64 + i as i64;
                let mut scores = Vec::new();
                for j in 0..keys {
                    let dot: f64 = (0..dim)
                        .map(|d| get(layout, &x[0], b, h, i, d) * get(layout, &x[1], b, kv, j, d))
                        .sum();
                    let mut s = dot * op.scale_for(dim);
                    if let Some(c) = op.softcap {
                        s = c * (s / c).tanh();
                    }
                    let mut keep = (j as i64) < length;
                    if op.causal || op.window.is_some() {
                        keep &= j as i64 <= position;
                    }
                    if let Some(w) = op.window {
                        keep &= j as i128 > i128::from(position) - w as i128;
                    }
                    if let Some(m) = mask {
                        let m = &x[m];
                        let lead = 4 - m.shape().rank();
                        let at: isize = [b, h, i, j][lead..]
                            .iter()
                            .zip(m.shape().iter().zip(m.strides()))
                            .map(|(i, (n, s))| if *n == 1 { 0 } else { *i as isize * s })
                            .sum();
                        let v = real(m, at + m.offset as isize);
                        if op.mask == MaskKind::Bias { s += v } else { keep &= v != 0.0 }
                    }
                    scores.push(if keep { s } else { f64::NEG_INFINITY });
                }
                let sink = sinks.map_or(f64::NEG_INFINITY, |s| real(&x[s], h as isize));
                let top = scores.iter().copied().fold(sink, f64::max);
                if top == f64::NEG_INFINITY {
                    continue;
                }
                let sum: f64 = scores.iter().map(|s| (s - top).exp()).sum::<f64>() + (sink - top).exp();
                let at = layout.dims(b, h, i, 0);
                let dims = layout.dims(batch, heads, queries, value_dim);
                let start = ((at[0] * dims[1] + at[1]) * dims[2] + at[2]) * dims[3];
                for d in 0..value_dim {
                    out[start + d] = (0..keys)
                        .filter(|j| scores[*j] != f64::NEG_INFINITY)
                        .map(|j| (scores[j] - top).exp() / sum * get(layout, &x[2], b, kv, j, d))
                        .sum();
                }
            }
        }
    }
    out
}

fn compute<T: Number>(op: &Attention, x: &[Operand<'_>]) -> Vec<T> {
    let types: Vec<TensorType> = x.iter().map(|o| o.ty).collect();
    let ty = Op::from(op.clone()).infer(&types).unwrap()[0];
    let mut out = vec![T::from_f64(77.0); ty.shape.numel()];
    attention(op, x, &mut [Target { ty, bytes: bytemuck::cast_slice_mut(&mut out) }]);
    out
}

fn check<T: Number>(c: &Case, tolerance: f64) {
    let dims = |h, s, d| c.op.layout.dims(c.batch, h, s, d);
    let n = |d: [usize; 4]| d.iter().product::<usize>();
    let (qd, kd) = (dims(c.heads, c.queries, c.dim), dims(c.kv_heads, c.keys, c.dim));
    let vd = dims(c.kv_heads, c.keys, c.value_dim);
    let (q, k, v) = (noise::<T>(n(qd) * 2, 1), noise::<T>(n(kd), 2), noise::<T>(n(vd), 3));
    let q: Vec<T> = q.iter().map(|x| T::from_f64(x.to_f64() * 3.0)).collect();
    let sinks = noise::<T>(c.heads, 4);
    let count = c.mask.iter().product();
    let keep: Vec<u8> = noise::<f32>(count, 5).iter().map(|x| u8::from(*x > -0.3)).collect();
    let mut bias = noise::<T>(count, 6);
    bias.iter_mut().step_by(5).for_each(|b| *b = T::LOWEST);
    // Every other element, so that q has a step along its dim.
    let mut apart = packed(T::DTYPE, &qd, &q);
    apart.strides.iter_mut().for_each(|s| *s *= 2);
    let mut x = vec![apart, packed(T::DTYPE, &kd, &k), packed(T::DTYPE, &vd, &v)];
    match c.op.mask {
        MaskKind::Keep => x.push(packed(DType::Bool, &c.mask, &keep)),
        MaskKind::Bias => x.push(packed(T::DTYPE, &c.mask, &bias)),
        MaskKind::None => {}
    }
    if c.op.sinks {
        x.push(packed(T::DTYPE, &[c.heads], &sinks));
    }
    if c.op.lengths {
        let shape: &[usize] = if c.lengths.len() == 1 { &[] } else { &[c.batch] };
        x.push(packed(DType::I64, shape, &c.lengths));
    }
    let (got, want) = (compute::<T>(&c.op, &x), directly(&c.op, &x, &c.lengths));
    for (i, (g, w)) in got.iter().zip(&want).enumerate() {
        assert!((g.to_f64() - w).abs() <= tolerance, "{} {c:?} element {i}: {} {w}", T::DTYPE, g.to_f64());
    }
}

fn check_all(c: &Case) {
    check::<f32>(c, 3e-6);
    check::<f64>(c, 1e-13);
    check::<f16>(c, 2e-3);
    check::<bf16>(c, 1e-2);
}

#[test]
fn plain_attention_in_both_layouts_for_every_float() {
    for layout in [HeadLayout::Bshd, HeadLayout::Bhsd] {
        check_all(&case(layout, (4, 4), (4, 4), (8, 8)));
        check_all(&case(layout, (4, 2), (33, 70), (17, 5)));
        check_all(&case(layout, (6, 2), (3, 40), (16, 24)));
        check_all(&case(layout, (8, 1), (1, 700), (40, 64)));
        check_all(&case(layout, (1, 1), (130, 600), (1, 1)));
        check_all(&case(layout, (5, 5), (1, 3), (64, 64)));
    }
    check::<f32>(&case(HeadLayout::Bshd, (2, 1), (65, 513), (512, 512)), 3e-6);
}

#[test]
fn causal_and_window_follow_the_position_of_the_query() {
    for layout in [HeadLayout::Bshd, HeadLayout::Bhsd] {
        for sequence in [(5, 9), (9, 5), (70, 300), (130, 130), (1, 300), (300, 70)] {
            for window in [None, Some(1), Some(4), Some(100), Some(usize::MAX)] {
                for causal in [true, false] {
                    let mut c = case(layout, (4, 2), sequence, (8, 8));
                    (c.op.causal, c.op.window) = (causal, window);
                    check::<f32>(&c, 3e-6);
                }
            }
        }
    }
}

#[test]
fn masks_broadcast_from_every_rank_and_may_meet_causality() {
    let (h, q, k) = (4, 20, 300);
    let shapes: [&[usize]; 8] =
        [&[], &[k], &[q, 1], &[q, k], &[h, 1, k], &[2, 1, 1, k], &[2, h, q, k], &[1, h, 1, 1]];
    for mask in shapes {
        for kind in [MaskKind::Keep, MaskKind::Bias] {
            for causal in [false, true] {
                let mut c = case(HeadLayout::Bshd, (h, 2), (q, k), (8, 8));
                (c.op.mask, c.op.causal, c.mask) = (kind, causal, mask.to_vec());
                check::<f32>(&c, 3e-6);
                check::<bf16>(&c, 1e-2);
            }
        }
    }
}

#[test]
fn softcap_sinks_lengths_and_scale_work_together() {
    for queries in [1, 3, 80] {
        for lengths in [vec![], vec![200], vec![0, 5], vec![-3, 9999], vec![77, 300]] {
            for sinks in [false, true] {
                let mut c = case(HeadLayout::Bhsd, (4, 2), (queries, 300), (16, 8));
                c.op.lengths = !lengths.is_empty();
                (c.lengths, c.op.sinks, c.op.softcap, c.op.scale) =
                    (lengths.clone(), sinks, Some(0.9), Some(0.7));
                check::<f32>(&c, 3e-6);
                c.op.causal = true;
                check::<f32>(&c, 3e-6);
                (c.op.window, c.op.mask, c.mask) = (Some(30), MaskKind::Keep, vec![2, 1, queries, 300]);
                check::<f64>(&c, 1e-13);
            }
        }
    }
}

#[test]
fn slices_of_one_matrix_are_read_where_they_are() {
    let (s, h, d) = (128, 12, 64);
    let qkv = noise::<f32>(s * 3 * h * d, 9);
    let part = |i: usize| {
        let mut x = packed(DType::F32, &[1, s, h, d], &qkv);
        x.strides[..4].copy_from_slice(&[(s * 3 * h * d) as isize, (3 * h * d) as isize, d as isize, 1]);
        x.offset = i * h * d;
        x
    };
    let x = [part(0), part(1), part(2)];
    let op = Attention::new(HeadLayout::Bshd);
    for (g, w) in compute::<f32>(&op, &x).iter().zip(directly(&op, &x, &[])) {
        assert!((f64::from(*g) - w).abs() < 2e-6, "{g} {w}");
    }
}

#[test]
fn a_masked_key_never_touches_the_result_whatever_it_holds() {
    for queries in [2, 40] {
        let dims = [1, 2, queries, 8];
        let q = noise::<f32>(2 * queries * 8, 1);
        let keys = 50;
        let mut k = noise::<f32>(2 * keys * 8, 2);
        let mut v = noise::<f32>(2 * keys * 8, 3);
        for (i, bad) in [(7, f32::NAN), (20, f32::INFINITY)] {
            k[i * 8] = bad;
            v[i * 8] = bad;
        }
        let mut keep = vec![1u8; keys];
        (keep[7], keep[20]) = (0, 0);
        let x = |k, v| {
            [
                packed(DType::F32, &dims, &q),
                packed(DType::F32, &[1, 2, keys, 8], k),
                packed(DType::F32, &[1, 2, keys, 8], v),
                packed(DType::Bool, &[keys], &keep),
            ]
        };
        let op = Attention { mask: MaskKind::Keep, ..Attention::new(HeadLayout::Bhsd) };
        let got = compute::<f32>(&op, &x(&k, &v));
        assert!(got.iter().all(|g| g.is_finite()));
        let mut seen = v.clone();
        seen[9 * 8] = f32::NAN;
        let got = compute::<f32>(&op, &x(&k, &seen));
        assert!(got[..queries * 8].chunks(8).all(|r| r[0].is_nan() && r[1].is_finite()));
    }
}

#[test]
fn nothing_to_see_gives_zeros() {
    let op = Attention::new(HeadLayout::Bhsd);
    let q = noise::<f32>(2 * 3 * 4, 1);
    let x = |keys: usize| packed::<f32>(DType::F32, &[1, 2, keys, 4], &[]);
    let x = [packed(DType::F32, &[1, 2, 3, 4], &q), x(0), x(0)];
    assert_eq!(compute::<f32>(&op, &x), vec![0.0; 24]);
}

#[test]
fn rows_join_the_cache_at_their_position_and_are_dropped_outside() {
    for layout in [HeadLayout::Bshd, HeadLayout::Bhsd] {
        let (b, h, capacity, rows, d) = (2, 3, 5, 2, 4);
        let dims = layout.dims(b, h, capacity, d);
        let cache: Vec<i32> = (0..(b * h * capacity * d) as i32).collect();
        let fresh: Vec<i32> = (0..(b * h * rows * d) as i32).map(|i| 1000 + i).collect();
        for position in [0i64, 2, 3, 4, 5, -1, -2, i64::MAX, i64::MIN] {
            for in_place in [false, true] {
                let mut x0 = packed(DType::I32, &dims, &cache);
                let mut out = vec![-1; cache.len()];
                if in_place {
                    x0.source = OperandSource::Target;
                    out.copy_from_slice(&cache);
                }
                // The rows' dims run backwards in memory, so that their steps are not packed.
                let mut x1 = packed(DType::I32, &layout.dims(b, h, rows, d), &fresh);
                let n = x1.shape().to_vec();
                let strides = [1, n[0], n[0] * n[1], n[0] * n[1] * n[2]];
                (0..4).for_each(|i| x1.strides[i] = strides[i] as isize);
                let at = [position];
                let x = [x0, x1, packed(DType::I64, &[], &at)];
                let ty = x0.ty;
                kv_append(
                    &KvAppend { layout, pages: false },
                    &x,
                    &mut [Target { ty, bytes: bytemuck::cast_slice_mut(&mut out) }],
                );
                for i in 0..b * h * capacity * d {
                    let at =
                        [i / (dims[1] * dims[2] * d), i / (dims[2] * d) % dims[1], i / d % dims[2], i % d];
                    let axis = if layout == HeadLayout::Bshd { 1 } else { 2 };
                    let row = at[axis] as i128 - i128::from(position);
                    let want = if (0..rows as i128).contains(&row) {
                        let mut from = at;
                        from[axis] = row as usize;
                        fresh[(0..4).map(|i| from[i] * strides[i]).sum::<usize>()]
                    } else {
                        cache[i]
                    };
                    assert_eq!(out[i], want, "{layout:?} at {position}, element {i}");
                }
            }
        }
    }
}
