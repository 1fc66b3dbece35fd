//! Products, norms, attention, windows.

use olivine_ir::op::{
    AdaLayerNorm, AdaptivePool, Attention, BatchNorm, Col2Im, Conv, ConvTranspose, CoordinateMode,
    DequantGather, DequantMatMul, Direction, DotGeneral, Einsum, GateFunction, GlobalPool, GridMode,
    GridPadding, GridSample, GroupNorm, GroupedMatMul, HeadLayout, Im2Col, InstanceNorm, KvAppend, L2Norm,
    LayerNorm, LayerNorm2d, LoraMatMul, MaskKind, MatMul, NearestMode, Pool, PoolKind, Recurrence, Recurrent,
    RecurrentKind, Region, Resize, ResizeMode, RmsNorm, RoiAlign, RoiCoordinates, RoiMode, Rope, RopeScaling,
    RopeStyle, Scaling, Window,
};
use olivine_ir::{BlockFormat, DType, Op, TensorType};

use super::elementwise::region;
use super::{Made, Rng, ty};

pub(crate) const MAKERS: &[fn(&mut Rng) -> Made] = &[
    matmul,
    dot_general,
    einsum,
    lora,
    grouped,
    dequant_matmul,
    dequant_gather,
    row_norm,
    channel_norm,
    ada_layer_norm,
    l2_norm,
    attention,
    kv_append,
    rope,
    recurrent,
    recurrence,
    conv,
    conv_transpose,
    im2col,
    col2im,
    pool,
    global_pool,
    adaptive_pool,
    resize,
    grid_sample,
    roi_align,
];

/// A region that rides on a result of the given sizes, the operands it adds, and the dtype it gives.
fn epilogue(rng: &mut Rng, dtype: DType, dims: &[usize]) -> (Option<Region>, Vec<TensorType>, DType) {
    if !dtype.is_float() || rng.chance(60) {
        return (None, Vec::new(), dtype);
    }
    let extra: Vec<TensorType> =
        (0..rng.below(3)).map(|_| ty(rng.dtype(), &rng.broadcast_to(dims))).collect();
    let inputs: Vec<DType> = std::iter::once(dtype).chain(extra.iter().map(|t| t.dtype)).collect();
    let (region, outputs) = region(rng, &inputs, true);
    (Some(region), extra, outputs[0])
}

fn matmul(rng: &mut Rng) -> Made {
    let batch = rng.shape(0, 6);
    let [m, k, n] = [0; 3].map(|_| rng.size());
    let (mut a, mut b) = (rng.broadcast_to(&batch), rng.broadcast_to(&batch));
    if a.is_empty() && rng.chance(20) {
        a = vec![k];
    } else {
        a.extend([m, k]);
    }
    if b.is_empty() && rng.chance(20) {
        b = vec![k];
    } else {
        b.extend([k, n]);
    }
    let dtype = rng.number();
    let (x, w) = (ty(dtype, &a), ty(dtype, &b));
    let plain = Op::from(MatMul { epilogue: None }).infer(&[x, w]).unwrap_or_default();
    let dims = plain.first().map(|t| t.shape.to_vec()).unwrap_or_default();
    let (epilogue, extra, _) = epilogue(rng, dtype, &dims);
    (MatMul { epilogue }.into(), [vec![x, w], extra].concat())
}

fn dot_general(rng: &mut Rng) -> Made {
    let (batch, contract) = (rng.shape(0, 2), rng.shape(0, 2));
    let side = |rng: &mut Rng| {
        let free = rng.shape(0, 2);
        let dims = [&batch[..], &contract, &free].concat();
        let order = rng.permutation(dims.len());
        let at = |i: usize| order.iter().position(|o| *o == i).unwrap_or(0);
        let shuffled: Vec<usize> = order.iter().map(|o| dims[*o]).collect();
        let batch_axes: Vec<usize> = (0..batch.len()).map(at).collect();
        let contract_axes: Vec<usize> = (batch.len()..batch.len() + contract.len()).map(at).collect();
        (shuffled, batch_axes, contract_axes)
    };
    let (a, lhs_batch, lhs_contract) = side(rng);
    let (b, rhs_batch, rhs_contract) = side(rng);
    let dtype = rng.number();
    let op = DotGeneral { lhs_batch, rhs_batch, lhs_contract, rhs_contract };
    (op.into(), vec![ty(dtype, &a), ty(dtype, &b)])
}

fn einsum(rng: &mut Rng) -> Made {
    let s = rng.sizes(4);
    let (equation, shapes): (&str, Vec<Vec<usize>>) = rng.pick(&[
        ("ij,jk->ik", vec![vec![s[0], s[1]], vec![s[1], s[2]]]),
        ("bhqd,bhkd->bhqk", vec![vec![s[0], s[1], s[2], s[3]], vec![s[0], s[1], 2, s[3]]]),
        ("ii->i", vec![vec![s[0], s[0]]]),
        ("ba", vec![vec![s[0], s[1]]]),
        ("...ij, ...jk", vec![vec![3, s[0], s[1]], vec![s[3], 1, s[1], s[2]]]),
        ("i,j,k->kji", vec![vec![s[0]], vec![s[1]], vec![s[2]]]),
        ("->", vec![vec![]]),
        ("i...->...", vec![vec![s[0], s[1], s[2]]]),
    ]);
    let dtype = rng.number();
    (Einsum { equation: equation.into() }.into(), shapes.iter().map(|d| ty(dtype, d)).collect())
}

fn lora(rng: &mut Rng) -> Made {
    let [k, n, r] = [0; 3].map(|_| rng.size());
    let x = [rng.shape(0, 4), vec![k]].concat();
    let dtype = rng.float();
    let types = vec![ty(dtype, &x), ty(dtype, &[k, n]), ty(dtype, &[k, r]), ty(dtype, &[r, n])];
    (LoraMatMul { scale: rng.real() }.into(), types)
}

fn grouped(rng: &mut Rng) -> Made {
    let [m, k, n] = [0; 3].map(|_| rng.size());
    let dtype = rng.float();
    let types = vec![ty(dtype, &[m, k]), ty(dtype, &[rng.within(1, 3), k, n]), ty(rng.index(), &[m])];
    (GroupedMatMul {}.into(), types)
}

/// A packed weight, its scales and zero points.
fn packed(rng: &mut Rng, rows: &[usize], blocks: usize) -> (Scaling, TensorType, Vec<TensorType>) {
    let format = BlockFormat::ALL[rng.below(BlockFormat::ALL.len())];
    let dims = |last: usize| [rows, &[last]].concat();
    let columns = blocks * format.elements();
    // Whole blocks always are a type; anything else would be refused by the operation.
    let weight = TensorType::packed(format, &dims(columns)).unwrap_or(ty(DType::U8, &dims(columns)));
    if rng.chance(50) {
        return (Scaling::NONE, weight, Vec::new());
    }
    let block = rng.within(1, 40);
    let zero = rng.chance(50);
    let offset = if zero { 0 } else { rng.below(16) };
    let scales = ty([DType::F32, DType::F16, DType::BF16][rng.below(3)], &dims(columns.div_ceil(block)));
    let operands = std::iter::once(scales).chain(zero.then_some(scales)).collect();
    (Scaling { block, zero, offset }, weight, operands)
}

fn dequant_matmul(rng: &mut Rng) -> Made {
    let (n, experts, grouped) = (rng.size(), rng.within(1, 3), rng.chance(30));
    let rows = if grouped { vec![experts, n] } else { vec![n] };
    let blocks = rng.below(3);
    let (scaling, weight, rest) = packed(rng, &rows, blocks);
    let k = weight.elements().last().copied().unwrap_or(0);
    let leading = if grouped { vec![rng.size()] } else { rng.shape(0, 4) };
    let dtype = [DType::F32, DType::F16, DType::BF16][rng.below(3)];
    let (epilogue, extra, _) = epilogue(rng, dtype, &[&leading[..], &[n]].concat());
    let expert = grouped.then(|| ty(rng.index(), &leading));
    let op = DequantMatMul { grouped, epilogue, ..DequantMatMul::scaled(scaling) };
    let types = [ty(dtype, &[&leading[..], &[k]].concat()), weight].into_iter();
    (op.into(), types.chain(expert).chain(rest).chain(extra).collect())
}

fn dequant_gather(rng: &mut Rng) -> Made {
    let (rows, blocks) = (rng.within(1, 9), rng.below(3));
    let (scaling, weight, rest) = packed(rng, &[rows], blocks);
    let dtype = [DType::F32, DType::F16, DType::BF16][rng.below(3)];
    let indices = ty(rng.index(), &rng.shape(0, 3));
    (DequantGather::new(dtype, scaling).into(), [weight, indices].into_iter().chain(rest).collect())
}

fn row_norm(rng: &mut Rng) -> Made {
    let dims = rng.shape(1, 8);
    let axis = rng.below(dims.len());
    let dtype = rng.float();
    let (prologue, extra, normed) = epilogue(rng, dtype, &dims);
    let (bias, emit_input, eps) = (rng.chance(50), rng.chance(30), rng.real());
    let weights = vec![ty(normed, &dims[axis..]); 1 + usize::from(bias)];
    let types = [vec![ty(dtype, &dims)], weights, extra].concat();
    if rng.chance(50) {
        (LayerNorm { axis, eps, bias, prologue, emit_input }.into(), types)
    } else {
        (RmsNorm { axis, eps, bias, prologue, emit_input }.into(), types)
    }
}

fn channel_norm(rng: &mut Rng) -> Made {
    let eps = rng.real();
    let mut dims = rng.shape(2, 8);
    let groups = rng.within(1, 3);
    let (op, weights): (Op, usize) = match rng.below(4) {
        0 => {
            dims[1] = groups * rng.size();
            (GroupNorm { groups, eps }.into(), 2)
        }
        1 => (InstanceNorm { eps }.into(), 2),
        2 => (BatchNorm { eps }.into(), 4),
        _ => {
            dims = rng.sizes(4);
            (LayerNorm2d { eps }.into(), 2)
        }
    };
    let dtype = rng.float();
    (op, [vec![ty(dtype, &dims)], vec![ty(dtype, &[dims[1]]); weights]].concat())
}

fn ada_layer_norm(rng: &mut Rng) -> Made {
    let dims = rng.shape(1, 8);
    let dtype = rng.float();
    let types =
        vec![ty(dtype, &dims), ty(dtype, &rng.broadcast_to(&dims)), ty(dtype, &rng.broadcast_to(&dims))];
    (AdaLayerNorm { eps: rng.real() }.into(), types)
}

fn l2_norm(rng: &mut Rng) -> Made {
    let dims = rng.shape(1, 8);
    (L2Norm { axis: rng.below(dims.len()), eps: rng.real() }.into(), vec![ty(rng.float(), &dims)])
}

fn attention(rng: &mut Rng) -> Made {
    let layout = rng.pick(HeadLayout::ALL);
    let [b, kv, sq, positions, dv] = [0; 5].map(|_| rng.size());
    let (h, d) = (kv * rng.within(1, 3), rng.within(1, 8));
    let dtype = rng.float();
    let (pages, pool, table) = (rng.chance(30), rng.within(1, 4), rng.within(1, 4));
    let (of_keys, sk) = if pages { (pool, table * positions) } else { (b, positions) };
    let mut types = vec![
        ty(dtype, &layout.dims(b, h, sq, d)),
        ty(dtype, &layout.dims(of_keys, kv, positions, d)),
        ty(dtype, &layout.dims(of_keys, kv, positions, dv)),
    ];
    let mask = rng.pick(MaskKind::ALL);
    let (sinks, lengths) = (rng.chance(30), rng.chance(30));
    if mask != MaskKind::None {
        let dtype = if mask == MaskKind::Keep { DType::Bool } else { dtype };
        types.push(ty(dtype, &rng.broadcast_to(&[b, h, sq, sk])));
    }
    if sinks {
        types.push(ty(dtype, &[h]));
    }
    if lengths {
        let scalar = rng.chance(50);
        types.push(if scalar { ty(rng.index(), &[]) } else { ty(rng.index(), &[b]) });
    }
    if pages {
        types.push(ty(rng.index(), &[b, table]));
    }
    let window = rng.chance(30).then(|| rng.pick(&[1, 7, usize::MAX]));
    let softcap = rng.chance(30).then(|| rng.pick(&[30.0, 5e-324, f64::INFINITY]));
    let scale = rng.chance(50).then(|| rng.real());
    let op =
        Attention { layout, scale, causal: rng.chance(50), window, softcap, mask, sinks, lengths, pages };
    (op.into(), types)
}

fn kv_append(rng: &mut Rng) -> Made {
    let layout = rng.pick(HeadLayout::ALL);
    let [b, h, capacity, d] = [0; 4].map(|_| rng.size());
    let rows = rng.below(capacity + 1);
    let dtype = rng.dtype();
    let (pages, pool) = (rng.chance(30), rng.within(1, 4));
    let mut types = vec![
        ty(dtype, &layout.dims(if pages { pool } else { b }, h, capacity, d)),
        ty(dtype, &layout.dims(b, h, rows, d)),
        if rng.chance(50) { ty(rng.index(), &[]) } else { ty(rng.index(), &[b]) },
    ];
    if pages {
        types.push(ty(rng.index(), &[b, rng.within(1, 4)]));
    }
    (KvAppend { layout, pages }.into(), types)
}

fn rope(rng: &mut Rng) -> Made {
    let layout = rng.pick(HeadLayout::ALL);
    let [b, h, s] = [0; 3].map(|_| rng.size());
    let rotary = 2 * rng.below(4);
    let x = ty(rng.float(), &layout.dims(b, h, s, rotary + rng.below(3)));
    let tables = rng.chance(50);
    let mut dims = if rng.chance(50) { vec![s] } else { vec![b, s] };
    let types = if tables {
        dims.push(rotary / 2);
        vec![x, ty(x.dtype, &dims), ty(x.dtype, &dims)]
    } else {
        vec![x, ty(rng.index(), &dims)]
    };
    let [factor, original, beta_fast, beta_slow] = [0; 4].map(|_| rng.real());
    let scaling = rng.pick(&[
        RopeScaling::None,
        RopeScaling::Linear { factor },
        RopeScaling::Ntk { factor },
        RopeScaling::Yarn { factor, original, beta_fast, beta_slow },
        RopeScaling::Llama3 { factor, low: beta_slow, high: beta_fast, original },
    ]);
    let style = rng.pick(RopeStyle::ALL);
    (Rope { layout, style, rotary, base: rng.real(), scaling, tables }.into(), types)
}

/// A window, and sizes of kernel and operand that it fits; pads stay below the kernel's span.
pub(super) fn window(rng: &mut Rng, spatial: usize) -> (Window, Vec<usize>, Vec<usize>) {
    let mut window = Window::unit(spatial);
    let (mut kernel, mut input) = (Vec::new(), Vec::new());
    for i in 0..spatial {
        kernel.push(rng.within(1, 3));
        window.strides[i] = rng.within(1, 3);
        window.dilations[i] = rng.within(1, 2);
        let span = (kernel[i] - 1) * window.dilations[i] + 1;
        window.pads[i] = (rng.below(span), rng.below(span));
        input.push(span + rng.below(4));
    }
    (window, kernel, input)
}

fn conv(rng: &mut Rng) -> Made {
    let spatial = rng.within(1, 3);
    let (window, kernel, input) = window(rng, spatial);
    let groups = rng.within(1, 3);
    let [n, c, m] = [0; 3].map(|_| rng.size());
    let dtype = rng.float();
    let bias = rng.chance(50);
    let mut types = vec![
        ty(dtype, &[&[n, c * groups][..], &input].concat()),
        ty(dtype, &[&[m * groups, c][..], &kernel].concat()),
    ];
    if bias {
        types.push(ty(dtype, &[m * groups]));
    }
    let plain = Op::from(Conv { window: window.clone(), groups, bias, epilogue: None });
    let dims = plain.infer(&types).ok().and_then(|t| t.first().map(|t| t.shape.to_vec())).unwrap_or_default();
    let (epilogue, extra, _) = epilogue(rng, dtype, &dims);
    (Conv { window, groups, bias, epilogue }.into(), [types, extra].concat())
}

fn conv_transpose(rng: &mut Rng) -> Made {
    let spatial = rng.within(1, 3);
    let (window, kernel, input) = window(rng, spatial);
    let groups = rng.within(1, 3);
    let [n, c, m] = [0; 3].map(|_| rng.size());
    let dtype = rng.float();
    let bias = rng.chance(50);
    let mut types = vec![
        ty(dtype, &[&[n, c * groups][..], &input].concat()),
        ty(dtype, &[&[c * groups, m][..], &kernel].concat()),
    ];
    if bias {
        types.push(ty(dtype, &[m * groups]));
    }
    let output_padding =
        (0..spatial).map(|i| rng.below(window.strides[i].max(window.dilations[i]))).collect();
    (ConvTranspose { window, groups, output_padding, bias }.into(), types)
}

fn im2col(rng: &mut Rng) -> Made {
    let spatial = rng.within(1, 3);
    let (window, kernel, input) = window(rng, spatial);
    let dims = [rng.sizes(2), input].concat();
    (Im2Col { kernel, window }.into(), vec![ty(rng.dtype(), &dims)])
}

fn col2im(rng: &mut Rng) -> Made {
    let spatial = rng.within(1, 6);
    let (window, kernel, image) = window(rng, spatial);
    let op = Col2Im { image, kernel, window };
    let [n, c] = [0; 2].map(|_| rng.size());
    let windows = op.counts().map_or(0, |counts| counts.iter().product());
    let dims = [n, c * op.kernel.iter().product::<usize>(), windows];
    (op.into(), vec![ty(rng.number(), &dims)])
}

fn pool(rng: &mut Rng) -> Made {
    let kind = rng.pick(PoolKind::ALL);
    let spatial = rng.within(1, 3);
    let (window, kernel, input) = window(rng, spatial);
    let dims = [rng.sizes(2), input].concat();
    let dtype = if kind == PoolKind::Max { rng.number() } else { rng.float() };
    let indices = kind == PoolKind::Max && rng.chance(50);
    let (ceil, count_include_pad, p) = (rng.chance(50), rng.chance(50), rng.within(1, 3));
    (Pool { kind, kernel, window, ceil, count_include_pad, p, indices }.into(), vec![ty(dtype, &dims)])
}

fn global_pool(rng: &mut Rng) -> Made {
    let rank = rng.within(1, 6);
    let dims = [rng.sizes(2), rng.full_sizes(rank)].concat();
    (GlobalPool { kind: rng.pick(PoolKind::ALL), p: rng.within(1, 3) }.into(), vec![ty(rng.float(), &dims)])
}

fn adaptive_pool(rng: &mut Rng) -> Made {
    let spatial = rng.within(1, 3);
    let dims = [rng.sizes(2), rng.full_sizes(spatial)].concat();
    let kind = rng.pick(&[PoolKind::Max, PoolKind::Average]);
    (AdaptivePool { kind, output: rng.full_sizes(spatial) }.into(), vec![ty(rng.float(), &dims)])
}

fn resize(rng: &mut Rng) -> Made {
    let dims = rng.shape(0, 8);
    let rank = dims.len();
    let sizes = if dims.contains(&0) { dims.clone() } else { rng.sizes(rank) };
    let scales = rng.chance(50).then(|| (0..rank).map(|_| rng.pick(&[0.5, 1.0, 2.0, 1.3, 5e-324])).collect());
    let mode = rng.pick(ResizeMode::ALL);
    let dtype = if mode == ResizeMode::Nearest { rng.dtype() } else { rng.float() };
    let op = Resize {
        sizes: sizes.iter().map(|size| (*size).into()).collect(),
        scales,
        mode,
        coordinates: rng.pick(CoordinateMode::ALL),
        nearest: rng.pick(NearestMode::ALL),
        cubic: rng.real(),
        exclude_outside: rng.chance(50),
        antialias: rng.chance(50),
    };
    (op.into(), vec![ty(dtype, &dims)])
}

fn grid_sample(rng: &mut Rng) -> Made {
    let spatial = rng.within(2, 3);
    let n = rng.size();
    let x = [vec![n, rng.size()], rng.full_sizes(spatial)].concat();
    let grid = [vec![n], rng.sizes(spatial), vec![spatial]].concat();
    let modes = if spatial == 2 { GridMode::ALL } else { &[GridMode::Linear, GridMode::Nearest] };
    let (mode, padding) = (rng.pick(modes), rng.pick(GridPadding::ALL));
    let op = GridSample { mode, padding, align_corners: rng.chance(50) };
    (op.into(), vec![ty(rng.float(), &x), ty(rng.float(), &grid)])
}

fn roi_align(rng: &mut Rng) -> Made {
    let dtype = rng.float();
    let (dims, regions) = (rng.full_sizes(4), rng.size());
    let [height, width] = [0; 2].map(|_| rng.size());
    let op = RoiAlign {
        mode: rng.pick(RoiMode::ALL),
        height,
        width,
        sampling_ratio: rng.below(3),
        scale: rng.pick(&[0.5, 1.0, 0.0625]),
        coordinates: rng.pick(RoiCoordinates::ALL),
    };
    (op.into(), vec![ty(dtype, &dims), ty(dtype, &[regions, 4]), ty(rng.index(), &[regions])])
}

/// Any layer, and its sequence, batch and hidden size.
fn layer(rng: &mut Rng) -> (Recurrent, [usize; 3]) {
    let (kind, direction) = (rng.pick(RecurrentKind::ALL), rng.pick(Direction::ALL));
    let lstm = kind == RecurrentKind::Lstm;
    let count = kind.functions().len() * direction.count();
    let op = Recurrent {
        batch_first: rng.chance(30),
        functions: (0..count).map(|_| rng.pick(GateFunction::ALL)).collect(),
        clip: if rng.chance(30) { Some(0.5) } else { None },
        reset_after: kind == RecurrentKind::Gru && rng.chance(50),
        input_forget: lstm && rng.chance(30),
        bias: rng.chance(50),
        lengths: rng.chance(50),
        initial_h: rng.chance(50),
        initial_c: lstm && rng.chance(50),
        peepholes: lstm && rng.chance(30),
        ..Recurrent::new(kind, direction)
    };
    (op, [0; 3].map(|_| rng.size()))
}

/// Lengths, initial states and peepholes that a layer announces.
fn optional(rng: &mut Rng, op: &Recurrent, dtype: DType, batch: usize, state: [usize; 3]) -> Vec<TensorType> {
    let mut types = Vec::new();
    if op.lengths {
        types.push(ty(rng.index(), &[batch]));
    }
    types.extend([op.initial_h, op.initial_c].iter().filter(|given| **given).map(|_| ty(dtype, &state)));
    if op.peepholes {
        types.push(ty(dtype, &[op.direction.count(), 3 * state[2]]));
    }
    types
}

fn recurrent(rng: &mut Rng) -> Made {
    let (op, [sequence, batch, hidden]) = layer(rng);
    let (dtype, input, dirs) = (rng.float(), rng.size(), op.direction.count());
    let rows = op.kind.gates() * hidden;
    let (x, state) = if op.batch_first {
        ([batch, sequence, input], [batch, dirs, hidden])
    } else {
        ([sequence, batch, input], [dirs, batch, hidden])
    };
    let mut types = vec![ty(dtype, &x), ty(dtype, &[dirs, rows, input]), ty(dtype, &[dirs, rows, hidden])];
    if op.bias {
        types.push(ty(dtype, &[dirs, 2 * rows]));
    }
    types.extend(optional(rng, &op, dtype, batch, state));
    (op.into(), types)
}

fn recurrence(rng: &mut Rng) -> Made {
    let (of, [sequence, batch, hidden]) = layer(rng);
    let (dtype, dirs) = (rng.float(), of.direction.count());
    let wide = Recurrence::state_dtype(dtype);
    let rows = of.kind.gates() * hidden;
    let x = if of.batch_first { [batch, sequence, dirs * rows] } else { [sequence, batch, dirs * rows] };
    let mut types = vec![ty(wide, &x), ty(dtype, &[dirs, rows, hidden])];
    let op = Recurrence { of };
    if op.has_bias() {
        types.push(ty(wide, &[dirs, hidden]));
    }
    types.extend(optional(rng, &op.of, wide, batch, [dirs, batch, hidden]));
    (op.into(), types)
}
