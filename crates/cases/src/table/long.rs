//! One long axis, in every place it can stand, for every family of kernels.
//!
//! Workgroups per dispatch and 16-bit counters end at 2¹⁶, tasks of the CPU at some power of two below; a kernel that is
//! right for small sizes may not be beyond. The other axes are short, so that a case is a few hundred thousand elements.

use olivine_ir::DType::{Bool, F16, F32, I64, U8};
use olivine_ir::op::{
    Attention, CausalConv1d, CumulativeKind, HeadLayout, PadMode, ReduceKind, ResizeMode, Rope, RopeScaling,
    RopeStyle, ScatterMode, TriPart, Window,
};

use crate::bound::Bound::{Bits, Close, Exact, Near, Scaled};
use crate::bound::sum_of;
use crate::case::Table;
use crate::fill::{Fill, normal, whole};

pub(super) fn rows(t: &mut Table, n: usize) {
    for (place, dims, axis) in [("first", [n, 2, 3], 0), ("middle", [2, n, 3], 1), ("last", [2, 3, n], 2)] {
        movement(t, place, dims, axis);
        folds(t, place, dims, axis as isize);
        orders(t, place, dims, axis as isize);
        indices(t, place, dims, axis);
    }
    images(t, n);
    generated(t, n);
    norms(t, n);
    matmuls(t, n);
    windows(t, n);
    sequences(t, n);
}

fn movement(t: &mut Table, place: &str, dims: [usize; 3], axis: usize) {
    for order in [[2, 1, 0], [1, 0, 2], [0, 2, 1], [1, 2, 0]] {
        let [a, b, c] = order;
        t.case(&format!("transpose/{place}-{a}{b}{c}"), &[F32, U8], whole(0, 99), Bits, move |g| {
            let x = g.x(dims)?;
            g.transpose(x, &order)
        });
    }
    t.case(&format!("concat/{place}"), &[F32], normal(), Bits, move |g| {
        let (x, y) = (g.x(dims)?, g.x(dims)?);
        g.concat(&[x, y, x], axis as isize)
    });
    t.case(&format!("reverse/{place}"), &[F32], normal(), Bits, move |g| {
        let x = g.x(dims)?;
        g.reverse(x, &[axis as isize])
    });
    t.case(&format!("slice/{place}"), &[F32, U8], whole(0, 99), Bits, move |g| {
        let x = g.x(dims)?;
        g.slice(x, axis as isize, 1, dims[axis] as i64, 3)
    });
    for mode in [PadMode::Constant, PadMode::Reflect] {
        t.case(&format!("pad/{place}-{}", mode.name()), &[F32], normal(), Bits, move |g| {
            let x = g.x(dims)?;
            let mut pads = [(0, 0); 3];
            pads[axis] = (5, 70);
            g.pad(x, &pads, mode, 0.5)
        });
    }
    t.case(&format!("broadcast/{place}"), &[F32], whole(-99, 99), Exact, move |g| {
        let mut thin = [1; 3];
        thin[axis] = dims[axis];
        let (x, y, z) = (g.x(dims)?, g.x(thin)?, g.x([dims[0], dims[1], 1])?);
        let sum = g.add(x, y)?;
        g.sub(z, sum)
    });
    t.case(&format!("transposed-operand/{place}"), &[F32], whole(-99, 99), Exact, move |g| {
        let (x, y) = (g.x(dims)?, g.x([dims[2], dims[1], dims[0]])?);
        let y = g.transpose(y, &[2, 1, 0])?;
        g.add(x, y)
    });
}

fn folds(t: &mut Table, place: &str, dims: [usize; 3], axis: isize) {
    for (what, axes) in [("along", vec![axis]), ("across", vec![(axis + 1) % 3, (axis + 2) % 3])] {
        for kind in [ReduceKind::Sum, ReduceKind::Max] {
            let axes = axes.clone();
            t.case(&format!("{}-{what}/{place}", kind.name()), &[F32], whole(-9, 9), Exact, move |g| {
                let x = g.x(dims)?;
                g.reduce(kind, x, &axes, false)
            });
        }
    }
    t.case(&format!("argmax/{place}"), &[F32], normal(), Exact, move |g| {
        let x = g.x(dims)?;
        g.argmax(x, axis, false)
    });
    t.case(&format!("argmin-across/{place}"), &[F32], normal(), Exact, move |g| {
        let x = g.x(dims)?;
        g.argmin(x, (axis + 1) % 3, true)
    });
    t.case(&format!("cumsum/{place}"), &[F32], whole(-9, 9), Exact, move |g| {
        let x = g.x(dims)?;
        g.cumulative(CumulativeKind::Sum, x, axis, false, true)
    });
    for (what, axis) in [("along", axis), ("across", (axis + 1) % 3)] {
        t.case(&format!("softmax-{what}/{place}"), &[F32], normal(), Near(24.0, 0.01), move |g| {
            let x = g.x(dims)?;
            g.softmax(x, axis)
        });
    }
}

fn orders(t: &mut Table, place: &str, dims: [usize; 3], axis: isize) {
    t.case(&format!("sort/{place}"), &[F32], normal(), Exact, move |g| {
        let x = g.x(dims)?;
        g.sort(x, axis, false)
    });
    t.case(&format!("argsort-across/{place}"), &[F32], normal(), Exact, move |g| {
        let x = g.x(dims)?;
        g.argsort(x, (axis + 1) % 3, true)
    });
    t.case(&format!("top_k/{place}"), &[F32], normal(), Exact, move |g| {
        let x = g.x(dims)?;
        g.top_k(x, 2, axis, true)
    });
}

fn indices(t: &mut Table, place: &str, dims: [usize; 3], axis: usize) {
    t.case(&format!("gather/{place}"), &[F32], normal(), Bits, move |g| {
        let (x, i) = (g.x(dims)?, g.index([7], dims[axis])?);
        g.gather(x, i, axis as isize)
    });
    t.case(&format!("gather_elements/{place}"), &[F32], normal(), Bits, move |g| {
        let (x, i) = (g.x(dims)?, g.index(dims, dims[axis])?);
        g.gather_elements(x, i, axis as isize)
    });
    t.case(&format!("scatter_elements/{place}"), &[F32], whole(-9, 9), Exact, move |g| {
        let mut few = dims;
        few[axis] = 50;
        let (x, i, u) = (g.x(dims)?, g.index(few, dims[axis])?, g.x(few)?);
        g.scatter_elements(x, i, u, axis as isize, ScatterMode::Add)
    });
    t.case(&format!("scatter_nd/{place}"), &[F32], whole(-9, 9), Exact, move |g| {
        let tuples: Vec<i64> =
            (0..40).flat_map(|i| dims[..2].iter().map(move |d| (i * 9973) % *d as i64)).collect();
        let (x, u) = (g.x(dims)?, g.x([40, dims[2]])?);
        let i = g.ints(I64, [40, 2], &tuples)?;
        g.scatter_nd(x, i, u, ScatterMode::Add)
    });
}

/// Matrices, and images of about as many pixels.
fn images(t: &mut Table, n: usize) {
    let (height, width) = (n.isqrt(), n.isqrt() + 2);
    for (name, dims, order) in [
        ("channels-first", [1, height, width, 3], [0, 3, 1, 2]),
        ("channels-last", [1, 3, height, width], [0, 2, 3, 1]),
    ] {
        t.case(&format!("transpose/{name}"), &[F32, F16, U8, I64], whole(0, 99), Bits, move |g| {
            let x = g.x(dims)?;
            g.transpose(x, &order)
        });
    }
    for (name, dims) in [("tall", [n, 2]), ("wide", [2, n]), ("tall-33", [n, 33])] {
        t.case(&format!("transpose/{name}"), &[F32, U8], whole(0, 99), Bits, move |g| {
            let x = g.x(dims)?;
            g.transpose(x, &[1, 0])
        });
    }
    t.case("conv/image", &[F32], whole(-4, 4), Exact, move |g| {
        let (x, w) = (g.x([1, 2, height, width])?, g.weight([3, 2, 3, 3], whole(-4, 4))?);
        g.conv(x, w, None, Window::same(2, 1, 1), 1)
    });
    t.case("max_pool/image", &[F32], normal(), Bits, move |g| {
        let x = g.x([1, 2, height, width])?;
        g.max_pool(x, &[3, 3], Window::same(2, 2, 1), false)
    });
    t.case("resize/image", &[F32], normal(), Scaled(32.0), move |g| {
        let x = g.x([1, 1, height / 2, width / 2])?;
        g.resize(x, &[1, 1, height, width], ResizeMode::Linear)
    });
}

fn generated(t: &mut Table, n: usize) {
    t.case("one_hot/depth", &[F32], normal(), Exact, move |g| {
        let i = g.index([3], n)?;
        let values = g.numbers([2], &[0.0, 1.0])?;
        g.one_hot(i, values, n, 1)
    });
    t.case("one_hot/indices", &[F32], normal(), Exact, move |g| {
        let i = g.index([n], 3)?;
        let values = g.numbers([2], &[0.0, 1.0])?;
        g.one_hot(i, values, 3, 0)
    });
    for (name, dims) in [("wide", [3, n]), ("tall", [n, 3])] {
        t.case(&format!("trilu/{name}"), &[F32], normal(), Bits, move |g| {
            let x = g.x(dims)?;
            g.trilu(x, TriPart::Lower, -1)
        });
    }
    t.case("range", &[F32], normal(), Exact, move |g| g.range(F32, -3.0, 1.0, n));
    t.case("nonzero", &[F32], Fill::Mixed(0.0, 0.5), Exact, move |g| {
        let x = g.x([n, 2])?;
        g.nonzero(x)
    });
    t.case("select", &[F32], normal(), Bits, move |g| {
        let (c, x, y) = (g.of(Bool, [n, 1], Fill::Chance(0.5))?, g.x([n, 3])?, g.x([1, 3])?);
        g.select(c, x, y)
    });
    t.case("cast", &[F32], whole(-300, 300), Exact, move |g| {
        let x = g.x([2, n])?;
        g.cast(x, F16)
    });
}

fn norms(t: &mut Table, n: usize) {
    for (place, dims) in [("long-rows", [2, n]), ("many-rows", [n, 2])] {
        t.case(&format!("layer_norm/{place}"), &[F32], normal(), Near(64.0, 8.0), move |g| {
            let (x, gamma) = (g.x(dims)?, g.w([dims[1]])?);
            g.layer_norm(x, gamma, None, 0.5)
        });
        t.case(&format!("rms_norm/{place}"), &[F32], normal(), Near(64.0, 8.0), move |g| {
            let (x, gamma) = (g.x(dims)?, g.w([dims[1]])?);
            g.rms_norm(x, gamma, None, 0.5)
        });
        t.case(&format!("log_softmax/{place}"), &[F32], normal(), Near(24.0, 24.0), move |g| {
            let x = g.x(dims)?;
            g.log_softmax(x, 1)
        });
    }
    for (place, dims) in [("batch", [n, 2, 2]), ("channels", [1, n + n % 2, 2]), ("positions", [1, 2, n])] {
        t.case(&format!("group_norm/{place}"), &[F32], normal(), Near(64.0, 8.0), move |g| {
            let (x, gamma, beta) = (g.x(dims)?, g.w([dims[1]])?, g.w([dims[1]])?);
            g.group_norm(x, gamma, beta, 2, 0.5)
        });
    }
}

fn matmuls(t: &mut Table, n: usize) {
    for (what, a, b) in [
        ("columns", vec![3, 4], vec![4, n]),
        ("sum", vec![2, n], vec![n, 3]),
        ("batch", vec![n, 2, 3], vec![n, 3, 2]),
        ("shared-matrix", vec![n, 2, 3], vec![3, 2]),
    ] {
        t.case(&format!("matmul/{what}"), &[F32], whole(-3, 3), Exact, move |g| {
            let (x, y) = (g.x(&a[..])?, g.x(&b[..])?);
            g.matmul(x, y)
        });
    }
    t.case("qmatmul/rows", &[U8], whole(0, 9), Exact, move |g| {
        let (x, y) = (g.x([n, 3])?, g.x([3, 2])?);
        g.qmatmul(x, y, None, None)
    });
}

fn windows(t: &mut Table, n: usize) {
    // x, w, groups.
    let rows: [(&str, [usize; 3], [usize; 3], usize); 6] = [
        ("length", [1, 2, n], [3, 2, 3], 1),
        ("batch", [n, 2, 3], [2, 2, 2], 1),
        ("channels", [1, n, 2], [3, n, 1], 1),
        ("filters", [1, 2, 3], [n, 2, 1], 1),
        ("groups", [1, n, 3], [n, 1, 2], n),
        ("kernel", [1, 1, n + 4], [2, 1, n], 1),
    ];
    for (what, x, w, groups) in rows {
        t.case(&format!("conv/{what}"), &[F32], whole(-3, 3), Exact, move |g| {
            let (x, w) = (g.x(x)?, g.weight(w, whole(-3, 3))?);
            g.conv(x, w, None, Window::unit(1), groups)
        });
    }
    t.case("conv_transpose/length", &[F32], whole(-3, 3), Exact, move |g| {
        let (x, w) = (g.x([1, 2, n])?, g.weight([2, 1, 3], whole(-3, 3))?);
        g.conv_transpose(x, w, None, Window::same(1, 2, 1), 1, &[0])
    });
    t.case("im2col/length", &[F32], normal(), Bits, move |g| {
        let x = g.x([1, 1, n])?;
        g.im2col(x, &[3], Window::same(1, 1, 1))
    });
    for (what, dims) in [("length", [1, 2, n]), ("planes", [1, n, 4])] {
        t.case(&format!("max_pool/{what}"), &[F32], normal(), Bits, move |g| {
            let x = g.x(dims)?;
            g.max_pool(x, &[3], Window::same(1, 2, 1), false)
        });
    }
    t.case("qconv/length", &[U8], whole(0, 9), Exact, move |g| {
        let (x, w) = (g.x([1, 2, n])?, g.x([3, 2, 3])?);
        g.qconv(x, w, None, None, Window::same(1, 1, 1), 1)
    });
    t.case("resize/length", &[F32], normal(), Bits, move |g| {
        let x = g.x([1, 2, n])?;
        g.resize(x, &[1, 2, n + 7], ResizeMode::Nearest)
    });
}

fn sequences(t: &mut Table, n: usize) {
    // Queries, keys and heads.
    for (what, [b, q, k]) in [("keys", [1, 2, n]), ("queries", [1, n, 2]), ("batch", [n, 1, 2])] {
        t.case(&format!("attention/{what}"), &[F32], normal(), Scaled(32.0), move |g| {
            let (q, k, v) = (g.x([b, 1, q, 4])?, g.x([b, 1, k, 4])?, g.x([b, 1, k, 4])?);
            g.attention(Attention::new(HeadLayout::Bhsd), q, k, v, &[])
        });
    }
    t.case("kv_append/capacity", &[F32], normal(), Bits, move |g| {
        let (cache, rows) = (g.x([1, n, 1, 2])?, g.x([1, 3, 1, 2])?);
        let at = g.ints(I64, [], &[n as i64 - 2])?;
        g.kv_append(HeadLayout::Bshd, cache, rows, at)
    });
    // Angles of up to 2¹⁶ radians lose as many of f32's bits.
    t.case("rope/positions", &[F32], normal(), Close { rel: 1e-4, abs: 3e-2 }, move |g| {
        let x = g.x([1, n, 1, 4])?;
        let positions = g.range(I64, 0.0, 1.0, n)?;
        let spec = Rope {
            layout: HeadLayout::Bshd,
            style: RopeStyle::NeoX,
            rotary: 4,
            base: 10000.0,
            scaling: RopeScaling::None,
            tables: false,
        };
        g.rope(spec, x, &[positions])
    });
    for (what, dims) in [("length", [1, n, 2]), ("channels", [1, 3, n])] {
        t.case(&format!("causal_conv1d/{what}"), &[F32], whole(-9, 9), Exact, move |g| {
            let (x, w) = (g.x(dims)?, g.weight([dims[2], 3], whole(-3, 3))?);
            g.causal_conv1d(CausalConv1d { bias: false, silu: false, state: false }, x, w, &[])
        });
    }
    t.case("fft/batch", &[F32], normal(), Scaled(16.0), move |g| {
        let x = g.x([n, 4, 2])?;
        g.fft(x, 1)
    });
    t.case("mean/long-sum", &[F32], normal(), sum_of(3 * n), move |g| {
        let x = g.x([3, n])?;
        g.reduce(ReduceKind::Mean, x, &[0, 1], false)
    });
}
