//! Every dtype that an operation takes, where its own family shows only some: what moves elements moves all of them.

use olivine_ir::DType::{self, BF16, Bool, F16, F64, I8, I16, I32, I64, U8, U32};
use olivine_ir::op::{
    Arg, Binary, CumulativeKind, DepthMode, DotGeneral, Fused, HeadLayout, Instr, InstrOp, Pool, PoolKind,
    Region, ResizeMode, ScalarOp, ScatterMode, TriPart, View, Window,
};
use olivine_ir::{Error, Shape};

use super::{FLOATS, NUMBERS};
use crate::bound::Bound::{Bits, Exact, Near, Peak};
use crate::bound::sum_of;
use crate::case::{Build, Outputs, Table};
use crate::fill::Fill::{Anything, Chance, Special};
use crate::fill::{normal, whole};

pub(super) fn rows(t: &mut Table) {
    layouts(t);
    joins(t);
    indices(t);
    computed(t);
}

/// A case of every dtype in which every bit counts.
fn every<O: Outputs>(
    t: &mut Table,
    what: &str,
    build: impl Fn(&mut Build) -> Result<O, Error> + Send + Sync + Clone + 'static,
) {
    t.case(what, NUMBERS, Anything, Bits, build.clone());
    t.case(what, &[Bool], Chance(0.5), Bits, build);
}

fn layouts(t: &mut Table) {
    every(t, "reshape", |g| {
        let x = g.x([3, 4, 5])?;
        g.reshape(x, &[6, 10])
    });
    every(t, "transpose", |g| {
        let x = g.x([3, 4, 5])?;
        g.transpose(x, &[2, 0, 1])
    });
    every(t, "slice", |g| {
        let x = g.x([4, 9, 5])?;
        g.slice(x, 1, 8, 0, -3)
    });
    every(t, "expand", |g| {
        let x = g.x([3, 1, 5])?;
        g.expand(x, [3, 4, 5])
    });
    every(t, "view", |g| {
        let x = g.x([4, 6])?;
        g.add1(
            View { shape: Shape::new(&[3, 5])?, strides: vec![6.into(), (-1).into()], offset: 5.into() },
            &[x],
        )
    });
    every(t, "depth_to_space", |g| {
        let x = g.x([2, 8, 3, 4])?;
        g.depth_to_space(x, 2, DepthMode::Crd)
    });
    every(t, "space_to_depth", |g| {
        let x = g.x([2, 3, 4, 6])?;
        g.space_to_depth(x, 2)
    });
    every(t, "unfold", |g| {
        let x = g.x([3, 11, 5])?;
        g.unfold(x, 1, 4, 2)
    });
}

fn joins(t: &mut Table) {
    every(t, "concat", |g| {
        let (a, b) = (g.x([3, 2, 5])?, g.x([3, 7, 5])?);
        g.concat(&[a, b], 1)
    });
    every(t, "slice_scatter", |g| {
        let (x, part) = (g.x([3, 7, 5])?, g.x([3, 2, 5])?);
        g.slice_scatter(x, part, 1, 3usize)
    });
    every(t, "stack", |g| {
        let (a, b) = (g.x([3, 4])?, g.x([3, 4])?);
        g.stack(&[a, b], 1)
    });
    every(t, "split", |g| {
        let x = g.x([3, 6])?;
        g.split(x, 1, &[1, 3, 2])
    });
    every(t, "tile", |g| {
        let x = g.x([2, 3, 4])?;
        g.tile(x, &[2, 3, 2])
    });
    every(t, "repeat", |g| {
        let x = g.x([2, 3, 4])?;
        g.repeat(x, 1, 3)
    });
    every(t, "reverse", |g| {
        let x = g.x([3, 4, 5])?;
        g.reverse(x, &[0, 2])
    });
    every(t, "roll", |g| {
        let x = g.x([3, 5, 4])?;
        g.roll(x, 1, -2)
    });
    every(t, "trilu", |g| {
        let x = g.x([2, 4, 6])?;
        g.trilu(x, TriPart::Upper, 1)
    });
    every(t, "fill", |g| {
        let x = g.x([])?;
        g.fill(x, [4, 1, 3])
    });
}

fn indices(t: &mut Table) {
    every(t, "gather", |g| {
        let (x, i) = (g.x([5, 6, 7])?, g.index([3, 2], 6)?);
        g.gather(x, i, 1)
    });
    every(t, "gather_elements", |g| {
        let (x, i) = (g.x([5, 6, 7])?, g.index([3, 9, 4], 6)?);
        g.gather_elements(x, i, 1)
    });
    every(t, "gather_nd", |g| {
        let (x, i) = (g.x([5, 6, 7])?, g.index([4, 2], 5)?);
        g.gather_nd(x, i, 0)
    });
    every(t, "scatter_elements", |g| {
        let x = g.x([4, 3])?;
        let (i, u) = (g.ints(I64, [2, 3], &[3, -1, 0, 1, 2, 1])?, g.x([2, 3])?);
        g.scatter_elements(x, i, u, 0, ScatterMode::Replace)
    });
    every(t, "scatter_nd", |g| {
        let x = g.x([4, 3])?;
        let (i, u) = (g.ints(I64, [2, 1], &[3, -3])?, g.x([2, 3])?);
        g.scatter_nd(x, i, u, ScatterMode::Replace)
    });
    t.case("scatter_nd/sum", NUMBERS, whole(-2, 2), Exact, |g| {
        let (x, i, u) = (g.x([5, 3])?, g.index([9, 1], 5)?, g.x([9, 3])?);
        g.scatter_nd(x, i, u, ScatterMode::Add)
    });
    t.case("nonzero", NUMBERS, Chance(0.4), Exact, |g| {
        let x = g.x([5, 7])?;
        g.nonzero(x)
    });
    t.case("one_hot", NUMBERS, whole(-5, 5), Exact, |g| {
        let (i, v) = (g.index([3, 4], 6)?, g.x([2])?);
        g.one_hot(i, v, 6, 1)
    });
}

fn computed(t: &mut Table) {
    t.case("argsort", NUMBERS, whole(0, 4), Exact, |g| {
        let x = g.x([7, 6, 9])?;
        g.argsort(x, 1, false)
    });
    for kind in [CumulativeKind::Sum, CumulativeKind::Prod, CumulativeKind::Max] {
        t.case(kind.name(), FLOATS, whole(1, 2), Exact, move |g| {
            let x = g.x([3, 7, 2])?;
            g.cumulative(kind, x, 1, true, false)
        });
    }
    t.case("dot_general", &[BF16, F64, I8, U8, I16, U32, I64], whole(-3, 3), Exact, |g| {
        let (x, y) = (g.x([5, 7, 3])?, g.x([7, 4, 3])?);
        let op = DotGeneral {
            lhs_batch: vec![2],
            rhs_batch: vec![2],
            lhs_contract: vec![1],
            rhs_contract: vec![0],
        };
        g.dot_general(x, y, op)
    });
    t.case("einsum", &[BF16, F64, I8, U8, I16, U32, I64], whole(-3, 3), Exact, |g| {
        let (x, y) = (g.x([2, 3, 5, 7])?, g.x([2, 7, 3, 8])?);
        g.einsum("bhqk,bkhd->bqhd", &[x, y])
    });
    t.case("grouped_matmul", &[F16], normal(), sum_of(17), |g| {
        let (x, w) = (g.x([11, 17])?, g.w([4, 17, 9])?);
        let ids = g.ints(I32, [11], &[2, 0, 1, 1, 3, 0, 2])?;
        g.grouped_matmul(x, w, ids)
    });
    t.case("isnan", FLOATS, Special, Exact, |g| {
        let x = g.x([300])?;
        g.isnan(x)
    });
    t.case("isinf", FLOATS, Special, Exact, |g| {
        let x = g.x([300])?;
        g.isinf(x)
    });
    t.case("log_softmax", FLOATS, normal(), Near(24.0, 24.0), |g| {
        let x = g.x([3, 33])?;
        g.log_softmax(x, 1)
    });
    t.case("group_norm", &[BF16, F64], normal(), Peak(8.0), |g| {
        let (x, gamma, beta) = (g.x([2, 6, 5])?, g.w([6])?, g.w([6])?);
        g.group_norm(x, gamma, beta, 3, 1e-5)
    });
    every(t, "kv_append", |g| {
        let (cache, rows) = (g.x([2, 3, 11, 5])?, g.x([2, 3, 3, 5])?);
        let at = g.ints(I32, [], &[4])?;
        g.kv_append(HeadLayout::Bhsd, cache, rows, at)
    });
    t.case("adaptive_pool", &[BF16, F64], normal(), sum_of(16), |g| {
        let x = g.x([2, 3, 7, 5])?;
        g.adaptive_pool(PoolKind::Average, x, &[3, 2])
    });
    t.case("pool", &[I16, U32, I64], Anything, Exact, |g| {
        let x = g.x([2, 3, 7, 6])?;
        let window = Window::same(2, 1, 1);
        let kernel = vec![3, 3];
        let kind = PoolKind::Max;
        g.add1(
            Pool { kind, kernel, window, ceil: false, count_include_pad: false, p: 2, indices: false },
            &[x],
        )
    });
    every(t, "im2col", |g| {
        let x = g.x([2, 3, 7, 6])?;
        g.im2col(x, &[3, 3], Window::same(2, 1, 1))
    });
    every(t, "resize", |g| {
        let x = g.x([2, 3, 4, 5])?;
        g.resize(x, &[2, 3, 7, 3], ResizeMode::Nearest)
    });
    use Binary::{Add, And, Max, Xor};
    for (dtypes, fill, inner, outer) in
        [(NUMBERS, Anything, Add, Max), (&[Bool] as &'static [DType], Chance(0.5), Xor, And)]
    {
        let scalar = |op, a, b| Instr { op: InstrOp::Scalar(ScalarOp::Binary(op)), args: vec![a, b] };
        let region = Region {
            inputs: 2,
            instrs: vec![
                scalar(inner, Arg::Input(0), Arg::Input(1)),
                scalar(outer, Arg::Instr(0), Arg::Input(1)),
            ],
            outputs: vec![Arg::Instr(1)],
        };
        t.case("fused", dtypes, fill, Exact, move |g| {
            let (x, y) = (g.x([33, 9])?, g.x([9])?);
            g.add1(Fused { region: region.clone() }, &[x, y])
        });
    }
}
