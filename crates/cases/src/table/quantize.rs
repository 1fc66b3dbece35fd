//! Quantisation and products of 8-bit integers; integers are exact.

use olivine_ir::DType::{self, BF16, F16, F32, I8, I16, I32, U8};
use olivine_ir::op::{Quantized, Window};
use olivine_ir::{Error, ValueId};

use crate::bound::Bound::{Bits, Exact};
use crate::case::{Build, Table};
use crate::fill::Fill::{Anything, Special};
use crate::fill::{normal, these, uniform, whole};

pub(super) fn rows(t: &mut Table) {
    linear(t);
    matmul(t);
    conv(t);
}

fn linear(t: &mut Table) {
    let floats = &[F32, F16, BF16];
    for to in [I8, U8, I16] {
        t.case(&format!("quantize_linear/tensor-{to}"), floats, uniform(-400.0, 400.0), Exact, move |g| {
            let (x, scale) = (g.x([7, 33])?, g.like([], these(&[1.5]))?);
            let zero = g.ints(to, [], &[3])?;
            g.quantize_linear(x, scale, Some(zero), to, 0, 0)
        });
        t.case(
            &format!("quantize_linear/halves-{to}"),
            floats,
            these(&[0.5, 1.5, 2.5, -0.5, -1.5, -2.5]),
            Exact,
            {
                move |g| {
                    let (x, scale) = (g.x([12])?, g.like([], these(&[1.0]))?);
                    g.quantize_linear(x, scale, None, to, 0, 0)
                }
            },
        );
        t.case(
            &format!("quantize_linear/ends-{to}"),
            &[F32],
            these(&[1e30, -1e30, f64::INFINITY, -200.0]),
            Exact,
            {
                move |g| {
                    let (x, scale) = (g.x([4])?, g.like([], these(&[0.001]))?);
                    let zero = g.ints(to, [], &[100])?;
                    g.quantize_linear(x, scale, Some(zero), to, 0, 0)
                }
            },
        );
        for axis in [0isize, 1, 2] {
            t.case(
                &format!("quantize_linear/axis-{axis}-{to}"),
                &[F32],
                uniform(-9.0, 9.0),
                Exact,
                move |g| {
                    let x = g.x([4, 5, 6])?;
                    let n = 4 + axis as usize;
                    let scale = g.like([n], uniform(0.01, 0.2))?;
                    let zero = g.of(to, [n], whole(0, 90))?;
                    g.quantize_linear(x, scale, Some(zero), to, axis, 0)
                },
            );
        }
    }
    for (what, block) in [("even", 5usize), ("short", 4), ("long", 100)] {
        t.case(&format!("quantize_linear/blocks-{what}"), floats, uniform(-9.0, 9.0), Exact, move |g| {
            let x = g.x([3, 10, 2])?;
            let blocks = [3, 10usize.div_ceil(block), 2];
            let scale = g.like(blocks, uniform(0.05, 0.2))?;
            let zero = g.of(I8, blocks, whole(-9, 9))?;
            g.quantize_linear(x, scale, Some(zero), I8, 1, block)
        });
        t.case(&format!("dequantize_linear/blocks-{what}"), floats, uniform(0.05, 0.2), Bits, move |g| {
            let x = g.of(I8, [3, 10, 2], Anything)?;
            let blocks = [3, 10usize.div_ceil(block), 2];
            let scale = g.x(blocks)?;
            let zero = g.of(I8, blocks, whole(-9, 9))?;
            g.dequantize_linear(x, scale, Some(zero), 1, block)
        });
    }
    t.case("quantize_linear/special", &[F32, F16], Special, Exact, |g| {
        let (x, scale) = (g.x([60])?, g.like([], these(&[0.25]))?);
        g.quantize_linear(x, scale, None, I8, 0, 0)
    });
    t.case("quantize_linear/empty", &[F32], normal(), Exact, |g| {
        let (x, scale) = (g.x([3, 0])?, g.like([], these(&[0.25]))?);
        g.quantize_linear(x, scale, None, I8, 0, 0)
    });
    for from in [I8, U8, I16, I32] {
        t.case(&format!("dequantize_linear/tensor-{from}"), floats, these(&[0.03]), Bits, move |g| {
            let (x, scale) = (g.of(from, [5, 31], Anything)?, g.x([])?);
            let zero = g.ints(from, [], &[9])?;
            g.dequantize_linear(x, scale, Some(zero), 0, 0)
        });
        t.case(&format!("dequantize_linear/axis-{from}"), &[F32], uniform(0.01, 0.2), Bits, move |g| {
            let (x, scale) = (g.of(from, [5, 31], Anything)?, g.x([5])?);
            g.dequantize_linear(x, scale, None, 0, 0)
        });
    }
    for (what, fill) in [("normal", normal()), ("positive", uniform(1.0, 3.0)), ("zeros", these(&[0.0]))] {
        t.rounded(&format!("dynamic_quantize_linear/{what}"), &[F32], fill, Bits, |g| {
            let x = g.x([9, 31])?;
            let q = g.dynamic_quantize_linear(x)?;
            Ok([q.values, q.scale].into_iter().chain(q.zero).collect::<Vec<ValueId>>())
        });
    }
}

/// An input of one 8-bit dtype and its zero points.
fn integers(
    g: &mut Build,
    dtype: DType,
    dims: &[usize],
    zeros: &[usize],
) -> Result<(ValueId, ValueId), Error> {
    let zero = if dtype == I8 { whole(-128, 127) } else { whole(0, 255) };
    Ok((g.of(dtype, dims, Anything)?, g.of(dtype, zeros, zero)?))
}

const PAIRS: [(DType, DType); 4] = [(U8, I8), (I8, I8), (U8, U8), (I8, U8)];

fn matmul(t: &mut Table) {
    for (a, b) in PAIRS {
        t.case(&format!("qmatmul/plain-{a}-{b}"), &[I32], normal(), Exact, move |g| {
            let (a, b) = (g.of(a, [9, 20], Anything)?, g.of(b, [20, 13], Anything)?);
            g.qmatmul(a, b, None, None)
        });
        t.case(&format!("qmatmul/zeros-{a}-{b}"), &[I32], normal(), Exact, move |g| {
            let (a, za) = integers(g, a, &[65, 33], &[])?;
            let (b, zb) = integers(g, b, &[33, 66], &[])?;
            g.qmatmul(a, b, Some(za), Some(zb))
        });
        t.case(&format!("qmatmul/rows-and-columns-{a}-{b}"), &[I32], normal(), Exact, move |g| {
            let (a, za) = integers(g, a, &[10, 64], &[10])?;
            let (b, zb) = integers(g, b, &[64, 12], &[12])?;
            g.qmatmul(a, b, Some(za), Some(zb))
        });
    }
    let shapes: [(&str, &[usize], &[usize]); 10] = [
        ("many", &[128, 20, 40], &[128, 40, 24]),
        ("one", &[1, 1], &[1, 1]),
        ("row", &[1, 300], &[300, 70]),
        ("column", &[70, 300], &[300, 1]),
        ("batch", &[3, 5, 8], &[3, 8, 7]),
        ("broadcast", &[2, 1, 5, 9], &[3, 9, 4]),
        ("shared-weights", &[4, 3, 16], &[16, 8]),
        ("nothing-summed", &[3, 0], &[0, 4]),
        ("empty", &[0, 4], &[4, 3]),
        ("square", &[130, 128], &[128, 132]),
    ];
    for (what, sa, sb) in shapes {
        t.case(&format!("qmatmul/{what}"), &[I32], normal(), Exact, move |g| {
            let (a, za) = integers(g, U8, sa, &[])?;
            let (b, zb) = integers(g, I8, sb, &[sb[sb.len() - 1]])?;
            g.qmatmul(a, b, Some(za), Some(zb))
        });
    }
    for k in [64usize, 65] {
        t.case(&format!("qmatmul/transposed-{k}"), &[I32], normal(), Exact, move |g| {
            let (a, b) = (g.of(I8, [k, 9], Anything)?, g.of(U8, [21, k], Anything)?);
            let (a, b) = (g.swap_last_axes(a)?, g.swap_last_axes(b)?);
            g.qmatmul(a, b, None, None)
        });
    }
    t.case("qmatmul/long-wraps", &[I32], normal(), Exact, |g| {
        let (a, b) = (g.of(U8, [2, 40_000], these(&[255.0]))?, g.of(U8, [40_000, 2], these(&[255.0]))?);
        g.qmatmul(a, b, None, None)
    });
    for (what, a_scales, b_scales) in [("tensor", 0usize, 0usize), ("columns", 0, 24), ("both", 17, 24)] {
        let dims = |n: usize| if n == 0 { vec![] } else { vec![n] };
        for to in [I8, U8] {
            t.rounded(&format!("qlinear_matmul/{what}-{to}"), &[F32], uniform(0.01, 0.02), Exact, move |g| {
                let (a, za) = integers(g, U8, &[17, 40], &dims(a_scales))?;
                let (b, zb) = integers(g, I8, &[40, 24], &dims(b_scales))?;
                let a = Quantized { values: a, scale: g.x(&dims(a_scales)[..])?, zero: Some(za) };
                let b = Quantized { values: b, scale: g.x(&dims(b_scales)[..])?, zero: Some(zb) };
                let (scale, zero) = (g.like([], these(&[0.11]))?, g.ints(to, [], &[5])?);
                g.qlinear_matmul(a, b, (scale, Some(zero), to))
            });
        }
    }
}

/// A name, the sizes of x and w, the window and the groups.
type Windows = (&'static str, &'static [usize], &'static [usize], Window, usize);

fn conv(t: &mut Table) {
    let window = |strides: [usize; 2], pads: [(usize, usize); 2], dilations: [usize; 2]| Window {
        strides: strides.to_vec(),
        pads: pads.to_vec(),
        dilations: dilations.to_vec(),
    };
    let none = [(0, 0), (0, 0)];
    let windows: [Windows; 9] = [
        ("plain", &[1, 3, 8, 9], &[4, 3, 3, 3], window([1, 1], none, [1, 1]), 1),
        ("padded", &[2, 3, 8, 9], &[5, 3, 3, 3], window([1, 1], [(1, 1), (1, 1)], [1, 1]), 1),
        ("asymmetric", &[1, 2, 7, 6], &[3, 2, 2, 3], window([1, 1], [(0, 2), (1, 3)], [1, 1]), 1),
        ("strided", &[1, 4, 11, 9], &[4, 4, 3, 3], window([2, 3], [(1, 1), (1, 1)], [1, 1]), 1),
        ("dilated", &[1, 4, 11, 9], &[4, 4, 3, 3], window([1, 1], [(2, 2), (2, 2)], [2, 2]), 1),
        ("groups", &[2, 6, 5, 5], &[9, 2, 3, 3], window([1, 1], [(1, 1), (1, 1)], [1, 1]), 3),
        ("depthwise", &[1, 8, 6, 6], &[8, 1, 3, 3], window([1, 1], [(1, 1), (1, 1)], [1, 1]), 8),
        ("pointwise", &[1, 64, 6, 6], &[70, 64, 1, 1], window([1, 1], none, [1, 1]), 1),
        ("all-padding", &[1, 2, 1, 1], &[3, 2, 3, 3], window([1, 1], [(3, 3), (3, 3)], [1, 1]), 1),
    ];
    for (what, sx, sw, window, groups) in windows {
        for (x, w) in [(U8, I8), (I8, U8)] {
            let window = window.clone();
            t.case(&format!("qconv/{what}-{x}-{w}"), &[I32], normal(), Exact, move |g| {
                let (x, zx) = integers(g, x, sx, &[])?;
                let (w, zw) = integers(g, w, sw, &[sw[0]])?;
                g.qconv(x, w, Some(zx), Some(zw), window.clone(), groups)
            });
        }
    }
    t.case("qconv/no-zeros", &[I32], normal(), Exact, |g| {
        let (x, w) = (g.of(I8, [1, 3, 7, 7], Anything)?, g.of(I8, [5, 3, 3, 3], Anything)?);
        g.qconv(x, w, None, None, Window::same(2, 1, 1), 1)
    });
    t.case("qconv/1d", &[I32], normal(), Exact, |g| {
        let (x, zx) = integers(g, U8, &[2, 3, 40], &[])?;
        let w = g.of(I8, [4, 3, 5], Anything)?;
        g.qconv(x, w, Some(zx), None, Window::same(1, 2, 2), 1)
    });
    t.case("qconv/3d", &[I32], normal(), Exact, |g| {
        let (x, zx) = integers(g, U8, &[1, 2, 4, 5, 6], &[])?;
        let (w, zw) = integers(g, I8, &[3, 2, 2, 3, 3], &[])?;
        g.qconv(x, w, Some(zx), Some(zw), Window::same(3, 1, 1), 1)
    });
    t.case("qconv/empty", &[I32], normal(), Exact, |g| {
        let (x, w) = (g.of(I8, [0, 3, 7, 7], Anything)?, g.of(I8, [5, 3, 3, 3], Anything)?);
        g.qconv(x, w, None, None, Window::same(2, 1, 1), 1)
    });
    for (what, channels) in [("tensor", 0usize), ("channels", 6)] {
        let dims = move || if channels == 0 { vec![] } else { vec![channels] };
        t.rounded(&format!("qlinear_conv/{what}"), &[F32], uniform(0.01, 0.02), Exact, move |g| {
            let (x, zx) = integers(g, U8, &[1, 4, 7, 8], &[])?;
            let (w, zw) = integers(g, I8, &[6, 4, 3, 3], &dims())?;
            let x = Quantized { values: x, scale: g.x([])?, zero: Some(zx) };
            let w = Quantized { values: w, scale: g.x(&dims()[..])?, zero: Some(zw) };
            let bias = g.of(I32, [6], whole(-4000, 4000))?;
            let (scale, zero) = (g.like([], these(&[0.09]))?, g.ints(U8, [], &[128])?);
            g.qlinear_conv(x, w, Some(bias), (scale, Some(zero), U8), Window::same(2, 1, 1), 1)
        });
    }
}
