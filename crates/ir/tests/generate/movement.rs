//! Operations that move elements, index them or make them.

use olivine_ir::op::{
    Concat, DepthMode, DepthToSpace, Expand, Fill, Gather, GatherElements, GatherNd, NonZero, OneHot, Pad,
    PadMode, Range, Repeat, Reshape, Reverse, Roll, ScatterElements, ScatterMode, ScatterNd, Slice,
    SliceScatter, SpaceToDepth, Split, Stack, Tile, Transpose, TriPart, Trilu, Unfold, View,
};
use olivine_ir::{DType, Shape};

use super::{Made, Rng, ty};

pub(crate) const MAKERS: &[fn(&mut Rng) -> Made] = &[
    reshape,
    transpose,
    slice,
    expand,
    view,
    depth_to_space,
    space_to_depth,
    unfold,
    concat,
    slice_scatter,
    split,
    stack,
    tile,
    repeat,
    reverse,
    roll,
    pad,
    gather,
    gather_elements,
    gather_nd,
    scatter_elements,
    scatter_nd,
    one_hot,
    trilu,
    range,
    fill,
    nonzero,
];

fn reshape(rng: &mut Rng) -> Made {
    let x = rng.shape(0, 7);
    let mut dims: Vec<i64> = x.iter().map(|d| *d as i64).collect();
    if !x.contains(&0) {
        let order = rng.permutation(x.len());
        dims = order.iter().map(|i| x[*i] as i64).collect();
        if rng.chance(30) {
            dims.insert(rng.below(x.len() + 1), -1);
        } else if let (true, Some(first)) = (order.first() == Some(&0), dims.first_mut()) {
            *first = 0;
        }
    }
    (Reshape { dims: sizes_of(dims) }.into(), vec![ty(rng.dtype(), &x)])
}

fn transpose(rng: &mut Rng) -> Made {
    let x = rng.shape(0, 8);
    (Transpose { perm: rng.permutation(x.len()) }.into(), vec![ty(rng.dtype(), &x)])
}

fn slice(rng: &mut Rng) -> Made {
    let x = rng.shape(0, 8);
    let axes = rng.subset(x.len());
    let ends = [i64::MIN, -5, -2, -1, 0, 1, 2, 3, 7, i64::MAX];
    let steps = [i64::MIN, -3, -1, 1, 2, i64::MAX];
    let list = |rng: &mut Rng, from: &[i64]| axes.iter().map(|_| rng.pick(from)).collect::<Vec<_>>();
    let (starts, ends, steps) = (list(rng, &ends), list(rng, &ends), list(rng, &steps));
    (Slice { axes, starts: sizes_of(starts), ends: sizes_of(ends), steps }.into(), vec![ty(rng.dtype(), &x)])
}

fn expand(rng: &mut Rng) -> Made {
    let dims = rng.shape(0, 8);
    let x = rng.broadcast_to(&dims);
    let shape = Shape::new(&rng.broadcast_to(&dims)).unwrap_or_default();
    (Expand { shape }.into(), vec![ty(rng.dtype(), &x)])
}

fn view(rng: &mut Rng) -> Made {
    let x = rng.shape(0, 4);
    let count: usize = x.iter().product();
    let out = if count == 0 { vec![0, 2] } else { rng.shape(0, 8) };
    let shape = Shape::new(&out).unwrap_or_default();
    let (mut low, mut high) = (0i64, count as i64 - 1);
    let mut strides = Vec::new();
    for d in out.iter().map(|d| *d as i64) {
        let stride = rng.pick(&[0i64, 1, 2, -1]);
        let (down, up) = ((-stride * (d - 1)).max(0), (stride * (d - 1)).max(0));
        let fits = d == 0 || low + down <= high - up;
        strides.push(if fits { stride } else { 0 });
        if fits && d > 0 {
            (low, high) = (low + down, high - up);
        }
    }
    let offset = if high >= low { low as usize + rng.below((high - low + 1) as usize) } else { 0 };
    (View { shape, strides: sizes_of(strides), offset: offset.into() }.into(), vec![ty(rng.dtype(), &x)])
}

fn depth_to_space(rng: &mut Rng) -> Made {
    let block = rng.within(1, 3);
    let mut x = rng.sizes(4);
    x[1] *= block * block;
    (DepthToSpace { block, mode: rng.pick(DepthMode::ALL) }.into(), vec![ty(rng.dtype(), &x)])
}

fn space_to_depth(rng: &mut Rng) -> Made {
    let block = rng.within(1, 3);
    let mut x = rng.sizes(4);
    x[2] *= block;
    x[3] *= block;
    (SpaceToDepth { block }.into(), vec![ty(rng.dtype(), &x)])
}

fn unfold(rng: &mut Rng) -> Made {
    let x = rng.shape(1, 7);
    let axis = rng.below(x.len());
    let op = Unfold { axis, size: rng.below(x[axis] + 1), step: rng.within(1, 3) };
    (op.into(), vec![ty(rng.dtype(), &x)])
}

fn concat(rng: &mut Rng) -> Made {
    let x = rng.shape(1, 8);
    let axis = rng.below(x.len());
    let dtype = rng.dtype();
    let part = |rng: &mut Rng| {
        let mut dims = x.clone();
        dims[axis] = rng.size();
        ty(dtype, &dims)
    };
    (Concat { axis }.into(), (0..=rng.below(4)).map(|_| part(rng)).collect())
}

fn slice_scatter(rng: &mut Rng) -> Made {
    let x = rng.shape(1, 8);
    let axis = rng.below(x.len());
    let start = rng.below(x[axis] + 1);
    let mut part = x.clone();
    part[axis] = rng.below(x[axis] - start + 1);
    let dtype = rng.dtype();
    (SliceScatter { axis, start: start.into() }.into(), vec![ty(dtype, &x), ty(dtype, &part)])
}

fn split(rng: &mut Rng) -> Made {
    let mut x = rng.shape(1, 8);
    let axis = rng.below(x.len());
    let parts = rng.within(1, 4);
    let sizes = rng.sizes(parts);
    x[axis] = sizes.iter().sum();
    (Split { axis, sizes: sizes_of(sizes) }.into(), vec![ty(rng.dtype(), &x)])
}

fn stack(rng: &mut Rng) -> Made {
    let x = rng.shape(0, 7);
    (Stack { axis: rng.below(x.len() + 1) }.into(), vec![ty(rng.dtype(), &x); rng.within(1, 4)])
}

fn tile(rng: &mut Rng) -> Made {
    let x = rng.shape(0, 8);
    (
        Tile { repeats: rng.sizes(x.len()).into_iter().map(Into::into).collect() }.into(),
        vec![ty(rng.dtype(), &x)],
    )
}

fn repeat(rng: &mut Rng) -> Made {
    let x = rng.shape(1, 8);
    (Repeat { axis: rng.below(x.len()), repeats: rng.size() }.into(), vec![ty(rng.dtype(), &x)])
}

fn reverse(rng: &mut Rng) -> Made {
    let x = rng.shape(0, 8);
    (Reverse { axes: rng.subset(x.len()) }.into(), vec![ty(rng.dtype(), &x)])
}

fn roll(rng: &mut Rng) -> Made {
    let x = rng.shape(1, 8);
    let shift = rng.pick(&[i64::MIN, -7, -1, 0, 2, i64::MAX]);
    (Roll { axis: rng.below(x.len()), shift }.into(), vec![ty(rng.dtype(), &x)])
}

fn pad(rng: &mut Rng) -> Made {
    let x = rng.shape(0, 8);
    let mode = rng.pick(PadMode::ALL);
    let pads = x
        .iter()
        .map(|size| {
            let most = match mode {
                PadMode::Constant => 3,
                PadMode::Reflect => size.saturating_sub(1),
                PadMode::Edge => 3 * (*size).min(1),
                PadMode::Wrap => *size,
            };
            let cut = rng.below(size / 2 + 1) as i64;
            let side = |rng: &mut Rng| if rng.chance(25) { -cut } else { rng.below(most + 1) as i64 };
            (side(rng).into(), side(rng).into())
        })
        .collect();
    (Pad { pads, mode, value: rng.real() }.into(), vec![ty(rng.dtype(), &x)])
}

fn gather(rng: &mut Rng) -> Made {
    let mut x = rng.shape(1, 4);
    let axis = rng.below(x.len());
    x[axis] = rng.within(1, 4);
    (Gather { axis }.into(), vec![ty(rng.dtype(), &x), ty(rng.index(), &rng.shape(0, 4))])
}

/// Sizes and an axis that is not empty, and indices that lie within them beside the axis.
fn beside_axis(rng: &mut Rng) -> (Vec<usize>, usize, Vec<usize>) {
    let mut x = rng.shape(1, 8);
    let axis = rng.below(x.len());
    x[axis] = rng.within(1, 4);
    let indices = (0..x.len()).map(|i| if i == axis { rng.size() } else { rng.below(x[i] + 1) }).collect();
    (x, axis, indices)
}

fn gather_elements(rng: &mut Rng) -> Made {
    let (x, axis, indices) = beside_axis(rng);
    (GatherElements { axis }.into(), vec![ty(rng.dtype(), &x), ty(rng.index(), &indices)])
}

fn gather_nd(rng: &mut Rng) -> Made {
    let rank = rng.within(0, 5);
    let x = rng.full_sizes(rank);
    let batch_dims = rng.below(x.len() + 1);
    let tuple = rng.below(x.len() - batch_dims + 1);
    let outer = rng.shape(0, 2);
    let indices = [&x[..batch_dims], &outer, &[tuple]].concat();
    (GatherNd { batch_dims }.into(), vec![ty(rng.dtype(), &x), ty(rng.index(), &indices)])
}

fn scatter_elements(rng: &mut Rng) -> Made {
    let (x, axis, indices) = beside_axis(rng);
    let mode = rng.pick(ScatterMode::ALL);
    let dtype = if mode == ScatterMode::Replace { rng.dtype() } else { rng.number() };
    let types = vec![ty(dtype, &x), ty(rng.index(), &indices), ty(dtype, &indices)];
    (ScatterElements { axis, mode }.into(), types)
}

fn scatter_nd(rng: &mut Rng) -> Made {
    let rank = rng.within(0, 5);
    let x = rng.full_sizes(rank);
    let tuple = rng.below(x.len() + 1);
    let outer = rng.shape(0, 2);
    let mode = rng.pick(ScatterMode::ALL);
    let dtype = if mode == ScatterMode::Replace { rng.dtype() } else { rng.number() };
    let indices = [&outer[..], &[tuple]].concat();
    let updates = [&outer[..], &x[tuple..]].concat();
    (ScatterNd { mode }.into(), vec![ty(dtype, &x), ty(rng.index(), &indices), ty(dtype, &updates)])
}

fn one_hot(rng: &mut Rng) -> Made {
    let x = rng.shape(0, 7);
    let op = OneHot { axis: rng.below(x.len() + 1), depth: rng.size() };
    (op.into(), vec![ty(rng.index(), &x), ty(rng.dtype(), &[2])])
}

fn trilu(rng: &mut Rng) -> Made {
    let diagonal = rng.pick(&[i64::MIN, -1, 0, 1, i64::MAX]);
    (Trilu { part: rng.pick(TriPart::ALL), diagonal }.into(), vec![ty(rng.dtype(), &rng.shape(2, 8))])
}

fn range(rng: &mut Rng) -> Made {
    let dtype = rng.number();
    let (start, step) = if dtype.is_float() { (rng.real(), rng.real()) } else { (-3.0, 2.0) };
    (Range { dtype, start, step, count: rng.size().into() }.into(), vec![])
}

fn fill(rng: &mut Rng) -> Made {
    let shape = Shape::new(&rng.shape(0, 8)).unwrap_or_default();
    (Fill { shape }.into(), vec![ty(rng.dtype(), &[])])
}

fn nonzero(rng: &mut Rng) -> Made {
    (NonZero {}.into(), vec![ty(DType::F32, &rng.shape(0, 8))])
}

/// Numbers as sizes.
fn sizes_of<T: Into<olivine_ir::Dim>>(numbers: Vec<T>) -> Vec<olivine_ir::Dim> {
    numbers.into_iter().map(Into::into).collect()
}
