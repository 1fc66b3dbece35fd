//! What each operation means, said as directly as the mathematics is written: slow, in f64 and i64, without rounding.
//!
//! Nothing here is shared with a backend, so that an agreement means something.

mod attention;
pub(crate) mod backend;
mod contraction;
mod control;
mod conv;
mod create;
mod elementwise;
mod index;
mod interpolate;
mod join;
mod layout;
mod norm;
mod pool;
mod quantize;
mod random;
mod recurrent;
mod reduce;
mod region;
mod resize;
mod rope;
mod scan;
mod signal;
pub mod special;
mod state_space;
mod value;

use olivine_ir::{Def, Graph, Op};

pub use elementwise::Scalar;
pub(crate) use value::limits;
pub use value::{Numbers, Value};

/// The results of one operation.
pub fn eval(op: &Op, operands: &[Value]) -> Result<Vec<Value>, String> {
    eval_in(op, operands, Between::Unrounded)
}

/// As [`eval`]; `between` says how graphs inside the operation hold their results.
fn eval_in(op: &Op, operands: &[Value], between: Between) -> Result<Vec<Value>, String> {
    let types: Vec<_> = operands.iter().map(|v| v.ty).collect();
    let results = op.infer(&types)?;
    if let Some(v) = operands.iter().find(|v| v.len() != v.ty.shape.numel()) {
        return Err(format!("{} holds {} elements", v.ty, v.len()));
    }
    let ty = match results.first() {
        Some(ty) => *ty,
        None => return Ok(Vec::new()),
    };
    let x = operands;
    let one = |v: Result<Value, String>| v.map(|v| vec![v]);
    match op {
        Op::ScalarOp(op) => one(elementwise::eval(*op, x, ty)),
        Op::Fused(op) => region::fused(op, x, &results),
        Op::MatMul(op) => one(contraction::matmul(op, x, ty)),
        Op::DotGeneral(op) => one(contraction::dot_general(op, x, ty)),
        Op::Einsum(op) => one(contraction::einsum(op, x, ty)),
        Op::LoraMatMul(op) => one(contraction::lora(op, x, ty)),
        Op::GroupedMatMul(_) => one(contraction::grouped(x, ty)),
        Op::LayerNorm(op) => norm::layer_norm(op, x),
        Op::RmsNorm(op) => norm::rms_norm(op, x),
        Op::GroupNorm(op) => one(norm::group_norm(op.groups, op.eps, x)),
        Op::InstanceNorm(op) => one(norm::group_norm(x[0].ty.shape[1], op.eps, x)),
        Op::BatchNorm(op) => one(norm::batch_norm(op.eps, x)),
        Op::LayerNorm2d(op) => one(norm::layer_norm2d(op.eps, x)),
        Op::AdaLayerNorm(op) => one(norm::ada_layer_norm(op.eps, x)),
        Op::L2Norm(op) => one(norm::l2_norm(op, x)),
        Op::Reduce(op) => one(reduce::reduce(op, x, ty)),
        Op::Softmax(op) => one(reduce::softmax(op.axis, false, x)),
        Op::LogSoftmax(op) => one(reduce::softmax(op.axis, true, x)),
        Op::ArgReduce(op) => one(reduce::arg_reduce(op, x, ty)),
        Op::Cumulative(op) => one(scan::cumulative(op, x)),
        Op::TopK(op) => scan::top_k(op, x, &results),
        Op::Sort(op) => one(scan::sort(op.axis, op.descending, x)),
        Op::ArgSort(op) => one(scan::argsort(op.axis, op.descending, x, ty)),
        Op::Attention(op) => one(attention::attention(op, x, ty)),
        Op::KvAppend(op) => one(attention::kv_append(op, x)),
        Op::Rope(op) => one(rope::rope(op, x)),
        Op::SelectiveScan(op) => state_space::selective_scan(op, x, &results),
        Op::Mamba2(op) => state_space::mamba2(op, x, &results),
        Op::GatedDeltaNet(op) => state_space::gated_delta_net(op, x, &results),
        Op::CausalConv1d(op) => state_space::causal_conv1d(op, x, &results),
        Op::Recurrent(op) => recurrent::layer(op, x, &results),
        Op::Recurrence(op) => recurrent::recurrence(op, x, &results),
        Op::Reshape(_) => Ok(vec![Value { ty, data: x[0].data.clone() }]),
        Op::Transpose(op) => Ok(vec![layout::transpose(op, &x[0], ty)]),
        Op::Slice(op) => Ok(vec![layout::slice(op, &x[0], ty)]),
        Op::Expand(_) => Ok(vec![layout::expand(&x[0], ty)]),
        Op::View(op) => Ok(vec![layout::view(op, &x[0], ty)]),
        Op::DepthToSpace(op) => Ok(vec![layout::depth_to_space(op, &x[0], ty)]),
        Op::SpaceToDepth(op) => Ok(vec![layout::space_to_depth(op, &x[0], ty)]),
        Op::Unfold(op) => Ok(vec![layout::unfold(op, &x[0], ty)]),
        Op::Concat(op) => Ok(vec![join::concat(op.axis, x, ty)]),
        Op::Split(op) => Ok(join::split(op, &x[0], &results)),
        Op::Stack(op) => Ok(vec![join::stack(op.axis, x, ty)]),
        Op::Tile(_) => Ok(vec![join::tile(&x[0], ty)]),
        Op::Repeat(op) => Ok(vec![join::repeat(op, &x[0], ty)]),
        Op::Reverse(op) => Ok(vec![join::reverse(op, &x[0])]),
        Op::Roll(op) => Ok(vec![join::roll(op, &x[0])]),
        Op::Pad(op) => Ok(vec![join::pad(op, &x[0], ty)]),
        Op::Gather(op) => one(index::gather(op.axis, x, ty)),
        Op::GatherElements(op) => one(index::gather_elements(op.axis, x, ty)),
        Op::GatherNd(op) => one(index::gather_nd(op.batch_dims, x, ty)),
        Op::ScatterElements(op) => one(index::scatter_elements(op, x)),
        Op::ScatterNd(op) => one(index::scatter_nd(op, x)),
        Op::OneHot(op) => one(create::one_hot(op, x, ty)),
        Op::Trilu(op) => Ok(vec![create::trilu(op, &x[0])]),
        Op::Range(op) => Ok(vec![create::range(op, ty)]),
        Op::Fill(_) => Ok(vec![x[0].pick(ty, |_| Some(0))]),
        Op::NonZero(_) => Ok(create::nonzero(&x[0], &results)),
        Op::Conv(op) => one(conv::conv(op, x, ty)),
        Op::ConvTranspose(op) => one(conv::conv_transpose(op, x, ty)),
        Op::Im2Col(op) => Ok(vec![conv::im2col(op, &x[0], ty)]),
        Op::Pool(op) => pool::pool(op, &x[0], &results),
        Op::GlobalPool(op) => one(pool::global(op, &x[0], ty)),
        Op::AdaptivePool(op) => one(pool::adaptive(op, &x[0], ty)),
        Op::Resize(op) => one(resize::resize(op, &x[0], ty)),
        Op::GridSample(op) => one(interpolate::grid_sample(op, x, ty)),
        Op::RoiAlign(op) => one(interpolate::roi_align(op, x, ty)),
        Op::Fft(op) => one(signal::fft(op, x, ty)),
        Op::Dft(op) => one(signal::dft(op, x, ty)),
        Op::Stft(op) => one(signal::stft(op, x, ty)),
        Op::MelFilterBank(op) => one(signal::mel_filter_bank(op, ty)),
        Op::LogMel(op) => one(signal::log_mel(op, x, ty)),
        Op::RngUniform(op) => one(random::uniform(op, x, ty)),
        Op::RngNormal(op) => one(random::normal(op, x, ty)),
        Op::Sample(op) => one(random::sample(op, x, ty)),
        Op::Penalties(_) => one(random::penalties(x)),
        Op::QuantizeLinear(op) => one(quantize::quantize(op, x, ty)),
        Op::DequantizeLinear(op) => one(quantize::dequantize(op, x, ty)),
        Op::QMatMul(op) => one(quantize::qmatmul(op, x, ty)),
        Op::QConv(op) => one(quantize::qconv(op, x, ty)),
        Op::If(op) => control::if_(op, x, between),
        Op::Loop(op) => control::loop_(op, x, &results, between),
        Op::Scan(op) => control::scan(op, x, &results, between),
        Op::Custom(op) => Err(format!("the oracle does not know the custom operation `{}`", op.op.name())),
    }
}

/// Whether results between operations are held as computed or as their dtype would store them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Between {
    /// In f64, as if every operation were exact.
    Unrounded,
    /// Rounded to the value's dtype, for graphs in which one step decides by the last bit of another.
    Rounded,
}

/// The outputs of a whole graph; `feeds` gives inputs and params by name.
pub fn run(graph: &Graph, feeds: &[(String, Value)], between: Between) -> Result<Vec<Value>, String> {
    let mut values: Vec<Option<Value>> = vec![None; graph.values().len()];
    let mut uses = graph.use_counts();
    for (slot, value) in values.iter_mut().zip(graph.values()) {
        *slot = match &value.def {
            Def::Input { name, .. } | Def::Param { name } => {
                let feed = feeds.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone());
                let feed = feed.ok_or_else(|| format!("nothing is fed to `{name}`"))?;
                if feed.ty != value.ty {
                    return Err(format!("`{name}` is {}, fed {}", value.ty, feed.ty));
                }
                Some(feed)
            }
            Def::Const(t) => Some(Value::of(t)),
            Def::Node { .. } => None,
        };
    }
    for node in graph.nodes() {
        let mut operands = Vec::with_capacity(node.inputs.len());
        for id in &node.inputs {
            uses[id.index()] -= 1;
            let slot = &mut values[id.index()];
            // The last reader takes the value, so that a long graph of large tensors stays small.
            let value = if uses[id.index()] == 0 { slot.take() } else { slot.clone() };
            operands.push(value.ok_or_else(|| format!("`{}` reads a value not yet made", node.name))?);
        }
        let results = eval_in(&node.op, &operands, between)
            .map_err(|e| format!("{} `{}`: {e}", node.op.name(), node.name))?;
        for (id, value) in node.outputs.iter().zip(results) {
            let last = graph.outputs().iter().any(|o| o.value == *id);
            values[id.index()] =
                Some(if between == Between::Rounded && !last { value.rounded() } else { value });
        }
    }
    graph
        .outputs()
        .iter()
        .map(|o| values[o.value.index()].clone().ok_or_else(|| format!("output `{}` is not made", o.name)))
        .collect()
}
