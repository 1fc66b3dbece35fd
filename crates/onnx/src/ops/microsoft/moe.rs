//! Mixtures of experts whose weights have few bits.

use olivine_ir::op::{Binary, ReduceKind};
use olivine_ir::{DType, ValueId};

use super::blocks::{Packed, as_packed, bits, dense_zero_points, middle, packed_zero_points, unpacked};
use crate::import::{Answer, NodeContext, Value};
use crate::ops::attention::reshaped;

/// Inputs of one of the three matmuls: weights, scales, bias and zero points.
struct Inputs([usize; 4]);

const FC1: Inputs = Inputs([2, 3, 4, 11]);
const FC2: Inputs = Inputs([5, 6, 7, 12]);
const FC3: Inputs = Inputs([8, 9, 10, 13]);

/// The experts of every token: rows `[tokens·k, ..]`, one after another.
struct Routing {
    /// The expert of each row.
    experts: ValueId,
    /// What each row counts for, `[tokens, k, 1]`.
    shares: ValueId,
}

/// Each token goes through its k best experts; the results are added, weighted by what the router says.
pub(super) fn mixture(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    if n.string_or("quant_type", "int")? != "int" {
        return Err(n.wrong("experts of floats of few bits cannot be imported"));
    }
    if n.int_or("weights_prepacked", -1)? > 0 {
        return Err(n.wrong("weights packed for one device cannot be imported"));
    }
    if n.flag("use_sparse_mixer", false)? || (15..=20).any(|i| n.has(i)) {
        return Err(n.wrong("sparse mixers and scales of activations cannot be imported"));
    }
    let input = n.tensor(0)?;
    let shape = n.shape(input)?;
    let hidden = shape.last().copied().unwrap_or(0);
    let tokens = shape.numel() / hidden.max(1);
    let k = usize::try_from(n.int_or("k", 1)?).unwrap_or(0);
    let routing = routing(n, tokens, k)?;
    let x = reshaped(n, input, &[tokens, hidden])?;
    let rows = n.build(|g| g.repeat(x, 0, k))?;
    let inner = activated(n, rows, hidden, &routing)?;
    let y = expert_matmul(n, &FC2, "fc2_expert_weight_bits", inner, &routing)?;
    let found = n.shape(y)?;
    if found.last() != Some(&hidden) {
        return Err(n.wrong(format!("its second matmul makes {found}, its input has rows of {hidden}")));
    }
    let y = reshaped(n, y, &[tokens, k, hidden])?;
    let y = n.build(|g| {
        let weighted = g.mul(y, routing.shares)?;
        g.reduce(ReduceKind::Sum, weighted, &[1], false)
    })?;
    let y = reshaped(n, y, shape.dims())?;
    n.like_first(y)
}

/// The k best experts of each token, and the softmax of their scores; or their shares of the router's weights.
fn routing(n: &mut NodeContext<'_, '_>, tokens: usize, k: usize) -> Answer<Routing> {
    let scores = n.tensor(1)?;
    let found = n.shape(scores)?;
    let [rows, count] = *found.dims() else {
        return Err(n.wrong(format!("its scores should be a matrix, they are {found}")));
    };
    if rows != tokens || k == 0 || k > count {
        return Err(n.wrong(format!("{k} experts of scores {found} for {tokens} tokens")));
    }
    let (best, at) = n.build(|g| g.top_k(scores, k, -1, true))?;
    let shares = match n.optional(14)? {
        Some(weights) => {
            let normalised = n.flag("normalize_routing_weights", false)?;
            let dtype = n.dtype(weights)?;
            let zero = n.scalar(dtype, 0.0);
            n.build(|g| {
                let chosen = g.gather_elements(weights, at, 1)?;
                if !normalised {
                    return Ok(chosen);
                }
                let sum = g.reduce(ReduceKind::Sum, chosen, &[1], true)?;
                let shares = g.div(chosen, sum)?;
                let none = g.eq(sum, zero)?;
                g.select(none, zero, shares)
            })?
        }
        None => n.build(|g| g.softmax(best, -1))?,
    };
    let experts = reshaped(n, at, &[tokens * k])?;
    let shares = reshaped(n, shares, &[tokens, k, 1])?;
    Ok(Routing { experts, shares })
}

/// The first matmul and its activation.
fn activated(n: &mut NodeContext<'_, '_>, x: ValueId, hidden: usize, routing: &Routing) -> Answer<ValueId> {
    let activation = n.string_or("activation_type", "relu")?;
    let y = expert_matmul(n, &FC1, "fc1_expert_weight_bits", x, routing)?;
    let shape = n.shape(y)?;
    let (rows, width) = (shape[0], shape[1]);
    let third = match n.has(8) {
        true => Some(expert_matmul(n, &FC3, "fc3_expert_weight_bits", x, routing)?),
        false => None,
    };
    if activation == "swiglu" {
        let (gate, linear) = match (n.int_or("swiglu_fusion", 0)?, third) {
            (0, Some(third)) => (y, third),
            (1, None) if width % 2 == 0 => {
                let pairs = reshaped(n, y, &[rows, width / 2, 2])?;
                let half = |n: &mut NodeContext<'_, '_>, i| {
                    let part = n.build(|g| g.narrow(pairs, 2, i, 1))?;
                    reshaped(n, part, &[rows, width / 2])
                };
                (half(n, 0)?, half(n, 1)?)
            }
            (2, None) if width % 2 == 0 => {
                let half = |n: &mut NodeContext<'_, '_>, i| n.build(|g| g.narrow(y, 1, i, width / 2));
                (half(n, 0)?, half(n, width / 2)?)
            }
            (fusion, _) => {
                let problem =
                    format!("swiglu_fusion {fusion} does not go with its inputs: {hidden}, {shape}");
                return Err(n.wrong(problem));
            }
        };
        return swiglu(n, gate, linear);
    }
    let y = match activation.as_str() {
        "relu" => n.build(|g| g.relu(y))?,
        "gelu" => n.build(|g| g.gelu_tanh(y))?,
        "silu" => n.build(|g| g.silu(y))?,
        "identity" => y,
        other => return Err(n.wrong(format!("activation `{other}` cannot be imported"))),
    };
    match third {
        Some(third) => n.build(|g| g.mul(y, third)),
        None => Ok(y),
    }
}

/// `g·sigmoid(alpha·g)·(l + beta)`, both held within the limit.
fn swiglu(n: &mut NodeContext<'_, '_>, gate: ValueId, linear: ValueId) -> Answer<ValueId> {
    let (alpha, beta) = (n.float_or("activation_alpha", 1.0)?, n.float_or("activation_beta", 0.0)?);
    let limit = n.float("swiglu_limit")?.map(f64::from);
    n.build(|g| {
        let (gate, linear) = match limit {
            Some(limit) => (g.clamp(gate, f64::NEG_INFINITY, limit)?, g.clamp(linear, -limit, limit)?),
            None => (gate, linear),
        };
        let sharp = g.binary_scalar(Binary::Mul, gate, f64::from(alpha))?;
        let open = g.sigmoid(sharp)?;
        let swish = g.mul(gate, open)?;
        let linear = g.binary_scalar(Binary::Add, linear, f64::from(beta))?;
        g.mul(swish, linear)
    })
}

/// Every row times the matrix of its expert, and its expert's bias.
fn expert_matmul(
    n: &mut NodeContext<'_, '_>,
    inputs: &Inputs,
    own_bits: &str,
    x: ValueId,
    routing: &Routing,
) -> Answer<ValueId> {
    let Inputs([weights, scales, bias, zero]) = *inputs;
    let bits = bits(n, if n.int(own_bits)?.is_some() { own_bits } else { "expert_weight_bits" })?;
    let bytes = n.tensor(weights)?;
    let found = n.shape(bytes)?;
    let [experts, width, row] = *found.dims() else {
        return Err(n.wrong(format!("its experts' weights should have three axes, they are {found}")));
    };
    let columns = n.shape(x)?[1];
    if row.saturating_mul(8 / bits) != columns {
        return Err(n.wrong(format!("rows of {columns} times weights {found} of {bits} bits")));
    }
    let given = usize::try_from(n.int_or("block_size", 0)?).unwrap_or(0);
    let block = if given == 0 { columns.max(1) } else { given };
    let dims = [experts, width, columns.div_ceil(block)];
    let scale_values = n.tensor(scales)?;
    let scale_values = reshaped(n, scale_values, &dims)?;
    let weight = as_packed(n, weights, bits, &[experts, width, columns])?;
    let zero_values = match (n.has(zero), given > 0) {
        (true, true) if weight.is_some() => Some(packed_zero_points(n, zero, bits, &dims)?),
        (true, true) => Some(dense_zero_points(n, zero, bits, &dims)?),
        // One for each row: they are packed along the rows.
        (true, false) => {
            let all = dense_zero_points(n, zero, bits, &[experts, width])?;
            Some(reshaped(n, all, &dims)?)
        }
        (false, _) => None,
    };
    let y = match weight {
        Some(weight) => {
            let packed = Packed::new(weight, scale_values, block, zero_values, middle(bits));
            packed.matmul(n, x, Some(routing.experts))?
        }
        None => {
            let values = unpacked(n, bytes, bits)?;
            let all_middle = n.scalar(DType::U8, middle(bits) as f64);
            n.build(|g| {
                let zero = zero_values.map_or_else(|| g.fill(all_middle, dims), Ok)?;
                let w = g.dequantize_linear(values, scale_values, Some(zero), 2, block)?;
                let w = g.swap_last_axes(w)?;
                g.grouped_matmul(x, w, routing.experts)
            })?
        }
    };
    match n.optional(bias)? {
        Some(bias) => n.build(|g| {
            let own = g.gather(bias, routing.experts, 0)?;
            g.add(y, own)
        }),
        None => Ok(y),
    }
}
